"""The log of a build, read while it grows: every line once.

There are three sources, in this order: the object in the build's bucket, read from the end of the
last answer; Cloud Logging, which gives entries late and out of order; the status of the build
alone. A log that cannot be read changes nothing about how the build went. Google's clients repeat a
read after a transient error.
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

    offset: bytes that were read of the object. rest: the beginning of an unfinished line. lines:
    number of lines given out. skip: entries that are left out, because the object gave them. quiet:
    reads in a row without a new entry. note: why a source was given up.
    """

    clients: Clients
    build: Build
    source: Literal["storage", "logging", "status"] = "storage"
    offset: int = 0
    rest: bytes = b""
    lines: int = 0
    skip: int = 0
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
        if self.source == "logging":
            lines += self._read_logging(ended)
        if self.source == "status":
            self.complete = ended
        self.lines += len(lines)
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
                self._give_up("the build wrote no log to its bucket", "logging")
            return []
        except (exceptions.BadRequest, exceptions.Forbidden, exceptions.Unauthorized) as error:
            self._give_up(f"the log's bucket may not be read (HTTP {error.code})", "logging")
            return []
        except googleapi.transient_errors() as error:
            if ended:
                self._give_up(f"the log could not be read ({error})", "logging")
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
            self._give_up(f"Cloud Logging may not be read (HTTP {error.code})", "status")
            return []
        except googleapi.transient_errors() as error:
            if ended:
                self._give_up(f"Cloud Logging could not be read ({error})", "status")
            return []
        new = {entry.insert_id: entry for entry in entries if entry.insert_id not in self._ids}
        self._ids |= new.keys()
        self.quiet = 0 if new else self.quiet + ended
        self.complete = self.quiet >= QUIET
        ordered = sorted(new.values(), key=lambda entry: entry.timestamp or _FIRST)
        self._newest = max([self._newest, *(entry.timestamp for entry in ordered[-1:])])
        skipped = min(self.skip, len(ordered))
        self.skip -= skipped
        return [_text(entry) for entry in ordered[skipped:]]

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

    def _give_up(self, why: str, source: Literal["logging", "status"]) -> None:
        """Use another source, without the lines that this one gave."""
        self.source, self.skip = source, self.lines
        self.note = f"{self.note}; {why}" if self.note else why


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
