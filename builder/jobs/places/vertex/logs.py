"""What a job's replicas print, from Cloud Logging: each line once, with its replica's name.

Entries arrive late and out of order, so each read begins a little before the end of the last one,
and skips what it has returned already. Filter and labels are those of
`gcloud ai custom-jobs stream-logs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from builder.core import googleapi
from builder.jobs.places.protocol import SERVICE, LogLine
from builder.jobs.places.vertex.status import explaining
from builder.jobs.pools import ROLES, role_of

OVERLAP = timedelta(seconds=60)
PAGE = 1000


@dataclass
class CloudLog:
    """One job's log, read piece by piece. client: a google.cloud.logging.Client."""

    client: Any
    project: str
    job_id: str
    replica: str | None = None
    since: datetime | None = None
    told: dict[str, datetime] = field(default_factory=dict)

    def new(self) -> tuple[LogLine, ...]:
        """The lines since the last call, by time. Raises OutsideError."""
        words = ['resource.type="ml_job"', f'resource.labels.job_id="{self.job_id}"']
        if self.replica:
            words.append(f'resource.labels.task_name="{task(self.replica)}"')
        if self.since is not None:
            back = (self.since - OVERLAP).astimezone(UTC).isoformat().replace("+00:00", "Z")
            words.append(f'timestamp>="{back}"')

        def read() -> list[Any]:  # a passing error on a later page starts again at the first page
            return list(
                self.client.list_entries(
                    resource_names=[f"projects/{self.project}"],
                    filter_=" AND ".join(words),
                    order_by="timestamp asc",
                    page_size=PAGE,
                )
            )

        with explaining("logs"):
            entries: list[Any] = googleapi.reading()(read)()
        found = []
        for entry in entries:
            when = entry.timestamp or datetime.now(UTC)
            key = entry.insert_id or f"{when.isoformat()} {entry.payload}"
            if key in self.told:
                continue
            self.told[key] = when
            found.append(_line(entry, when))
            self.since = max(self.since or when, when)
        if self.since is not None:  # no later read returns entries from before the overlap
            edge = self.since - 2 * OVERLAP
            self.told = {key: when for key, when in self.told.items() if when > edge}
        return tuple(found)


def task(replica: str) -> str:
    """`worker-1` -> `workerpool1-1`, the service's name of that replica."""
    role, _, index = replica.rpartition("-")
    if role in ROLES and index.isdigit():
        return f"workerpool{ROLES.index(role)}-{index}"
    return replica


def replica_of(name: str) -> str:
    """`workerpool1-1` -> `worker-1`; any other name stays as it is."""
    match = re.fullmatch(r"workerpool([0-9]+)-([0-9]+)", name)
    return f"{role_of(int(match[1]))}-{match[2]}" if match else name


def _line(entry: Any, when: datetime) -> LogLine:
    labels = dict(entry.resource.labels) if entry.resource else {}
    own = dict(entry.labels or {})
    payload = entry.payload
    text = payload.get("message", payload) if isinstance(payload, dict) else payload
    return LogLine(
        time=when,
        replica=replica_of(labels.get("task_name", SERVICE)),
        severity=str(entry.severity or "DEFAULT"),
        text=str(text).rstrip("\n"),
        trial=own.get("ml.googleapis.com/trial_id"),
        fields=dict(payload) if isinstance(payload, dict) else {},
    )
