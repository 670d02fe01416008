"""The log of a build, read while it grows: every line once.

It is in an object of the build's bucket, which is read from the end of the last answer, or in Cloud
Logging, which gives entries late and out of order. A log that cannot be read changes nothing about
how the build went: the status of the build alone is followed then. Google's clients repeat a read
after a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from builder import googleapi
from builder.cloudbuild.clients import Clients

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

QUIET = 3
"""Reads without a new entry, after the end of the build, that end a log in Cloud Logging."""

OVERLAP = timedelta(seconds=60)
"""The last minute is read again, because entries can appear after later ones."""

_FIRST = datetime.fromtimestamp(0, UTC)
"""Before the first entry. To a filter without a time, the client adds "the last 24 hours"."""


@dataclass
class BuildLog:
    """How far the log of a build was read, and from which source.

    offset: bytes that were read of the object. rest: the beginning of an unfinished line. quiet:
    reads in a row without a new entry. note: why the source was given up.
    """

    clients: Clients
    build: Build
    source: Literal["storage", "logging", "status"] = "storage"
    offset: int = 0
    rest: bytes = b""
    quiet: int = 0
    note: str = ""
    complete: bool = False
    _ids: set[str] = field(default_factory=set)
    _newest: datetime = _FIRST

    def read(self, ended: bool) -> list[str]:
        """Return the lines that are new. ended: the build has ended, so its log is complete."""
        lines: list[str] = []
        if self.source == "storage":
            lines = self._read_storage(ended)
        elif self.source == "logging":
            lines = self._read_logging(ended)
        if self.source == "status":
            self.complete = ended
        return lines

    def _read_storage(self, ended: bool) -> list[str]:
        from google.api_core import exceptions

        bucket, name = address(self.build)
        blob = self.clients.storage.bucket(bucket).blob(name)
        try:
            data = blob.download_as_bytes(start=self.offset, checksum=None, timeout=60)
        except exceptions.RequestRangeNotSatisfiable:
            data = b""
        except exceptions.NotFound:
            if ended:
                self._give_up("the build wrote no log to its bucket")
            return []
        except (exceptions.BadRequest, exceptions.Forbidden, exceptions.Unauthorized) as error:
            self._give_up(f"the log's bucket may not be read (HTTP {error.code})")
            return []
        except googleapi.transient_errors() as error:
            if ended:
                self._give_up(f"the log could not be read ({error})")
            return []
        self.offset += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        if ended and not data:
            whole, self.complete = [*whole, *filter(None, [self.rest])], True
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def _read_logging(self, ended: bool) -> list[str]:
        from google.api_core.exceptions import ClientError

        since = _FIRST if ended else max(self._newest - OVERLAP, _FIRST)
        try:
            entries = googleapi.read_retry()(self._entries)(since)
        except ClientError as error:
            self._give_up(f"Cloud Logging may not be read (HTTP {error.code})")
            return []
        except googleapi.transient_errors() as error:
            if ended:
                self._give_up(f"Cloud Logging could not be read ({error})")
            return []
        new = {entry.insert_id: entry for entry in entries if entry.insert_id not in self._ids}
        self._ids |= new.keys()
        self.quiet = 0 if new else self.quiet + ended
        self.complete = self.quiet >= QUIET
        ordered = sorted(new.values(), key=lambda entry: entry.timestamp or _FIRST)
        self._newest = max([self._newest, *(entry.timestamp for entry in ordered[-1:])])
        return [_text(entry) for entry in ordered]

    def _entries(self, since: datetime) -> list[Any]:
        project = f"projects/{self.clients.project}"
        conditions = [
            f'logName="{project}/logs/cloudbuild"',
            'resource.type="build"',
            f'resource.labels.build_id="{self.build.id}"',
            f'timestamp>="{since.isoformat()}"',
        ]
        return list(
            self.clients.logging.list_entries(
                resource_names=[project],
                filter_=" AND ".join(conditions),
                order_by="timestamp asc",
                page_size=1000,
            )
        )

    def _give_up(self, why: str) -> None:
        self.source, self.note = "status", why


def begin(clients: Clients, build: Build) -> BuildLog:
    """Return the log of a build, at the source that the build's options name."""
    from google.cloud.devtools.cloudbuild_v1.types import BuildOptions

    mode = BuildOptions.LoggingMode
    logging = build.options.logging
    if logging == mode.NONE:
        return BuildLog(clients, build, "status", note="the build keeps no log (logging: NONE)")
    if logging in (mode.CLOUD_LOGGING_ONLY, mode.STACKDRIVER_ONLY) or not build.logs_bucket:
        return BuildLog(clients, build, "logging")
    return BuildLog(clients, build)


def address(build: Build) -> tuple[str, str]:
    """Return the bucket and the object of a build's log."""
    bucket, _, folder = build.logs_bucket.removeprefix("gs://").partition("/")
    name = f"log-{build.id}.txt"
    return bucket, f"{folder.rstrip('/')}/{name}" if folder else name


def _text(entry: Any) -> str:
    payload = entry.payload
    text = payload if isinstance(payload, str) else str((payload or {}).get("message", payload))
    return text.rstrip("\n")
