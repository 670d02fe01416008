"""The table `vertex` of a job's file: what only Vertex AI has.

Source of each shape and limit: the messages of aiplatform v1 (CustomJobSpec, ReservationAffinity,
NfsMount, EncryptionSpec).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from builder.core.findings import matches, refuse
from builder.jobs.description.values import WrittenModel

RESERVED = r"projects/[^/\s]+/zones/[a-z0-9-]+/reservations/[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
CONTEXT = r"[a-z0-9][a-z0-9-]{0,127}"
KEY = r"projects/[^/\s]+/locations/[a-z0-9-]+/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}"
ADDRESS = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"


class NfsMount(WrittenModel):
    """A folder of an NFS server, which each replica finds below /mnt/nfs."""

    server: Annotated[str, matches(ADDRESS, "an IP address", "write 10.0.0.2")] = Field(
        examples=["10.0.0.2"]
    )
    """The server's IP address in the job's network."""

    path: Annotated[str, matches(r"/\S*", "a path", "write /exports/data")] = Field(
        examples=["/exports/data"]
    )
    """The folder that the server exports."""

    name: Annotated[
        str, matches(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)*", "a folder's name", "write data")
    ] = Field(examples=["data"])
    """The replicas find it as /mnt/nfs/NAME."""


class Vertex(WrittenModel):
    """What only Vertex AI has. Other places say what they leave out."""

    reservation: (
        Annotated[
            str,
            matches(
                rf"any|none|{RESERVED}",
                "a reservation",
                "write any, none, or projects/PROJECT/zones/ZONE/reservations/NAME",
            ),
        ]
        | None
    ) = Field(None, examples=["projects/my-project/zones/us-central1-a/reservations/mine"])
    """Machines that are reserved: `any` with others where none is free, `none`, or one by name."""

    persistent_resource: (
        Annotated[
            str,
            matches(
                r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a persistent resource", "write its id: cluster"
            ),
        ]
        | None
    ) = Field(None, examples=["cluster"])
    """The id of a persistent resource of the region, on whose machines the job runs."""

    experiment: Annotated[str, matches(CONTEXT, "an experiment", "write cats")] | None = Field(
        None, examples=["cats"]
    )
    """The experiment of Vertex AI that the job belongs to."""

    experiment_run: Annotated[str, matches(CONTEXT, "a run", "write first")] | None = Field(
        None, examples=["first"]
    )
    """The run of that experiment."""

    web_access: bool = Field(False, examples=[True])
    """Allow an interactive shell in each replica."""

    dashboard_access: bool = Field(False, examples=[True])
    """Allow access to a dashboard that the chief serves."""

    encryption_key: (
        Annotated[
            str,
            matches(
                KEY,
                "a key of Cloud KMS",
                "write projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
            ),
        ]
        | None
    ) = Field(None, examples=["projects/my-project/locations/us-central1/keyRings/r/cryptoKeys/k"])
    """A key of your own, with which the service encrypts what the job stores."""

    nfs: tuple[NfsMount, ...] = Field(
        (), examples=[[{"server": "10.0.0.2", "path": "/exports/data", "name": "data"}]]
    )
    """Folders of NFS servers, mounted in each replica. They need the job's `network`."""

    @model_validator(mode="after")
    def _fits(self) -> Vertex:
        if self.experiment_run and not self.experiment:
            raise refuse("experiment_run needs experiment", "add experiment: NAME")
        names = [one.name for one in self.nfs]
        if len(set(names)) < len(names):
            raise refuse("two NFS folders have one name", "give each a name of its own")
        return self

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the fields that the job's file has."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))
