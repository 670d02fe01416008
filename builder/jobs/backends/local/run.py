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
import json
import os
import queue
import signal
import time
import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import container, folder
from builder.jobs.backends.local.folder import LOCAL, NOTES, STATE
from builder.jobs.backends.local.replicas import LocalJob, Replica, replicas
from builder.jobs.running import (
    Note,
    OnJobEvent,
    Outcome,
    ReplicaLine,
    ReplicaResult,
    ReplicaState,
    State,
    Stop,
    ignore,
    only_run,
    signals,
)

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

RESTARTS = 5
"""How often a replica is started again."""
NO_IMAGE = "builder image TARGET makes one of this project's; docker pull fetches another"


def run(
    engine: ContainerEngine,
    job: LocalJob,
    *,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> Outcome:
    """Run a job to its end. Returns how it ended, even where it failed.

    It may run in any thread; in the main thread, Ctrl-C and SIGTERM end the job in order. Raises
    InputError for an image or a folder that does not exist, OutsideError for an engine
    that refuses.
    """
    if not engine.host.startswith(("unix://", "npipe://")):
        raise OutsideError(
            f"the engine at {engine.host} is on another machine: it cannot mount the job's folder",
            "unset DOCKER_HOST, or use --engine private",
        )
    if job.records is not None and not job.records.is_dir():
        raise InputError(f"--records {job.records}: there is no such folder", "name a folder")
    identity = uuid.uuid4().hex[:10]
    stop = stop or Stop()
    with signals(stop), refusals(job.image, NO_IMAGE):
        client = engine.client
        folder.sweep(client)
        image = str(client.images.get(job.image).id)
        with only_run(job.folder, f"{LOCAL}/.lock"):
            cluster = _Cluster(client, image, job, identity, stop, on_event)
            try:
                return cluster.run()
            except BaseException as error:
                cluster.broke_off(error)
                raise
            finally:
                containers.remove(client, f"{folder.LABEL}={identity}")
                folder.give_back(job.folder)


@dataclass
class _Running:
    """A replica while the job runs. attempt: how many containers it has had."""

    replica: Replica
    log: Path
    container: Any = None
    attempt: int = 0
    state: ReplicaState = "waiting"
    exit_code: int | None = None
    began: float = 0.0
    seconds: float = 0.0
    last: str = ""

    @property
    def name(self) -> str:
        return self.replica.name

    def result(self) -> ReplicaResult:
        seconds = self.seconds
        if self.state == "running":
            seconds += time.monotonic() - self.began
        again = max(0, self.attempt - 1)
        return ReplicaResult(self.name, self.state, self.exit_code, again, round(seconds, 1))


@dataclass(frozen=True)
class _Heard:
    """A line of a container, or its end: text is None."""

    name: str
    attempt: int
    text: str | None = None


@dataclass
class _Cluster:
    """One run's state machine. Only `run` changes it; other threads fill the queue."""

    client: docker.DockerClient
    image: str
    job: LocalJob
    identity: str
    stop: Stop
    on_event: OnJobEvent
    queue: queue.Queue[_Heard] = field(default_factory=queue.Queue)
    running: dict[str, _Running] = field(default_factory=dict)
    step: int | None = None
    began: float = field(default_factory=time.monotonic)
    state: State = "running"
    message: str = ""
    failed: str = ""

    def run(self) -> Outcome:
        own = self.job.folder / LOCAL
        folder.open_up(self.job.folder)
        own.mkdir(exist_ok=True)
        for old in own.glob("*.log"):
            old.unlink()
        for replica in replicas(self.job, self.identity, container.machine_gpus(self.client)):
            self.running[replica.name] = _Running(replica, own / f"{replica.name}.log")
        count = f"{len(self.running)} replica{'s' if len(self.running) > 1 else ''}"
        self._note("", f"{count} of {self.job.image}, in {self.job.folder}")
        self._network()
        self._start_all()
        while self.state == "running":
            if self.stop.requests:
                self._end("cancelled", "stopped on request")
            elif time.monotonic() - self.began > self.job.timeout:
                self._end("failed", f"not done after its timeout of {self.job.timeout:.0f} s")
            else:
                with contextlib.suppress(queue.Empty):
                    self._handle(self.queue.get(timeout=0.2))
        with contextlib.suppress(queue.Empty):  # the lines that arrived together with the end
            while True:
                self._handle(self.queue.get_nowait())
        self._write()
        return self._outcome()

    def broke_off(self, error: BaseException) -> None:
        """Record in state.json that an error of the engine or of the factory ended the run."""
        if self.running:
            self.state = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            self.message = str(error) or type(error).__name__
            for replica in self.running.values():
                if replica.state == "running":
                    replica.state = "stopped"
            with contextlib.suppress(OSError):
                self._write()

    # --- events ---

    def _handle(self, event: _Heard) -> None:
        replica = self.running[event.name]
        if event.text is not None:
            with replica.log.open("a", encoding="utf-8") as file:
                file.write(f"{_now()} {event.text}\n")
            self.on_event(ReplicaLine(event.name, event.text))
            replica.last = contract.words(event.text) or replica.last
            step = contract.step_of(event.text)
            if step is not None:
                self.step = max(self.step or 0, step)
        elif event.attempt == replica.attempt and replica.state == "running":
            self._ended(replica)

    def _ended(self, replica: _Running) -> None:
        """Handle the end of a container, with its exit code."""
        code, out_of_memory = self._collect(replica)
        if code == 0:
            replica.state = "succeeded"
            self._note(replica.name, "done")
            if replica.replica.primary:
                self._end("succeeded", "the chief is done")
        elif self.state == "running":
            self._failed(replica, code, out_of_memory)
        self._write()

    def _failed(self, replica: _Running, code: int, out_of_memory: bool) -> None:
        name, how = replica.name, container.described(code, out_of_memory)
        replica.state = "failed"
        if self._chief_was_done_before(replica):
            self._note(name, f"{how}, after the chief was done")
            self._end("succeeded", "the chief is done")
        elif self.stop.requests:
            self._note(name, f"{how}; the job is being stopped: not started again")
        elif code < 128 or out_of_memory or self.job.restarts == "never":
            self.failed = name
            last = f": {replica.last[:200]}" if replica.last else ""
            self._end("failed", f"{name} {how}{last}")
        elif replica.attempt <= RESTARTS:
            counted = f"restart {replica.attempt} of {RESTARTS}"
            if self.job.restarts == "job":
                self._note(name, f"{how}: all replicas are started again ({counted})")
                self._restart_all()
            else:
                self._note(name, f"{how}: started again ({counted})")
                self._start(replica)
        else:
            self.failed = name
            self._end("failed", f"{name} {how}; no restarts are left")

    def _restart_all(self) -> None:
        """Start all replicas again, unless the chief succeeded while they were being stopped."""
        self._stop_all(grace=0.0)
        if self._chief.state == "succeeded":
            self._end("succeeded", "the chief is done")
        else:
            self._start_all()

    @property
    def _chief(self) -> _Running:
        return next(replica for replica in self.running.values() if replica.replica.primary)

    def _chief_was_done_before(self, replica: _Running) -> bool:
        """Tell whether the chief ended with 0 before this replica failed.

        Each replica's end arrives through its own thread, so the engine's times tell the order.
        """
        if replica is self._chief or self._chief.state != "running":
            return False
        done = container.end_of(self._chief.container)
        failed = container.end_of(replica.container)
        return bool(done and failed and done[1] == 0 and done[0] <= failed[0])

    def _end(self, state: State, message: str) -> None:
        self.state, self.message = state, message
        self._note("", message)
        self._stop_all(self.job.grace)

    # --- containers ---

    def _network(self) -> None:
        self.client.networks.create(
            container.network_of(self.identity),
            driver="bridge",
            labels=container.labels(self.job, self.identity),
            check_duplicate=True,
        )

    def _start_all(self) -> None:
        for replica in self.running.values():
            if self.stop.requests:
                return
            self._start(replica)

    def _start(self, replica: _Running) -> None:
        """Start a new container under the replica's name; its lines go to the queue."""
        if replica.container is not None:
            replica.container.remove(force=True, v=True)
        replica.attempt += 1
        replica.exit_code = None
        replica.container = container.create(
            self.client, self.image, self.job, replica.replica, self.identity
        )
        _follow(replica.container, replica.name, replica.attempt, self.queue)
        replica.container.start()
        replica.began, replica.state = time.monotonic(), "running"
        self._write()

    def _collect(self, replica: _Running) -> tuple[int, bool]:
        """Return the exit code of a container that has ended, and whether it ran out of memory."""
        code, out_of_memory = container.wait(replica.container)
        replica.exit_code = code
        replica.seconds += time.monotonic() - replica.began
        return code, out_of_memory

    def _stop_all(self, grace: float) -> None:
        """End all replicas: SIGTERM, then SIGKILL after the grace or at a further request."""
        alive = [replica for replica in self.running.values() if replica.state == "running"]
        if grace > 0:
            for replica in alive:
                container.send(replica.container, "SIGTERM")
        until, insisted = time.monotonic() + grace, self.stop.requests
        while alive:
            if time.monotonic() >= until or self.stop.requests > max(insisted, 1):
                for replica in alive:
                    container.send(replica.container, "SIGKILL")
                until = float("inf")
            try:
                event = self.queue.get(timeout=0.1)
            except queue.Empty:
                continue
            if event.text is not None:
                self._handle(event)
                continue
            replica = self.running[event.name]
            if replica in alive and event.attempt == replica.attempt:
                alive.remove(replica)
                code, _ = self._collect(replica)
                replica.state = "succeeded" if code == 0 else "stopped"

    # --- telling ---

    def _note(self, replica: str, text: str) -> None:
        with (self.job.folder / LOCAL / NOTES).open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {replica or 'job'}: {text}\n")
        self.on_event(Note(replica, text))

    def _outcome(self) -> Outcome:
        code = 0
        if self.state == "cancelled":
            code = 128 + (self.stop.signal or signal.SIGTERM)
        elif self.state == "failed":
            code = (self.running[self.failed].exit_code if self.failed else None) or 1
        return Outcome(
            job=self.job.name,
            state=self.state,
            exit_code=code,
            message=self.message,
            seconds=round(time.monotonic() - self.began, 1),
            folder=str(self.job.folder),
            replicas=tuple(replica.result() for replica in self.running.values()),
            step=self.step,
        )

    def _write(self) -> None:
        """Write state.json, from which other commands know the job."""
        content = {
            **asdict(self._outcome()),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "owner": containers.owner(os.getpid()),
            "image": self.job.image,
        }
        files.write(self.job.folder / LOCAL / STATE, json.dumps(content, indent=1) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _follow(attached: Container, name: str, attempt: int, lines: queue.Queue[_Heard]) -> None:
    """Put the container's lines into the queue from now on, each whole, then its end."""
    containers.follow(
        attached,
        lambda text: lines.put(_Heard(name, attempt, text)),
        lambda: lines.put(_Heard(name, attempt)),
    )
