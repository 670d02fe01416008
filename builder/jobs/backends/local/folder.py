"""The folder of a local job: what lies where, and the job's status, which its runner writes."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from builder.core import files
from builder.engine import containers
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine
from builder.jobs.pools import Pool

if TYPE_CHECKING:
    from builder.jobs.backends.local.replicas import LocalJob

FOLDER = Path("build") / "jobs"
"""The folder of the local jobs' folders, in the project."""
LOCAL = "local"
"""The part of a job's folder that the runner writes."""
STATE = "state.json"
NOTES = "job.log"
"""The lines of the runner itself: starts, restarts, the end."""

LABEL = "training-image-factory.job"
_STATUS = TypeAdapter(JobStatus)


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of a local job, by its name, its file, or the folder itself."""
    if Path(name).is_dir() and (Path(name) / LOCAL).is_dir():
        return Path(name)
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    return root / FOLDER / stem


def ran_at(folder: Path) -> float | None:
    """Return when a job wrote into its folder last, in seconds since 1970; None for no job."""
    state = folder / LOCAL / STATE
    return state.stat().st_mtime if state.is_file() else None


def write(job: LocalJob, state: str, started: datetime, error: str, **more: Any) -> JobStatus:
    """Write a job's status as it is now into its folder, with this process as its owner, and return
    it. more: further fields of JobStatus."""
    folder = str(job.folder)
    status = JobStatus(
        name=folder,
        display_name=job.name,
        state=state,
        created=started,
        started=started,
        ended=None if state == "running" else datetime.now(UTC),
        error=error,
        image=job.image,
        output=folder,
        pools=tuple(Pool(pool.role, pool.count) for pool in job.pools),
        labels={containers.OWNER: containers.owner(os.getpid())},
        **more,
    )
    text = _STATUS.dump_json(status, indent=1).decode()
    files.write(job.folder / LOCAL / STATE, text + "\n")
    return status


def read(folder: Path) -> JobStatus | None:
    """Return the status in a job's folder; None where there is none that can be read.

    A job whose runner was killed is lost.
    """
    try:
        status = _STATUS.validate_json((folder / LOCAL / STATE).read_bytes())
    except (OSError, ValueError):
        return None
    status = replace(status, name=str(folder))
    if status.state == "running" and containers.is_gone(status.labels.get(containers.OWNER, "")):
        return replace(status, state="lost", error="the builder that ran it was killed")
    return status


def line(path: Path, replica: str, text: str) -> LogLine:
    """Add a line to a log with its time, and return it."""
    now = datetime.now(UTC)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{now.isoformat(timespec='milliseconds')} {text}\n")
    return LogLine.printed(now, replica, text)


def note(folder: Path, text: str) -> LogLine:
    """Add a line of the runner itself to the job's log, and return it."""
    return line(folder / LOCAL / NOTES, SERVICE, text)


def user() -> str:
    """Return the user of a container: whoever runs the job, so that all files are theirs, whatever
    ends the run."""
    return f"{os.geteuid()}:{os.getegid()}"
