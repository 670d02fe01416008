"""One submission at a time in a job's folder: a small file there says who submits what.

A list of jobs may lag, so two machines that look at the same moment can both miss the other's job.
The folder is what they share. Whoever writes the file first creates the job; the other one finds
the job's name in it. A file that its writer left without a name is taken over after EXPIRY seconds
without a change. No clocks are compared.

In a bucket the file is written under a precondition: only if it is not there, or if it is still the
generation that was read. Source: Google Cloud, Cloud Storage, request preconditions.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from builder.core import files, googleapi

FILE = "submission.json"
EXPIRY = 60.0
"""Seconds: longer than a request to a place takes with all its repetitions of a read."""


_ROLE = "ask for roles/storage.objectUser on the bucket"
_ADVICE = googleapi.Advice(
    api="storage.googleapis.com",
    forbidden=_ROLE,
    missing="make the bucket, or name another one in job_dir",
    quota="wait a little, then run the same command again",
    refused=_ROLE,
    precondition=_ROLE,
    unreachable="run the same command again",
)


@dataclass(frozen=True)
class Claim:
    """What the file says. key, run: of the job. job: its whole name, "" before it is created."""

    key: str
    run: int
    job: str = ""
    holder: str = field(
        default_factory=lambda: f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex}"
    )


@dataclass(frozen=True)
class Held:
    """A claim as it was read. version: changes with each write. claim: None for a file that is not
    ours to read."""

    claim: Claim | None
    version: object


class Lease(Protocol):
    """The file in one folder. All calls raise OutsideError where the folder cannot be used."""

    def read(self) -> Held | None:
        """The claim; None where there is no file."""

    def take(self, over: Held | None, claim: Claim) -> Held | None:
        """Write a claim over the one that was read. None where somebody else wrote meanwhile."""

    def drop(self, held: Held) -> None:
        """Remove the file, unless somebody else wrote it meanwhile."""


def _text(claim: Claim) -> str:
    return json.dumps(asdict(claim))


def _claim(found: Mapping[str, Any]) -> Claim | None:
    try:
        return Claim(str(found["key"]), int(found["run"]), str(found["job"]), str(found["holder"]))
    except (ValueError, KeyError, TypeError):
        return None


def _parsed(text: bytes) -> Claim | None:
    try:
        return _claim(json.loads(text))
    except ValueError:
        return None


@dataclass(frozen=True)
class FolderLease:
    """The file in a folder of a file system, which may be shared."""

    folder: Path

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    def read(self) -> Held | None:
        """The claim; None where there is no file."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        return Held(_parsed(text), text)

    def take(self, over: Held | None, claim: Claim) -> Held | None:
        """A new file is created exclusively; an old one is replaced under a lock."""
        text = _text(claim).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        if over is None:
            try:
                with self._path.open("xb") as file:
                    file.write(text)
            except FileExistsError:
                return None
            return Held(claim, text)
        with files.locked(self.folder / f".{FILE}.lock"):
            found = self.read()
            if found is None or found.version != over.version:
                return None
            files.write(self._path, text)
        return Held(claim, text)

    def drop(self, held: Held) -> None:
        """Remove the file, unless somebody else wrote it meanwhile."""
        with files.locked(self.folder / f".{FILE}.lock"):
            found = self.read()
            if found is not None and found.version == held.version:
                self._path.unlink()


@dataclass(frozen=True)
class BucketLease:
    """The file as an object of a bucket. client: a google.cloud.storage.Client; folder: gs://..."""

    client: Any
    folder: str

    def read(self) -> Held | None:
        """The claim, which is the object's metadata; None where there is no object."""
        with self._explained():
            bucket, name = self._place
            blob = self.client.bucket(bucket).get_blob(name)
            if blob is None:
                return None
            return Held(_claim(blob.metadata or {}), int(blob.generation))

    def take(self, over: Held | None, claim: Claim) -> Held | None:
        """Written if the generation is still the one that was read. The library repeats a request
        whose answer got lost, and then finds its own object."""
        from google.api_core import exceptions

        with self._explained():
            blob, wanted = self._blob(), 0 if over is None else over.version
            blob.metadata = {name: str(value) for name, value in asdict(claim).items()}
            try:
                blob.upload_from_string(_text(claim), if_generation_match=wanted)
            except exceptions.PreconditionFailed:
                found = self.read()
                return found if found is not None and found.claim == claim else None
            return Held(claim, int(blob.generation))

    def drop(self, held: Held) -> None:
        """Remove the object, unless somebody else wrote it meanwhile."""
        from google.api_core import exceptions

        gone = (exceptions.NotFound, exceptions.PreconditionFailed)
        with self._explained(), contextlib.suppress(*gone):
            self._blob().delete(if_generation_match=held.version)

    @property
    def _place(self) -> tuple[str, str]:
        """The bucket, and the object's name."""
        bucket, _, folder = self.folder.removeprefix("gs://").partition("/")
        return bucket, f"{folder}/{FILE}" if folder else FILE

    def _blob(self) -> Any:
        bucket, name = self._place
        return self.client.bucket(bucket).blob(name)

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        """Raise the library's errors as one line."""
        return googleapi.explaining(f"{self.folder}/{FILE}", _ADVICE)
