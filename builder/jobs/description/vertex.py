"""The table `vertex` of a job's file: what only Vertex AI has.

Source of each shape and limit: the messages of aiplatform v1 (CustomJobSpec, ReservationAffinity,
NfsMount, EncryptionSpec).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from builder.core.filemodel import matches, refuse
from builder.jobs.description.values import WrittenModel

_Address = Annotated[
    str, matches(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", "an IP address", "write 10.0.0.2")
]
_Folder = Annotated[str, matches(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)*", "a folder's name", "write data")]
_Resource = Annotated[
    str, matches(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a persistent resource", "write cluster")
]
_Reservation = Annotated[
    str,
    matches(
        r"any|none"
        r"|projects/[^/\s]+/zones/[a-z0-9-]+/reservations/[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
        "a reservation",
        "write any, none, or projects/PROJECT/zones/ZONE/reservations/NAME",
    ),
]
_Key = Annotated[
    str,
    matches(
        r"projects/[^/\s]+/locations/[a-z0-9-]+/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}",
        "a key of Cloud KMS",
        "write projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
    ),
]


class NfsMount(WrittenModel):
    """A folder of an NFS server, which each replica finds below /mnt/nfs."""

    server: _Address = Field(examples=["10.0.0.2"])
    """The server's IP address in the job's network."""

    path: Annotated[str, matches(r"/\S*", "a path", "write /exports/data")] = Field(
        examples=["/exports/data"]
    )
    """The folder that the server exports."""

    name: _Folder = Field(examples=["data"])
    """The replicas find it as /mnt/nfs/NAME."""


class Vertex(WrittenModel):
    """What only Vertex AI has. Other backends name what they leave out."""

    reservation: _Reservation | None = Field(
        None, examples=["projects/my-project/zones/us-central1-a/reservations/mine"]
    )
    """Machines that are reserved: `any` with others where none is free, `none`, or one by name."""

    persistent_resource: _Resource | None = Field(None, examples=["cluster"])
    """The id of a persistent resource of the region, on whose machines the job runs."""

    web_access: bool = Field(False, examples=[True])
    """Allow an interactive shell in each replica."""

    encryption_key: _Key | None = Field(
        None, examples=["projects/my-project/locations/us-central1/keyRings/r/cryptoKeys/k"]
    )
    """A key of your own, with which the service encrypts what the job stores."""

    nfs: tuple[NfsMount, ...] = Field(
        (), examples=[[{"server": "10.0.0.2", "path": "/exports/data", "name": "data"}]]
    )
    """Folders of NFS servers, mounted in each replica. They need the job's `network`."""

    @model_validator(mode="after")
    def _check(self) -> Vertex:
        names = [mount.name for mount in self.nfs]
        if len(set(names)) < len(names):
            raise refuse("two NFS folders have one name", "give each a name of its own")
        return self

    @property
    def written(self) -> tuple[str, ...]:
        """Return the names of the fields that the job's file has."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))
