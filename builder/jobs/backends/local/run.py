"""Run a job as containers on this machine, as Vertex AI would.

Each job has a network, each replica a container; the job ends when the chief ends. Any image works:
its lines are shown as they are, and lines of JSON with `event` and `step` are understood. The job's
folder holds what the trainer writes, and in `local/` the state (state.json) and each replica's
lines (<replica>.log).

Restarts (Vertex AI, "Understanding the training service"): a replica that a signal ends (exit code
128 and above: 134, 139, 143 ...) starts again, up to 5 times. An exit code from 1 to 127 is an
error of the program and ends the job, as does a replica that ran out of memory.

No container and no network stays, whatever ends the run: signals only set a flag, each thing has a
label, and the next run removes what a killed builder left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.core.docker_sdk import refusals
from builder.core.errors import OutsideError
from builder.core.events import ignore
from builder.engine import containers, gpus
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import backend
from builder.jobs.backends.local.backend import LOCAL
from builder.jobs.backends.local.replicas import (
    GCS,
    JOB,
    METRICS,
    RECORDS,
    LocalJob,
    Replica,
    replicas,
)
from builder.jobs.backends.protocol import JobStatus, OnLine, ReplicaStatus
from builder.jobs.stopping import Stop, only_run, signals

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.types import Mount

CHIEF = "chief"
RESTARTS = 5
"""How often a replica is started again."""
NO_IMAGE = "builder image TARGET makes one of this project's; docker pull fetches another"
MEASURED = 5.0
"""Seconds between two writes of what replicas use."""
_EXCEPTION = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception)(: \S|$)")
ANOTHER = "wait for it, or give --job-dir another folder"
"""What to do where another run of a job is at work."""


def run(
    engine: ContainerEngine, job: LocalJob, *, stop: Stop | None = None, on_line: OnLine = ignore
) -> JobStatus:
    """Run a job to its end. Returns how it ended, even where it failed.

    on_line: gets each line of a replica, and of the runner itself as the replica SERVICE.

    It may run in any thread; in the main thread, Ctrl-C and SIGTERM end the job in order. Raises
    InputError for an image or a folder that does not exist, OutsideError for an engine
    that refuses.
    """
    if not engine.host.startswith(("unix://", "npipe://")):
        raise OutsideError(
            f"the engine at {engine.host} is on another machine: it cannot mount the job's folder",
            "unset DOCKER_HOST, or use --engine private",
        )
    identity = uuid.uuid4().hex[:10]
    stop = stop or Stop()
    with signals(stop), refusals(job.image, NO_IMAGE):
        client = engine.client
        containers.sweep(client, backend.LABEL)
        image = str(client.images.get(job.image).id)
        with only_run(job.folder / LOCAL, ANOTHER):
            cluster = _Cluster(client, image, job, identity, stop, on_line)
            try:
                return cluster.run()
            except BaseException as error:
                cluster.broke_off(error)
                raise
            finally:
                containers.remove(client, f"{backend.LABEL}={identity}")


@dataclass
class _Running:
    replica: Replica
    log: Path
    container: Any = None
    attempt: int = 0
    """How many containers it has had."""
    state: str = "waiting"
    exit_code: int | None = None
    began: float = 0.0
    seconds: float = 0.0
    last: str = ""
    used: tuple[float | None, int | None] = (None, None)
    gpu: tuple[float | None, int | None] = (None, None)
    """What its last step said of its GPUs."""

    @property
    def name(self) -> str:
        return self.replica.name

    def status(self) -> ReplicaStatus:
        now = time.monotonic() - self.began if self.state == "running" else 0.0
        again, seconds = max(0, self.attempt - 1), round(self.seconds + now, 1)
        unknown = (None, None)
        used, gpu = (self.used, self.gpu) if self.state == "running" else (unknown, unknown)
        own = (*used, len(self.replica.gpus), *gpu)
        return ReplicaStatus(self.name, self.state, self.exit_code, again, seconds, *own)


@dataclass
class _Cluster:
    """One run's state machine. Only the thread of `run` changes it: others use the queue."""

    client: docker.DockerClient
    image: str
    job: LocalJob
    identity: str
    stop: Stop
    on_line: OnLine
    queue: queue.Queue[Callable[[], None]] = field(default_factory=queue.Queue)
    running: dict[str, _Running] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = "running"
    message: str = ""
    failed: _Running | None = None
    grace_ends: float = 0.0
    """When replicas that were told to end are killed; a second request takes the grace away."""
    written: float = 0.0
    """When what the replicas use was written last."""

    def run(self) -> JobStatus:
        own = self.job.folder / LOCAL
        own.mkdir(parents=True, exist_ok=True)
        for old in own.glob("*.log"):
            old.unlink()
        ids = tuple(gpu.id for gpu in gpus.of_machine(self.client))
        for replica in replicas(self.job, self.identity, ids):
            self.running[replica.name] = _Running(replica, own / f"{replica.name}.log")
        count = f"{len(self.running)} replica{'s' if len(self.running) > 1 else ''}"
        self._note(f"{count} of {self.job.image}, in {self.job.folder}")
        self.client.networks.create(
            self._network,
            driver="bridge",
            labels=containers.labels(backend.LABEL, self.identity),
            check_duplicate=True,
        )
        for waiting in self.running.values():
            if not self.stop.requests:
                self._start(waiting)
        while self.state == "running" or self._alive():
            self._mind_the_time()
            with contextlib.suppress(queue.Empty):
                self.queue.get(timeout=0.2)()
        with contextlib.suppress(queue.Empty):  # the lines that arrived together with the end
            while True:
                self.queue.get_nowait()()
        return self.write()

    def broke_off(self, error: BaseException) -> None:
        """Record in state.json that an error of the engine or of the factory ended the run."""
        self.state = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
        self.message = str(error) or type(error).__name__
        for replica in self._alive():
            replica.state = "stopped"
        with contextlib.suppress(OSError):
            self.write()

    def _alive(self) -> list[_Running]:
        return [replica for replica in self.running.values() if replica.state == "running"]

    # --- events ---

    def _mind_the_time(self) -> None:
        """End a job that is to stop, or is late; kill replicas whose grace is over."""
        now = time.monotonic()
        if self.state == "running":
            if self.stop.requests:
                self._end("cancelled", "stopped on request")
            elif now - self.began > self.job.timeout:
                self._end("failed", f"not done after its timeout of {self.job.timeout:.0f} s")
        elif now >= self.grace_ends or self.stop.requests > 1:
            for replica in self._alive():
                containers.send(replica.container, "SIGKILL")

    def _printed(self, replica: _Running, text: str) -> None:
        self.on_line(backend.line(replica.log, replica.name, text))
        replica.last = most_telling(replica.last, text)
        if (event := contract.parse(text)) and event.name == contract.STEP:
            replica.gpu = event.gpu_percent, event.gpu_memory_bytes

    def _ended(self, replica: _Running, attempt: int) -> None:
        """Handle the end of a replica's container, unless it has another one meanwhile."""
        if attempt != replica.attempt or replica.state != "running":
            return
        code, out_of_memory = _wait(replica.container)
        replica.exit_code = code
        replica.seconds += time.monotonic() - replica.began
        if self.state != "running":
            replica.state = "stopped" if code else "succeeded"
        elif code:
            replica.state = "failed"
            self._failed(replica, code, out_of_memory)
        else:
            replica.state = "succeeded"
            self._note(f"{replica.name}: done")
            if replica.replica.role == CHIEF:
                self._end("succeeded", "the chief is done")
        self.write()

    def _failed(self, replica: _Running, code: int, out_of_memory: bool) -> None:
        how = f"{replica.name} {described(code, out_of_memory)}"
        fault = code < 128 or out_of_memory or self.job.restarts == "never"
        if self._chief_is_done():
            self._note(f"{how}, after the chief was done")
            self._end("succeeded", "the chief is done")
        elif self.stop.requests:
            self._note(f"{how}; the job is being stopped: not started again")
        elif replica.attempt <= RESTARTS and not fault:
            self._note(f"{how}: started again (restart {replica.attempt} of {RESTARTS})")
            self._start(replica)
        else:
            self.failed = replica
            last = f": {replica.last[:200]}" if replica.last else ""
            self._end("failed", how + (last if fault else "; no restarts are left"))

    def _chief_is_done(self) -> bool:
        """Tell whether the chief has ended with 0, though its end may still be on its way here."""
        from docker.errors import NotFound

        chief = self.running[f"{CHIEF}-0"].container
        if chief is None:
            return False
        with contextlib.suppress(NotFound):  # somebody removed it
            chief.reload()
            state = chief.attrs["State"]
            return bool(state["Status"] == "exited" and state["ExitCode"] == 0)
        return False

    def _end(self, state: str, message: str) -> None:
        self.state, self.message = state, message
        self._note(message)
        self.grace_ends = time.monotonic() + self.job.grace
        for replica in self._alive():
            containers.send(replica.container, "SIGTERM")

    def _start(self, replica: _Running) -> None:
        if replica.container is not None:
            replica.container.remove(force=True, v=True)
        replica.attempt += 1
        replica.exit_code, replica.gpu = None, (None, None)
        replica.container = self._create(replica.replica)
        ended = functools.partial(self._ended, replica, replica.attempt)
        containers.follow(
            replica.container,
            lambda text: self.queue.put(functools.partial(self._printed, replica, text)),
            lambda: self.queue.put(ended),
        )
        replica.container.start()
        replica.began, replica.state = time.monotonic(), "running"
        containers.measure(replica.container, functools.partial(self._measured, replica))
        self.write()

    def _measured(self, replica: _Running, cpu: float, memory: int) -> bool:
        """Hand over what a replica uses, and tell whether it still runs."""
        self.queue.put(functools.partial(self._uses, replica, cpu, memory))
        return replica.state == "running"

    def _uses(self, replica: _Running, cpu: float, memory: int) -> None:
        replica.used = cpu, memory
        if time.monotonic() - self.written > MEASURED:
            self.written = time.monotonic()
            self.write()

    @property
    def _network(self) -> str:
        return f"job-{self.identity}"

    def _create(self, replica: Replica) -> Container:
        from docker.types import LogConfig

        aliases = self.client.api.create_endpoint_config(aliases=[replica.host])
        options = gpus.requested(replica.gpus)
        if self.job.command is not None:
            options["entrypoint"] = list(self.job.command)
        return self.client.containers.create(
            self.image,
            list(replica.arguments) or None,
            name=f"job-{self.identity}-{replica.name}",
            hostname=replica.host,
            user=f"{os.geteuid()}:{os.getegid()}",  # all files are of whoever runs the job
            network=self._network,
            networking_config={self._network: aliases},
            labels=containers.labels(backend.LABEL, self.identity),
            environment={"HOME": "/tmp", **replica.environment},
            mounts=_mounts(self.job),
            shm_size=self.job.shm,
            log_config=LogConfig(
                type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"}
            ),
            **options,
        )

    # --- telling ---

    def _note(self, text: str) -> None:
        self.on_line(backend.note(self.job.folder, text))

    def write(self) -> JobStatus:
        failed = self.failed.exit_code if self.failed else None
        return backend.write(
            self.job,
            self.state,
            self.started,
            self.message,
            replicas=tuple(replica.status() for replica in self.running.values()),
            failed_code=self.stop.code if self.state == "cancelled" else failed,
        )


# --- a replica as a container ---------------------------------------------------------------------


def _mounts(job: LocalJob) -> list[Mount]:
    from docker.types import Mount

    folders = {
        JOB: job.folder.parent if job.trial else job.folder,
        RECORDS: job.records,
        GCS: job.buckets if job.buckets.is_dir() else None,
        METRICS: job.trial.metrics if job.trial else None,
    }
    return [
        Mount(target, str(source.absolute()), "bind", read_only=target == RECORDS)
        for target, source in folders.items()
        if source is not None
    ]


def _wait(container: Container) -> tuple[int, bool]:
    """Wait for a container's end. Returns its exit code, and whether it ran out of memory.

    137 for a container that somebody removed.
    """
    from docker.errors import NotFound

    try:
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        return code, bool(container.attrs["State"].get("OOMKilled"))
    except NotFound:
        return 137, False


def most_telling(before: str, text: str) -> str:
    """Return which of two lines says more about an end: an exception stays over plain lines after
    it, such as a launcher's; else the later one."""
    words = contract.words(text)
    stays = _EXCEPTION.match(before) and not contract.fields(text) and not _EXCEPTION.match(words)
    return before if stays else words or before


def described(code: int, out_of_memory: bool = False) -> str:
    if out_of_memory:
        return "ran out of memory"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended with exit code {code} ({signal.Signals(code - 128).name})"
    return f"failed with exit code {code}"
