"""A build's source in a bucket: one new object, deleted when the build has ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from builder.cloudbuild.clients import Clients, explained
from builder.cloudbuild.source import archive
from builder.core.errors import OutsideError


@dataclass
class StagedSource:
    bucket: str
    name: str
    generation: int
    """Of the object."""
    size: int
    """In bytes."""
    keep: bool = False
    """Leave it there; it may be set while the build runs."""

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.name}#{self.generation}"


@contextlib.contextmanager
def staged(clients: Clients, folder: Path, keep: bool = False) -> Iterator[StagedSource]:
    """Put the source of a folder into the staging bucket for the time of the block.

    keep: leave it there afterwards. Raises InputError, OutsideError.
    """
    with tempfile.TemporaryFile() as file:
        archive(folder, file)
        source = _upload(clients, file)
    source.keep = keep
    try:
        yield source
    finally:
        if not source.keep:
            _delete(clients.storage, source)


def _upload(clients: Clients, file: BinaryIO) -> StagedSource:
    """Put an archive under a name of its own, never over another object. Raises OutsideError."""
    from google.api_core.exceptions import GoogleAPIError, PreconditionFailed
    from google.auth.exceptions import GoogleAuthError

    bucket, size = clients.settings.bucket, file.seek(0, os.SEEK_END)
    file.seek(0)
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    name = f"source/{time.time():.6f}-{uuid.uuid4().hex}.tgz"
    try:
        blob = _bucket(clients, bucket).blob(name)
        blob.metadata = {"sha256": sha256}
        # An upload that is sent again after a cut may meet its own first attempt: 412 means done.
        try:
            blob.upload_from_file(
                file, rewind=True, size=size, content_type="application/x-tar",
                if_generation_match=0,
            )  # fmt: skip
        except PreconditionFailed:
            blob.reload()
            if (blob.metadata or {}).get("sha256") != sha256:
                raise
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        raise explained(error, f"gs://{bucket}") from error
    return StagedSource(bucket, name, int(blob.generation), size)


def _bucket(clients: Clients, name: str) -> Any:
    """Return the bucket. A missing one is made, as gcloud does.

    Raises OutsideError for a default bucket of another project: anybody can take such a name.
    """
    from google.api_core.exceptions import Conflict, Forbidden, NotFound

    storage, region = clients.storage, clients.settings.region
    try:
        bucket = storage.get_bucket(name)
    except Forbidden:
        return storage.bucket(name)  # the right to write is enough
    except NotFound:
        try:
            return storage.create_bucket(name, location=None if region == "global" else region)
        except Conflict:
            return storage.bucket(name)
    is_default = clients.settings.staging_bucket is None
    if is_default and name not in {own.name for own in storage.list_buckets(prefix=name)}:
        raise OutsideError(
            f"gs://{name} belongs to another project (number {bucket.project_number})",
            "name a bucket of your own: cloud.staging_bucket in builder.toml",
        )
    return bucket


def _delete(storage: Any, source: StagedSource) -> None:
    """Remove a staged source that may be gone already."""
    from google.api_core.exceptions import GoogleAPIError

    with contextlib.suppress(GoogleAPIError, OSError):
        blob = storage.bucket(source.bucket).blob(source.name, generation=source.generation)
        blob.delete(if_generation_match=source.generation)
