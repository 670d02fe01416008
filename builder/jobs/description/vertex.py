"""The table `vertex` of a job's file: what only Vertex AI has.

Source of each shape: the messages of aiplatform v1 (CustomJobSpec, ReservationAffinity,
EncryptionSpec).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from builder.core.filemodel import matches
from builder.jobs.description.values import WrittenModel

_Reservation = Annotated[
    str,
    matches(
        r"any|none|projects/[^/\s]+/zones/[a-z0-9-]+/reservations/[a-z][a-z0-9-]*",
        "a reservation",
        "write any, none, or projects/PROJECT/zones/ZONE/reservations/NAME",
    ),
]
_Key = Annotated[
    str,
    matches(
        r"projects/[^/\s]+/locations/[a-z0-9-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+",
        "a key of Cloud KMS",
        "write projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
    ),
]


class Vertex(WrittenModel):
    """What only Vertex AI has. Other backends name what they leave out."""

    reservation: _Reservation | None = Field(
        None, examples=["projects/my-project/zones/us-central1-a/reservations/mine"]
    )
    """Machines that are reserved: `any` with others where none is free, `none`, or one by name."""

    web_access: bool = Field(False, examples=[True])
    """Allow an interactive shell in each replica."""

    encryption_key: _Key | None = Field(
        None, examples=["projects/my-project/locations/us-central1/keyRings/r/cryptoKeys/k"]
    )
    """A key of your own, with which the service encrypts what the job stores."""
