"""This machine as a backend: the folders of its jobs behind the calls of the protocol.

No call needs an engine, because a job's folder holds all about the job, also for another process.
`builder job local` runs a job (run.py).
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.local.folder import FOLDER, LOCAL, STATE, STUDY, folder_of
from builder.jobs.backends.local.logs import LocalLog
from builder.jobs.backends.protocol import JobStatus, LogReader, ReplicaStatus, by_age
from builder.jobs.pools import Pool


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
        folders = [path.parents[1] for path in (self.root / FOLDER).glob(f"*/{LOCAL}/{STATE}")]
        jobs = [_status(folder) for folder in folders if _content(folder)]
        wanted = [job for job in jobs if name in (None, job.display_name)]
        return tuple(sorted(wanted, key=by_age, reverse=True)[:limit])

    def find(self, name: str) -> JobStatus:
        """Return the job of a name, a file or a folder.

        Raises InputError where none has run there, and for a study: its trials are the jobs.
        """
        folder = folder_of(self.root, name)
        if (folder / STUDY).is_file():
            raise InputError(
                f"{folder}: a study; name one of its trials",
                f"{folder}/1; builder tensorboard {folder.name} shows all",
            )
        if not (folder / LOCAL / STATE).is_file():
            raise InputError(f"{folder}: no job has run there", "builder job local JOB")
        return self.get(str(folder))

    def get(self, name: str) -> JobStatus:
        """Return the job in a folder. Raises OutsideError where none has run there, or where its
        state cannot be read."""
        state = Path(name) / LOCAL / STATE
        if not state.is_file():
            raise OutsideError(f"{name}: no job has run there", "builder job local JOB")
        if not _content(Path(name)):
            raise OutsideError(f"{state}: cannot be read", "builder job local JOB writes it anew")
        return _status(Path(name))

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the process that runs the job to end it, as Ctrl-C does there."""
        now = self.get(job.name)
        if now.active:
            owner = str(_content(Path(job.name)).get("owner", ""))
            host, pid = owner.split(":")[:2]
            if host != containers.owner(os.getpid()).split(":")[0]:
                raise OutsideError(f"{job.display_name} runs on {host}", "cancel it there")
            os.kill(int(pid), signal.SIGTERM)
        return self.get(job.name)

    def logs(self, job: JobStatus, replica: str | None = None) -> LogReader:
        """Return a reader of the lines in the job's folder."""
        return LocalLog(Path(job.name), replica)


def _content(folder: Path) -> dict[str, Any]:
    """Return what the runner wrote about a job; {} where it wrote nothing."""
    try:
        value = json.loads((folder / LOCAL / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _status(folder: Path) -> JobStatus:
    content = _content(folder)
    state, message = content["state"], content["message"]
    if state == "running" and containers.is_gone(str(content.get("owner", ""))):
        state, message = "lost", "the builder that ran it was killed"
    written = datetime.fromisoformat(content["time"])
    started = written - timedelta(seconds=content["seconds"])
    counts = Counter(replica["name"].rpartition("-")[0] for replica in content["replicas"])
    fields = ("name", "state", "exit_code", "restarts", "seconds")
    return JobStatus(
        name=str(folder),
        display_name=content["job"],
        state=state,
        created=started,
        started=started,
        ended=None if state in ("running", "lost") else written,
        error=message,
        image=content.get("image", ""),
        output=str(folder),
        pools=tuple(Pool(role, count) for role, count in counts.items()),
        replicas=tuple(
            ReplicaStatus(**{field: replica[field] for field in fields})
            for replica in content["replicas"]
        ),
        failed_code=content.get("exit_code") or None,
    )
