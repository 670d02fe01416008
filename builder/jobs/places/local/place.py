"""This machine as a place: the folders of its jobs behind the calls of the protocol.

Every call but `create` works without an engine, because a job's folder tells all about the job,
also to another process.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.engine.containers import ContainerEngine
from builder.jobs.lease import FolderLease, Lease
from builder.jobs.places.local import container
from builder.jobs.places.local import run as local
from builder.jobs.places.local.folder import LOCAL, STATE
from builder.jobs.places.local.logs import LocalLog, LocalUsage
from builder.jobs.places.local.prepare import FOLDER, folder_of
from builder.jobs.places.local.replicas import LocalJob, replicas
from builder.jobs.places.protocol import JobStatus, Log, LogLine, ReplicaStatus, Sample, age
from builder.jobs.pools import Pool
from builder.jobs.running import Stop
from builder.jobs.studies import record

KEY_LENGTH = 12


@dataclass
class _Thread:
    """A job that this process runs."""

    thread: threading.Thread
    stop: Stop
    error: BaseException | None = None


@dataclass(frozen=True)
class ThisMachine:
    """The local jobs of one project. Its requests are `LocalJob`s. engine: needed by `create`."""

    root: Path
    engine: ContainerEngine | None = None
    _threads: dict[str, _Thread] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What people call it."""
        return "this machine"

    @property
    def on(self) -> str:
        """What the option --on calls it."""
        return "here"

    @property
    def where(self) -> str:
        """The folder of the jobs' folders."""
        return str(self.root / FOLDER)

    @property
    def lag(self) -> float:
        """None: the folders tell at once."""
        return 0.0

    # --- starting ---

    def name_of(self, request: LocalJob) -> str:
        """The job's name in its description."""
        return request.name

    def key(self, request: LocalJob) -> str:
        """A hash of everything that the job asks for."""
        asked = asdict(replace(request, key="", run=1))
        return files.hash_of(json.dumps(asked, sort_keys=True, default=str))[:KEY_LENGTH]

    def render(self, request: LocalJob, run: int = 1) -> dict[str, Any]:
        """The containers, as they are on a machine without GPUs."""
        job, identity = self._numbered(request, run), self.key(request)
        specs = [container.spec(job, one, identity) for one in replicas(job, identity)]
        return {"network": container.network_of(identity), "containers": specs}

    def create(self, request: LocalJob, run: int = 1) -> JobStatus:
        """Run the job in a thread of this process; returns when its first container runs.

        The process must stay: a job whose process has ended is `lost`.
        """
        if self.engine is None:
            raise OutsideError("no engine is connected", "builder doctor looks for one")
        job, stop = self._numbered(request, run), Stop()
        state, engine = job.folder / LOCAL / STATE, self.engine
        before = state.stat().st_mtime_ns if state.is_file() else 0

        def work() -> None:
            try:
                local.run(engine, job, stop=stop)
            except BaseException as error:
                running.error = error

        running = _Thread(threading.Thread(target=work, daemon=True), stop)
        self._threads[str(job.folder)] = running
        running.thread.start()
        while not state.is_file() or state.stat().st_mtime_ns == before:
            running.thread.join(0.05)
            if not running.thread.is_alive():
                break
        if running.error is not None:
            raise running.error
        return self.get(str(job.folder))

    def lease(self, request: LocalJob, run: int = 1) -> Lease | None:
        """The file in the job's folder."""
        return FolderLease(self._numbered(request, run).folder)

    def same(self, request: LocalJob) -> list[JobStatus]:
        """The jobs with the request's key, newest first."""
        key = self.key(request)
        folders = request.folder.parent.glob(f"{request.folder.name}*")
        found = [_status(one) for one in folders if _content(one).get("key") == key]
        return sorted(found, key=age, reverse=True)

    def _numbered(self, request: LocalJob, run: int) -> LocalJob:
        """The job with its key; a second run of it has a folder of its own."""
        folder = request.folder
        if run > 1:
            folder = folder.with_name(f"{folder.name}-{run}")
        return replace(request, folder=folder, key=self.key(request), run=run)

    # --- reading ---

    def newest(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """The jobs of the project, newest first; with `name` those of one description."""
        folders = [one.parents[1] for one in (self.root / FOLDER).glob(f"*/{LOCAL}/{STATE}")]
        found = [_status(one) for one in folders if _content(one)]
        wanted = [one for one in found if name is None or one.display_name == name]
        return tuple(sorted(wanted, key=age, reverse=True)[:limit])

    def find(self, name: str) -> JobStatus:
        """The job of a name, a file or a folder. Raises InputError where none has run there."""
        folder = folder_of(self.root, name)
        if not has_run(folder):
            raise InputError(f"{folder}: no job has run there", "builder job local JOB")
        return self.get(str(folder))

    def get(self, name: str) -> JobStatus:
        """The job in a folder. Raises OutsideError where none has run there, or where its state
        cannot be read."""
        state = Path(name) / LOCAL / STATE
        if not state.is_file():
            raise OutsideError(f"{name}: no job has run there", "builder job local JOB")
        if not _content(Path(name)):
            raise OutsideError(f"{state}: cannot be read", "builder job local JOB writes it anew")
        return _status(Path(name))

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the process that runs the job to end it, as Ctrl-C does there."""
        now = self.get(job.name)
        running = self._threads.get(job.name)
        if not now.active:
            return now
        if running is not None:
            running.stop.request()
        else:
            owner = str(_content(Path(job.name)).get("owner", ""))
            host, pid = owner.split(":")[:2]
            if host != containers.owner(os.getpid()).split(":")[0]:
                raise OutsideError(f"{job.display_name} runs on {host}", "cancel it there")
            os.kill(int(pid), signal.SIGTERM)
        return self.get(job.name)

    def log(self, job: JobStatus, replica: str | None = None) -> Log[LogLine]:
        """The lines in the job's folder."""
        return LocalLog(Path(job.name), replica)

    def usage(self, job: JobStatus) -> Log[Sample]:
        """The samples in the job's folder."""
        return LocalUsage(Path(job.name))


def has_run(folder: Path) -> bool:
    """Whether a job runs or ran in a folder. Raises InputError for a study: its trials are jobs."""
    if (folder / record.FILE).is_file():
        ran = {path.parents[1].name for path in folder.glob(f"*/{LOCAL}/{STATE}")}
        trials = sorted(ran, key=lambda name: (len(name), name))
        raise InputError(
            f"{folder}: a study; name one of its trials ({', '.join(trials) or 'none yet'})",
            f"{folder}/{trials[-1] if trials else 1}; builder tensorboard {folder.name} shows all",
        )
    return (folder / LOCAL / STATE).is_file()


def _content(folder: Path) -> dict[str, Any]:
    """What the runner wrote about a job; {} where it wrote nothing."""
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
    if "time" in content:
        written = datetime.fromisoformat(content["time"])
    else:
        written = datetime.fromtimestamp((folder / LOCAL / STATE).stat().st_mtime, UTC)
    started = written - timedelta(seconds=content["seconds"])
    names = ("name", "state", "exit_code", "restarts", "seconds")
    counts = Counter(one["name"].rpartition("-")[0] for one in content["replicas"])
    return JobStatus(
        name=str(folder),
        display_name=content["job"],
        kind="custom",
        state=state,
        region="",
        created=started,
        started=started,
        ended=None if state in ("running", "lost") else written,
        error=message,
        labels={},
        image=content.get("image", ""),
        output=str(folder),
        strategy="standard",
        pools=tuple(Pool(role, count) for role, count in counts.items()),
        replicas=tuple(
            ReplicaStatus(**{name: one[name] for name in names}) for one in content["replicas"]
        ),
        run=content.get("run", 1),
        code=content.get("exit_code") or None,
    )
