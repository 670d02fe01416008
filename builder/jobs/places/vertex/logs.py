"""What a job's replicas say, from Cloud Logging: each line once, with its replica's name.

Lines arrive late and out of order, so every look goes back a little and leaves out what was told.
Filter and labels are those that `gcloud ai custom-jobs stream-logs` uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from builder.jobs.places.vertex import messages as vertex
from builder.jobs.places.vertex import status as remote
from builder.jobs.places.vertex.status import RemoteJob

OVERLAP = timedelta(seconds=60)
PAGE = 1000


@dataclass(frozen=True)
class LogLine:
    """One line. replica: `chief-0`, or "service" for what the service itself says; fields: of a
    line of JSON, which the service takes apart."""

    time: datetime
    replica: str
    severity: str
    text: str
    trial: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Follower:
    """Reads a job's log piece by piece. `client`: a google.cloud.logging.Client."""

    client: Any
    project: str
    job_id: str
    replica: str | None = None
    since: datetime | None = None
    told: dict[str, datetime] = field(default_factory=dict)

    def new(self) -> tuple[LogLine, ...]:
        """The lines that came since the last look, by time. Raises OutsideError."""
        words = ['resource.type="ml_job"', f'resource.labels.job_id="{self.job_id}"']
        if self.replica:
            words.append(f'resource.labels.task_name="{task(self.replica)}"')
        if self.since is not None:
            back = (self.since - OVERLAP).astimezone(UTC).isoformat().replace("+00:00", "Z")
            words.append(f'timestamp>="{back}"')

        def read() -> list[Any]:  # all pages inside: what passes is asked again from the first
            return list(
                self.client.list_entries(
                    resource_names=[f"projects/{self.project}"],
                    filter_=" AND ".join(words),
                    order_by="timestamp asc",
                    page_size=PAGE,
                )
            )

        with remote.refusals("logs"):
            entries: list[Any] = remote.passing()(read)()
        found = []
        for entry in entries:
            when = entry.timestamp or datetime.now(UTC)
            key = entry.insert_id or f"{when.isoformat()} {entry.payload}"
            if key in self.told:
                continue
            self.told[key] = when
            found.append(_line(entry, when))
            self.since = max(self.since or when, when)
        if self.since is not None:  # what lies before the overlap is never asked for again
            edge = self.since - 2 * OVERLAP
            self.told = {key: when for key, when in self.told.items() if when > edge}
        return tuple(found)


def task(replica: str) -> str:
    """`worker-1` -> `workerpool1-1`, the service's name of that replica."""
    role, _, index = replica.rpartition("-")
    for position in range(4):
        if vertex.role_of(position) == role and index.isdigit():
            return f"workerpool{position}-{index}"
    return replica


def replica_of(name: str) -> str:
    """`workerpool1-1` -> `worker-1`; what is no replica stays as it is."""
    match = re.fullmatch(r"workerpool([0-9]+)-([0-9]+)", name)
    return f"{vertex.role_of(int(match[1]))}-{match[2]}" if match else name


def _line(entry: Any, when: datetime) -> LogLine:
    labels = dict(entry.resource.labels) if entry.resource else {}
    own = dict(entry.labels or {})
    payload = entry.payload
    text = payload.get("message", payload) if isinstance(payload, dict) else payload
    return LogLine(
        time=when,
        replica=replica_of(labels.get("task_name", "service")),
        severity=str(entry.severity or "DEFAULT"),
        text=str(text).rstrip("\n"),
        trial=own.get("ml.googleapis.com/trial_id"),
        fields=dict(payload) if isinstance(payload, dict) else {},
    )


def follow(
    follower: Follower,
    look: Callable[[], RemoteJob],
    pause: Callable[[], None],
    tell: Callable[[LogLine], None],
) -> RemoteJob:
    """Tell every line until the job has ended, and what still comes once after that.

    `look` asks for the job, `pause` waits between two looks. Returns the job as it ended.
    """
    while True:
        job = look()
        for line in follower.new():
            tell(line)
        if not job.active:
            pause()
            for line in follower.new():
                tell(line)
            return job
        pause()
