"""Submitting a job: the same description makes one job, whatever breaks on the way.

The job's key, a hash of all that it asks for, stands in the job's labels or in its name. A command
looks for that key once before it creates anything, in the backend's list and in what this machine
remembers, because a list may lag behind. Where the answer to its own request gets lost, it looks
again, and leaves the rest to the next command with the same description.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core import files
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.jobs.backends.protocol import (
    SUCCEEDED,
    AlreadySubmitted,
    JobStatus,
    LostAnswer,
    RemoteBackend,
    by_age,
)
from builder.jobs.ready import Ready

FOLDER = Path("build") / "jobs"
"""The folder of a project in which this machine keeps what it knows of its jobs."""
LOOKS_AFTER = (0.0, 1.0, 4.0)
"""Seconds before each look for a job whose answer got lost; a list was seen to lag by a second."""


@dataclass(frozen=True)
class Submitted:
    job: JobStatus
    reason: str = ""
    """Why this command created none, "" where it did."""

    @property
    def created(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Memory:
    """In a file, of each description: the key, backend and whole name of the job submitted last."""

    folder: Path
    """Shared by this machine's commands."""

    @classmethod
    def of(cls, root: Path) -> Memory:
        return cls(root / FOLDER)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.submitted"

    def newest(self, name: str) -> list[str]:
        """Return key, backend and whole name of a description's newest job; [] for none."""
        with contextlib.suppress(FileNotFoundError):
            return self._file(name).read_text(encoding="utf-8").splitlines()
        return []

    def add(self, name: str, key: str, backend: str, job: JobStatus) -> None:
        files.write(self._file(name), f"{key}\n{backend}\n{job.name}\n")

    def newest_backend(self, name: str) -> tuple[str, float] | None:
        """Return the backend of that job, and when it was submitted in seconds since 1970."""
        newest = self.newest(name)
        return (newest[1], self._file(name).stat().st_mtime) if len(newest) == 3 else None

    def lock(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no other command of this machine submits this description."""
        return files.locked(self.folder / f".{name}.submit.lock")


@dataclass(frozen=True)
class SubmissionPlan:
    run: int
    attempt: int
    job: JobStatus | None
    """The one that it takes, None where it creates the attempt of this run."""
    known: tuple[JobStatus, ...]
    """The jobs with the same key."""


def plan(
    backend: RemoteBackend, ready: Ready, memory: Memory, *, again: bool = False
) -> SubmissionPlan:
    """Return what `submit` would do now. Raises OutsideError."""
    known = _known(backend, backend.key(ready), memory.newest(ready.job.id))
    run = max((job.run for job in known), default=1) + (again and bool(known))
    reusable = [job for job in known if job.run == run and job.reusable]
    attempt = 1 + max((job.attempt for job in known if job.run == run), default=0)
    return SubmissionPlan(run, attempt, min(reusable, key=by_age, default=None), tuple(known))


def submit(
    backend: RemoteBackend,
    ready: Ready,
    memory: Memory,
    *,
    again: bool = False,
    on_event: OnEvent = ignore,
) -> Submitted:
    """Submit a job, unless it is there already.

    A job that is active or has succeeded is returned. One that failed, expired or was cancelled is
    created anew with the same job directory, where the trainer finds its checkpoints. again: run it
    a second time, in a directory of its own. Raises OutsideError.
    """
    name, key = ready.job.id, backend.key(ready)
    with step(f"submit {name}", on_event) as running, memory.lock(name):
        planned = plan(backend, ready, memory, again=again)
        if job := planned.job:
            done, state = job.state in SUCCEEDED, job.state.replace("_", " ")
            sent = Submitted(job, f"it {state} before" if done else f"it is {state} already")
        else:
            sent = _created(backend, ready, planned, key)
        memory.add(name, key, backend.name, sent.job)
        running.cached = not sent.created
    return sent


def _known(backend: RemoteBackend, key: str, newest: Sequence[str]) -> list[JobStatus]:
    """Return the jobs with this key; the backend may not list this machine's newest one yet."""
    listed = list(backend.with_key(key))
    if newest[:2] == [key, backend.name] and newest[2] not in {job.name for job in listed}:
        with contextlib.suppress(OutsideError):
            listed.append(backend.get(newest[2]))
    return listed


def _created(backend: RemoteBackend, ready: Ready, planned: SubmissionPlan, key: str) -> Submitted:
    """Create the job; where the answer gets lost, look whether it was created."""
    before = {job.name for job in planned.known}
    try:
        return Submitted(backend.submit(ready, planned.run, planned.attempt))
    except AlreadySubmitted as other:
        return Submitted(other.job, "another command has submitted it at the same time")
    except LostAnswer:
        for pause in LOOKS_AFTER:
            time.sleep(pause)
            for job in backend.with_key(key):
                if job.name not in before:
                    return Submitted(job)
        raise
