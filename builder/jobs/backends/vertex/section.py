"""The section `vertex` of a job's file: what Vertex AI alone has.

The service checks the values. Source of the shapes: aiplatform v1 (CustomJobSpec,
ReservationAffinity, EncryptionSpec).
"""

from __future__ import annotations

from pydantic import Field

from builder.jobs.description.job import Job
from builder.jobs.description.values import Text, WrittenModel


class VertexSection(WrittenModel):
    """What only Vertex AI has: a reservation, a shell, a key."""

    reservation: Text | None = Field(
        None, examples=["projects/my-project/zones/us-central1-a/reservations/mine"]
    )
    """Machines that are reserved: `any` with others where none is free, `none`, or one by name."""

    web_access: bool = Field(False, examples=[True])
    """Allow an interactive shell in each replica."""

    encryption_key: Text | None = Field(
        None, examples=["projects/my-project/locations/us-central1/keyRings/r/cryptoKeys/k"]
    )
    """A key of your own, with which the service encrypts what the job stores."""


def of(job: Job) -> VertexSection:
    return job.section("vertex", VertexSection)
