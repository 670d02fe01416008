"""The log of a build, followed while it grows: every line once, also over a poor connection.

There are three sources, in this order. Cloud Storage is read in ranges, each from the end of the
last answer. Cloud Logging is asked for entries. The build's status alone comes last. A log that
cannot be read changes nothing about how the build went.

The follower is a pure state machine. `LogFollower.ask` says what to read next. `told` takes the
answer and gives the lines that are complete. The loop that sleeps and uses the network is in
follow.py. The answers of Cloud Storage mean (google-cloud-sdk, api_lib/cloudbuild/logs.py): 404 not
yet written, 416 nothing new, 200 and 206 data, 429 and 5xx try again. A log is complete before its
build is marked as done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from builder.cloudbuild.clients import Clients
from builder.core.googleapi import passing

Source = Literal["storage", "logging", "status"]

ATTEMPTS = 8
"""Failed reads in a row of a finished build's log, before the next source is used."""

QUIET = 3
"""Answers with nothing new that end a log: Cloud Logging shows entries late."""

OVERLAP = timedelta(seconds=60)
"""The last minute is asked for again, because entries can appear after later ones."""

BEGINNING = datetime.fromtimestamp(0, UTC)
"""Before the first entry of any log."""


@dataclass(frozen=True)
class ReadStorage:
    """Read the object from this byte on."""

    offset: int


@dataclass(frozen=True)
class ReadLogging:
    """Read the entries from this time on; None reads from the first."""

    since: datetime | None


@dataclass(frozen=True)
class Bytes:
    """An answer of Cloud Storage.

    status: HTTP's; 0 if the connection broke before it. body: may be cut off anywhere. start: the
    offset of its first byte.
    """

    status: int
    body: bytes = b""
    start: int = 0


@dataclass(frozen=True)
class LogEntry:
    """One entry of Cloud Logging. id: unique within a log. text: one line."""

    id: str
    time: datetime
    text: str


@dataclass(frozen=True)
class Entries:
    """An answer of Cloud Logging. status: HTTP's; 0 if there was none."""

    status: int
    entries: tuple[LogEntry, ...] = ()


@dataclass(frozen=True)
class LogFollower:
    """How far a log was read, and from which source.

    offset: bytes that were read of the object. rest: the beginning of an unfinished line. lines:
    number of lines given out. failures: in a row. ended: the build has ended, so its log is
    complete. done: everything was read. idle: there is nothing new now. note: why a source was
    given up. seen: ids of entries. newest: the time of the newest entry. skip: entries to leave
    out, because another source gave them. quiet: answers in a row with nothing new.
    """

    source: Source
    offset: int = 0
    rest: bytes = b""
    lines: int = 0
    failures: int = 0
    ended: bool = False
    done: bool = False
    idle: bool = False
    note: str = ""
    seen: frozenset[str] = frozenset()
    newest: datetime | None = None
    skip: int = 0
    quiet: int = 0

    @property
    def ask(self) -> ReadStorage | ReadLogging | None:
        """What to read next; None if nothing is left to read."""
        if self.done or self.source == "status":
            return None
        if self.source == "storage":
            return ReadStorage(self.offset)
        if self.ended or self.newest is None:  # at the end, read late entries too
            return ReadLogging(None)
        return ReadLogging(self.newest - OVERLAP)

    def end(self) -> LogFollower:
        """The state after the build has ended. Call it before the read that may be the last."""
        return replace(self, ended=True, done=self.done or self.source == "status")

    def told(self, answer: Bytes | Entries) -> tuple[LogFollower, tuple[str, ...]]:
        """The state after an answer, and the lines that the answer completed.

        If the state is `idle`, wait before the next read.
        """
        if isinstance(answer, Bytes):
            return self._bytes(answer)
        return self._entries(answer)

    # Cloud Storage --------------------------------------------------------------------------------

    def _bytes(self, answer: Bytes) -> tuple[LogFollower, tuple[str, ...]]:
        if answer.status in (200, 206):
            return self._data(answer)
        if answer.status == 416:
            return self._nothing()
        if answer.status == 404:
            if self.ended:  # no log will come
                return self._give_up("the build wrote no log to its bucket")
            return replace(self, idle=True, failures=0), ()
        if answer.status in (400, 401, 403):
            return self._give_up(f"the log's bucket may not be read (HTTP {answer.status})")
        return self._stumbled(f"HTTP {answer.status}" if answer.status else "no connection")

    def _data(self, answer: Bytes) -> tuple[LogFollower, tuple[str, ...]]:
        known = self.offset - answer.start
        fresh = answer.body[known:] if known >= 0 else b""  # after a gap, the answer is useless
        if not fresh:
            return self._stumbled("an answer with nothing in it")
        *whole, rest = (self.rest + fresh).split(b"\n")
        lines = tuple(line.decode(errors="replace").rstrip("\r") for line in whole)
        return replace(
            self,
            offset=self.offset + len(fresh),
            rest=rest,
            lines=self.lines + len(lines),
            failures=0,
            idle=False,
        ), lines

    def _nothing(self) -> tuple[LogFollower, tuple[str, ...]]:
        if not self.ended:
            return replace(self, idle=True, failures=0), ()
        last = (self.rest.decode(errors="replace"),) if self.rest else ()
        new = replace(self, done=True, rest=b"", lines=self.lines + len(last), idle=False)
        return new, last

    # Cloud Logging --------------------------------------------------------------------------------

    def _entries(self, answer: Entries) -> tuple[LogFollower, tuple[str, ...]]:
        if answer.status in (400, 401, 403, 404):
            return self._give_up(f"Cloud Logging may not be read (HTTP {answer.status})")
        if answer.status != 200:
            return self._stumbled(f"HTTP {answer.status}" if answer.status else "no connection")
        new: dict[str, LogEntry] = {}
        for entry in answer.entries:
            if entry.id not in self.seen:
                new.setdefault(entry.id, entry)
        if not new:
            quiet = self.quiet + self.ended
            over = self.ended and quiet >= QUIET
            return replace(self, idle=not over, done=over, quiet=quiet, failures=0), ()
        entries = sorted(new.values(), key=lambda one: one.time)
        skipped = min(self.skip, len(entries))
        lines = tuple(entry.text for entry in entries[skipped:])
        return replace(
            self,
            seen=self.seen | new.keys(),
            newest=max([entries[-1].time, *([self.newest] if self.newest else [])]),
            skip=self.skip - skipped,
            lines=self.lines + len(lines),
            failures=0,
            quiet=0,
            idle=True,
        ), lines

    # Both -----------------------------------------------------------------------------------------

    def _stumbled(self, why: str) -> tuple[LogFollower, tuple[str, ...]]:
        failures = self.failures + 1
        if self.ended and failures >= ATTEMPTS:
            return self._give_up(f"the log could not be read {failures} times in a row ({why})")
        return replace(self, failures=failures, idle=True), ()

    def _give_up(self, why: str) -> tuple[LogFollower, tuple[str, ...]]:
        """Use the next source, without the lines that the last one gave."""
        if self.source == "storage":
            new = LogFollower(
                "logging", lines=self.lines, ended=self.ended, note=why, skip=self.lines
            )
            return new, ()
        note = f"{self.note}; {why}" if self.note else why
        return LogFollower(
            "status", lines=self.lines, ended=self.ended, done=self.ended, note=note
        ), ()

    @property
    def pause(self) -> float:
        """Seconds to wait before the next read: one, and more after failures."""
        return min(30.0, 2.0 ** min(self.failures, 5)) if self.failures else 1.0


# --- reading a build's log ------------------------------------------------------------------------


def begin(build: Any) -> LogFollower:
    """A follower of a build's log, at the source that the build's options name."""
    from google.cloud.devtools.cloudbuild_v1.types import BuildOptions

    mode = BuildOptions.LoggingMode
    logging = build.options.logging
    if logging == mode.NONE:
        return LogFollower("status", note="the build keeps no log (logging: NONE)")
    if logging in (mode.CLOUD_LOGGING_ONLY, mode.STACKDRIVER_ONLY) or not build.logs_bucket:
        return LogFollower("logging")
    return LogFollower("storage")


def address(build: Any) -> tuple[str, str]:
    """The bucket and the object of a build's log."""
    bucket, _, folder = build.logs_bucket.removeprefix("gs://").partition("/")
    name = f"log-{build.id}.txt"
    return bucket, f"{folder.rstrip('/')}/{name}" if folder else name


def read(clients: Clients, build: Any, ask: ReadStorage | ReadLogging) -> Bytes | Entries:
    """Read once. Errors are part of the answer; none is raised."""
    if isinstance(ask, ReadStorage):
        return _read_storage(clients, build, ask.offset)
    return _read_logging(clients, build, ask.since)


def _read_storage(clients: Clients, build: Any, offset: int) -> Bytes:
    from urllib.parse import quote

    bucket, name = address(build)
    url = f"{clients.storage_endpoint}/{bucket}/{quote(name)}"
    headers = {"Range": f"bytes={offset}-", "Accept-Encoding": "identity"}
    body = bytearray()
    status = start = 0
    try:
        with clients.session.get(url, headers=headers, stream=True, timeout=60) as response:
            status = response.status_code
            found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            start = int(found[1]) if found else (offset if status == 206 else 0)
            # read it as it comes: a cut must not lose what came before it
            while status in (200, 206) and (chunk := response.raw.read1(1 << 16)):
                body += chunk
    except Exception as error:
        if not _transient(error):
            return Bytes(403)
    return Bytes(status, bytes(body), start) if body or status not in (200, 206) else Bytes(0)


def _read_logging(clients: Clients, build: Any, since: datetime | None) -> Entries:
    from google.api_core.exceptions import GoogleAPICallError

    wanted = [
        f'logName="projects/{clients.project}/logs/cloudbuild"',
        'resource.type="build"',
        f'resource.labels.build_id="{build.id}"',
        # To a filter without a time, the client library adds "the last 24 hours".
        f'timestamp>="{(since or BEGINNING).isoformat()}"',
    ]
    try:
        listed = clients.logging.list_entries(
            resource_names=[f"projects/{clients.project}"],
            filter_=" AND ".join(wanted),
            order_by="timestamp asc",
            page_size=1000,
        )
        return Entries(200, tuple(_entry(one) for one in listed))
    except GoogleAPICallError as error:
        return Entries(int(error.code or 0))
    except Exception as error:
        return Entries(0 if _transient(error) else 403)


def _entry(one: Any) -> LogEntry:
    payload = one.payload
    text = payload if isinstance(payload, str) else str((payload or {}).get("message", payload))
    return LogEntry(str(one.insert_id), one.timestamp or datetime.now(UTC), text.rstrip("\n"))


def _transient(error: Exception) -> bool:
    import urllib3

    return isinstance(error, (*passing(), OSError, urllib3.exceptions.HTTPError))
