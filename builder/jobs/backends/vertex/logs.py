"""What a job's replicas print, from Cloud Logging: each line once, with its replica's name.

An entry tells when its line was printed, and when it was received. A line may be received minutes
after it was printed, so each read asks for what was received since the last one, begins a little
earlier, and skips what it has returned already. Filter and labels are those of
`gcloud ai custom-jobs stream-logs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from builder import googleapi
from builder.jobs.backends.protocol import SERVICE, LogLine
from builder.jobs.backends.vertex.service import ReadEntries
from builder.jobs.backends.vertex.status import explaining
from builder.jobs.pools import role_of

OVERLAP = timedelta(seconds=60)
PAGE = 1000
"""The most entries of one answer. Source: Cloud Logging, quotas."""


@dataclass
class CloudLog:
    """One job's log, read piece by piece. client: asks for one page of entries.

    since: when the newest line that was read was received. returned: when each line that another
    read may bring again was received.
    """

    client: ReadEntries
    project: str
    job_id: str
    since: datetime | None = None
    returned: dict[str, datetime] = field(default_factory=dict)

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time. Raises OutsideError."""
        lines = []
        with explaining("logs"):
            entries = list(self._entries())
        for entry in entries:
            received = _time(entry.get("receiveTimestamp") or entry.get("timestamp"))
            key = entry.get("insertId") or repr(entry)
            if key not in self.returned:
                self.returned[key] = received
                lines.append(_line(entry))
                self.since = max(self.since or received, received)
        if self.since is not None:  # no later read returns entries from before the overlap
            edge = self.since - 2 * OVERLAP
            self.returned = {key: when for key, when in self.returned.items() if when > edge}
        return tuple(lines)

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries received since the last read; a passing error repeats one page."""
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": self._filter(),
            "orderBy": "timestamp asc",
            "pageSize": PAGE,
        }
        read = googleapi.read_retry()(self.client)
        while True:
            answer = read(body)
            yield from answer.get("entries", ())
            if not answer.get("nextPageToken"):
                return
            body = body | {"pageToken": answer["nextPageToken"]}

    def _filter(self) -> str:
        words = ['resource.type="ml_job"', f'resource.labels.job_id="{self.job_id}"']
        if self.since is not None:
            back = (self.since - OVERLAP).astimezone(UTC).isoformat().replace("+00:00", "Z")
            words.append(f'receiveTimestamp>="{back}"')
        return " AND ".join(words)


def replica_of(name: str) -> str:
    """Return worker-1 for workerpool1-1; any other name stays as it is."""
    match = re.fullmatch(r"workerpool([0-9]+)-([0-9]+)", name)
    return f"{role_of(int(match[1]))}-{match[2]}" if match else name


def _line(entry: dict[str, Any]) -> LogLine:
    labels = entry.get("resource", {}).get("labels", {})
    payload = next((entry[kind] for kind in _PAYLOADS if kind in entry), "")
    text = payload.get("message", payload) if isinstance(payload, dict) else payload
    return LogLine(
        time=_time(entry.get("timestamp") or entry.get("receiveTimestamp")),
        replica=replica_of(labels.get("task_name", SERVICE)),
        severity=str(entry.get("severity") or "DEFAULT"),
        text=str(text).rstrip("\n"),
        trial=entry.get("labels", {}).get("ml.googleapis.com/trial_id"),
        fields=dict(payload) if isinstance(payload, dict) else {},
    )


_PAYLOADS = ("textPayload", "jsonPayload", "protoPayload")


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else datetime.now(UTC)
