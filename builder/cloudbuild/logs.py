"""The log of a build, read from Cloud Logging while it grows: every line once.

Entries come late and out of order. A log that cannot be read changes nothing about how the build
went: its status alone is followed then. Google's client repeats a read after a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.cloudbuild.clients import Clients

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

QUIET = 3
"""Reads without a new entry, after the end of the build, that end a log."""

OVERLAP = timedelta(seconds=60)
"""The last minute is read again, because entries can appear after later ones."""

_FIRST = datetime.fromtimestamp(0, UTC)
"""Before the first entry. To a filter without a time, the client adds "the last 24 hours"."""


@dataclass
class BuildLog:
    """How far the log of a build was read.

    quiet: reads in a row without a new entry. note: why it is not read any more, "" where it is.
    """

    clients: Clients
    build: Build
    quiet: int = 0
    note: str = ""
    complete: bool = False
    _ids: set[str] = field(default_factory=set)
    _newest: datetime = _FIRST

    def read(self, ended: bool) -> list[str]:
        """Return the lines that are new. ended: the build has ended, so its log is complete."""
        from google.api_core.exceptions import ClientError

        entries: list[Any] = []
        since = _FIRST if ended else max(self._newest - OVERLAP, _FIRST)
        try:
            if not self.note:
                entries = googleapi.read_retry()(self._entries)(since)
        except ClientError as error:
            self.note = f"Cloud Logging may not be read (HTTP {error.code})"
        except googleapi.transient_errors() as error:
            self.note = f"Cloud Logging could not be read ({error})" if ended else ""
        new = {entry.insert_id: entry for entry in entries if entry.insert_id not in self._ids}
        self._ids |= new.keys()
        self.quiet = 0 if new else self.quiet + ended
        self.complete = self.quiet >= QUIET or (ended and bool(self.note))
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


def begin(clients: Clients, build: Build) -> BuildLog:
    """Return the log of a build; one that goes elsewhere is not read, and its note says so."""
    from google.cloud.devtools.cloudbuild_v1.types import BuildOptions

    mode = BuildOptions.LoggingMode(build.options.logging)
    elsewhere = mode in (BuildOptions.LoggingMode.NONE, BuildOptions.LoggingMode.GCS_ONLY)
    note = f"its log is not in Cloud Logging (logging: {mode.name}): {build.log_url}"
    return BuildLog(clients, build, note=note if elsewhere else "")


def _text(entry: Any) -> str:
    payload = entry.payload
    text = payload if isinstance(payload, str) else str((payload or {}).get("message", payload))
    return text.rstrip("\n")
