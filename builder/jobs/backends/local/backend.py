"""This machine as a backend: the folders of its jobs behind the calls of the protocol.

No call needs an engine, because a job's folder holds all about the job, also for another process.
`builder job local` runs a job (run.py) or a study (study.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local.folder import FOLDER, LOCAL, NOTES, STATE
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine, LogReader, by_age


@dataclass(frozen=True)
class ThisMachine:
    """The local jobs of one project."""

    title = "this machine"
    name = "local"

    root: Path

    @property
    def location(self) -> str:
        """Return the folder of the jobs' folders."""
        return str(self.root / FOLDER)

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """Return the jobs of the project, the newest first; with `name` those of one
        description."""
        states = (self.root / FOLDER).glob(f"*/{LOCAL}/{STATE}")
        jobs = [job for state in states if (job := folders.read(state.parents[1]))]
        wanted = [job for job in jobs if name in (None, job.display_name)]
        return tuple(sorted(wanted, key=by_age, reverse=True)[:limit])

    def find(self, name: str) -> JobStatus:
        """Return the job of a name, a file or a folder. Raises InputError where none ran there."""
        folder = folders.folder_of(self.root, name)
        if folders.ran_at(folder) is None:
            raise InputError(f"{folder}: no job has run there", "builder job local JOB")
        return self.get(str(folder))

    def get(self, name: str) -> JobStatus:
        """Return the job in a folder. Raises OutsideError where its state cannot be read."""
        job = folders.read(Path(name))
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
        """Return a reader of the lines in the job's folder."""
        return LocalLog(Path(job.name))


@dataclass
class LocalLog:
    """The lines of a job's replicas and of its runner."""

    folder: Path
    _positions: defaultdict[Path, int] = field(default_factory=lambda: defaultdict(int))

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time."""
        lines = []
        for path in sorted((self.folder / LOCAL).glob("*.log")):
            name = SERVICE if path.name == NOTES else path.stem
            for written in self._new(path):
                stamp, _, text = written.partition(" ")
                with contextlib.suppress(ValueError):
                    lines.append(LogLine.printed(datetime.fromisoformat(stamp), name, text))
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
