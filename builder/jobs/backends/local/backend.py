"""This machine as a backend: the folders of its jobs behind the calls of the protocol.

A job's folder holds its status, which its runner writes, and its lines. So no call needs an engine,
and another process may ask. `builder job local` runs a job (run.py) or a study (study.py).
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from builder.core import files
from builder.core.backends import Flags
from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine, LogReader, by_age
from builder.jobs.description.job import Job
from builder.jobs.machines import Pool
from builder.jobs.submission import FOLDER

if TYPE_CHECKING:
    from builder.jobs.backends.local.replicas import LocalJob

LOCAL = "local"
"""The part of a job's folder that the runner writes."""
STATE = "state.json"
NOTES = "job.log"
"""The lines of the runner itself: starts, restarts, the end."""

LABEL = "training-image-factory.job"
_STATUS = TypeAdapter(JobStatus)


def connect(root: Path, _job: Job | None, _flags: Flags, _name: str | None) -> ThisMachine:
    return ThisMachine(root)


@dataclass(frozen=True)
class ThisMachine:
    title = "this machine"
    name = "local"

    root: Path

    @property
    def location(self) -> str:
        return str(self.root / FOLDER)

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        states = (self.root / FOLDER).glob(f"*/{LOCAL}/{STATE}")
        jobs = [job for state in states if (job := read(state.parents[1]))]
        wanted = [job for job in jobs if name in (None, job.display_name)]
        return tuple(sorted(wanted, key=by_age, reverse=True)[:limit])

    def find(self, name: str) -> JobStatus:
        """Return the job of a name, a file or a folder. Raises InputError where none ran there."""
        folder = folder_of(self.root, name)
        if ran_at(self.root, name) is None:
            raise InputError(f"{folder}: no job has run there", "builder job local JOB")
        return self.get(str(folder))

    def get(self, name: str) -> JobStatus:
        """Return the job in a folder. Raises OutsideError where its state cannot be read."""
        job = read(Path(name))
        if job is None:
            what = f"{Path(name) / LOCAL / STATE}: cannot be read"
            raise OutsideError(what, "builder job local JOB writes it anew")
        return job

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the process that runs the job to end it, as Ctrl-C does there."""
        now = self.get(job.name)
        if now.active:
            host, pid = now.labels[containers.OWNER].split(":")[:2]
            if host != containers.owner(os.getpid()).split(":")[0]:
                raise OutsideError(f"{job.display_name} runs on {host}", "cancel it there")
            os.kill(int(pid), signal.SIGTERM)
        return self.get(job.name)

    def logs(self, job: JobStatus) -> LogReader:
        return LocalLog(Path(job.name))


@dataclass
class LocalLog(LogReader):
    folder: Path
    _positions: defaultdict[Path, int] = field(default_factory=lambda: defaultdict(int))

    def read(self) -> tuple[LogLine, ...]:
        lines = list[LogLine]()
        for path in sorted((self.folder / LOCAL).glob("*.log")):
            name = SERVICE if path.name == NOTES else path.stem
            lines += LogLine.stamped(self._new(path), name)
        return tuple(sorted(lines, key=lambda line: line.time))

    def _new(self, path: Path) -> list[str]:
        """Return the whole lines that a file has grown by; a shorter file begins again."""
        position = self._positions[path]
        try:
            if path.stat().st_size < position:
                position = 0
            with path.open("rb") as file:
                file.seek(position)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._positions[path] = position + len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of a local job, by its name, its file, or the folder itself."""
    if Path(name).is_dir() and (Path(name) / LOCAL).is_dir():
        return Path(name)
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    return root / FOLDER / stem


def ran_at(root: Path, name: str) -> float | None:
    """Return when a job wrote into its folder last, in seconds since 1970; None for no job."""
    state = folder_of(root, name) / LOCAL / STATE
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
