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

from builder.cloudbuild.clients import explained
from builder.cloudbuild.source import archive
from builder.core.errors import OutsideError


@dataclass(frozen=True)
class StagedSource:
    """An archive in a bucket. generation: of the object. size: in bytes."""

    bucket: str
    name: str
    generation: int
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.name}#{self.generation}"


@contextlib.contextmanager
def staged(
    storage: Any,
    bucket: str,
    folder: Path,
    keep: bool = False,
    location: str = "",
    owned: bool = True,
) -> Iterator[Staging]:
    """Put the source of `folder` into a bucket for the time of the block.

    storage: a google.cloud.storage.Client. keep: leave it there afterwards. location: of a bucket
    that has to be made. owned: refuse a bucket of another project. Raises InputError, OutsideError.
    """
    with tempfile.TemporaryFile() as file:
        archive(folder, file)
        staging = Staging(storage, upload(storage, bucket, file, location, owned), keep)
    try:
        yield staging
    finally:
        if not staging.keep:
            delete(storage, staging.object)


@dataclass
class Staging:
    """A staged source. `keep` may be set while the build runs."""

    storage: Any
    object: StagedSource
    keep: bool = False


def upload(
    storage: Any, bucket: str, file: BinaryIO, location: str = "", owned: bool = True
) -> StagedSource:
    """Put an archive under a name of its own, never over another object. Raises OutsideError.

    A missing bucket is made, as gcloud does. With `owned`, a bucket of another project is refused:
    anybody can take the name of a default bucket.
    """
    from google.api_core.exceptions import GoogleAPIError, PreconditionFailed
    from google.auth.exceptions import GoogleAuthError

    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    name = f"source/{time.time():.6f}-{uuid.uuid4().hex}.tgz"
    try:
        blob = _bucket(storage, bucket, location, owned).blob(name)
        blob.metadata = {"sha256": sha256}
        # An upload that is sent again after a cut may find its own first attempt: 412 means done.
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
    return StagedSource(bucket, name, int(blob.generation), size, sha256)


def _bucket(storage: Any, name: str, location: str, owned: bool) -> Any:
    from google.api_core.exceptions import Conflict, Forbidden, NotFound

    try:
        bucket = storage.get_bucket(name)
    except Forbidden:
        return storage.bucket(name)  # the right to write is enough
    except NotFound:
        region = None if location in ("", "global") else location
        try:
            return storage.create_bucket(name, location=region)
        except Conflict:
            return storage.bucket(name)
    if owned:
        mine = {one.name for one in storage.list_buckets(prefix=name)}
        if name not in mine:
            raise OutsideError(
                f"gs://{name} belongs to another project (number {bucket.project_number})",
                "name a bucket of your own: cloud.staging_bucket in builder.toml",
            )
    return bucket


def delete(storage: Any, staged: StagedSource) -> None:
    """Remove a staged source that may be gone already."""
    from google.api_core.exceptions import GoogleAPIError

    with contextlib.suppress(GoogleAPIError, OSError):
        blob = storage.bucket(staged.bucket).blob(staged.name, generation=staged.generation)
        blob.delete(if_generation_match=staged.generation)
