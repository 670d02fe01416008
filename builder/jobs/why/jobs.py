"""A job of any backend as a run to be diagnosed: its state, its error, its lines by time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import SERVICE, Backend, JobStatus, LogLine
from builder.jobs.why import text
from builder.jobs.why.diagnose import JobLog, Line, State
from builder.jobs.why.logs import by_our_trainer

FAILED = "FAILED"
"""What our trainer leaves in its folder when it gives up: {"code": ..., "message": ...}."""
MARKER = 1 << 20
"""Bytes that are read of it."""
MOST = 100_000
"""Lines of a job that are looked at: the newest."""

_STATES: Mapping[str, State] = {
    "queued": "waiting",
    "pending": "waiting",
    "paused": "waiting",
    "running": "running",
    "updating": "running",
    "cancelling": "running",
    "succeeded": "succeeded",
    "partially_succeeded": "succeeded",
    "failed": "failed",
    "expired": "failed",
    "lost": "failed",
    "cancelled": "cancelled",
}


def of_job(backend: Backend, status: JobStatus) -> JobLog:
    """Return what a backend knows of a job. A log that may not be read is a note of the run."""
    notes = []
    lines: tuple[LogLine, ...] = ()
    try:
        lines = backend.logs(status).read()
    except OutsideError as error:
        notes.append(f"its log cannot be read: {error.message}")
    if len(lines) > MOST:
        notes.append(f"older lines that were not read: {len(lines) - MOST:,}")
    all_lines = [part for line in lines[-MOST:] for part in _meant(line)]
    marker = _marker(status)
    if "message" in marker and not any(line.event == "error" for line in all_lines):
        all_lines += _parts(str(marker["message"]), FAILED, SERVICE, "error")
    all_lines += _parts(status.error, f"what {backend.title} says", SERVICE)
    if status.state == "expired":
        all_lines += _parts("the job exceeded its timeout", "the job's state", SERVICE)
    names = (replica.name for replica in status.replicas)
    return JobLog(
        name=text.harmless(status.display_name),
        lines=tuple(all_lines),
        state=_STATES.get(status.state, "unknown"),
        exit_code=_exit_code(status, marker),
        out_of_memory=next(
            (name for name in names if status.error.startswith(f"{name} ran out of memory")), ""
        ),
        ours=bool(marker) or by_our_trainer(all_lines),
        notes=tuple(text.harmless(note) for note in notes),
    )


def _meant(line: LogLine) -> Iterator[Line]:
    event = line.fields.get("event", "")
    replica = f"trial {line.trial}, {line.replica}" if line.trial else line.replica
    when = f"{line.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return _parts(line.text, f"{replica}, {when}", replica, event if isinstance(event, str) else "")


def _parts(words: str, where: str, replica: str, event: str = "") -> Iterator[Line]:
    for part in text.parts(words):
        yield Line(part, text.harmless(where), replica, event)


def _exit_code(status: JobStatus, marker: Mapping[str, Any]) -> int | None:
    """Return the code of the replica that failed, else the one that our trainer left."""
    if status.state not in ("failed", "lost"):
        return None
    codes = (
        status.failed_code,
        *(replica.exit_code for replica in status.replicas if replica.state == "failed"),
        marker.get("code"),
    )
    return next((code for code in codes if isinstance(code, int) and code), None)


def _marker(status: JobStatus) -> dict[str, Any]:
    """Return the trainer's word in a folder of this machine; {} for an earlier run's."""
    path = Path(status.output) / FAILED
    if "://" in status.output or not status.output:
        return {}
    try:
        if status.started and path.stat().st_mtime < status.started.timestamp() - 1:
            return {}
        with path.open("rb") as file:
            marker = json.loads(file.read(MARKER))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}
