"""Run a job as containers on this machine, as Vertex AI would.

Each job has a network, each replica a container; the job ends when the chief ends. Any image works:
its lines are shown as they are, and lines of JSON with `event` and `step` are understood. The job's
folder holds what the trainer writes, and in `local/` the state (state.json), each replica's lines
(<replica>.log) and its use of CPU and memory (<replica>.stats).

Restarts (Vertex AI, "Understanding the training service"): a replica that a signal ends (exit code
128 and above: 134, 139, 143 ...) starts again, up to 5 times; after that all replicas start again,
up to 3 times. An exit code from 1 to 127 is an error of the program and ends the job, as does a
replica that ran out of memory.

No container and no network stays, whatever ends the run: signals only set a flag, each thing has a
label, and the next run removes what a killed builder left.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import container, folder, usage
from builder.jobs.backends.local.container import described
from builder.jobs.backends.local.folder import LOCAL, NOTES, STATE
from builder.jobs.backends.local.kills import Kill
from builder.jobs.backends.local.kills import check as check_kills
from builder.jobs.backends.local.replicas import LocalJob, Replica, replicas
from builder.jobs.pools import replica_names
from builder.jobs.running import (
    JobEvent,
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

RESTARTS_OF_A_REPLICA = 5
RESTARTS_OF_A_JOB = 3
STATS_EVERY = 2.0
"""Seconds between two measurements of a container."""
NO_IMAGE = "builder image TARGET makes one of this project's; docker pull fetches another"


def run(
    engine: ContainerEngine,
    job: LocalJob,
    *,
    kills: Sequence[Kill] = (),
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> Outcome:
    """Run a job to its end. Returns how it ended, even where it failed.

    It may run in any thread; in the main thread, Ctrl-C and SIGTERM end the job in order. Raises
    InputError for an image, a folder or a replica that does not exist, OutsideError for an engine
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
    check_kills(kills, replica_names(job.pools))
    stop = stop or Stop()
    with signals(stop), refusals(job.image, NO_IMAGE):
        client = engine.client
        folder.sweep(client)
        image = str(client.images.get(job.image).id)
        with only_run(job.folder, f"{LOCAL}/.lock"):
            cluster = _Cluster(client, image, job, identity, kills, stop, on_event)
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
    """A replica while the job runs. restarts: after a failure of its own, as far as they count."""

    replica: Replica
    log: Path
    container: Any = None
    attempt: int = 0
    restarts: int = 0
    state: ReplicaState = "waiting"
    exit_code: int | None = None
    began: float = 0.0
    seconds: float = 0.0
    memory: int = 0
    last: str = ""

    def result(self) -> ReplicaResult:
        seconds = self.seconds
        if self.state == "running":
            seconds += time.monotonic() - self.began
        return ReplicaResult(
            self.replica.name,
            self.state,
            self.exit_code,
            max(0, self.attempt - 1),
            round(seconds, 1),
            self.memory,
            self.replica.gpus,
        )


@dataclass(frozen=True)
class _Said:
    name: str
    attempt: int
    text: str


@dataclass(frozen=True)
class _Ended:
    name: str
    attempt: int


@dataclass
class _Cluster:
    """One run's state machine. Only the thread of `run` changes it; other threads only fill the
    queue and the files of statistics."""

    client: docker.DockerClient
    image: str
    job: LocalJob
    identity: str
    kills: Sequence[Kill]
    stop: Stop
    on_event: OnJobEvent
    queue: queue.Queue[_Said | _Ended] = field(default_factory=queue.Queue)
    running: dict[str, _Running] = field(default_factory=dict)
    restarts: int = 0
    step: int | None = None
    began: float = 0.0
    state: State = "running"
    message: str = ""
    failed: str = ""

    def run(self) -> Outcome:
        self.began = time.monotonic()
        place = self.job.folder / LOCAL
        folder.open_up(self.job.folder)
        place.mkdir(exist_ok=True)
        for old in (*place.glob("*.log"), *place.glob("*.stats")):
            old.unlink()
        gpus = usage.machine_gpus(self.client)
        for one in replicas(self.job, self.identity, gpus):
            self.running[one.name] = _Running(one, place / f"{one.name}.log")
        self._note("", f"{_count(self.running)} of {self.job.image}, in {self.job.folder}")
        self._network()
        pending = list(self.kills)
        self._start_all()
        while self.state == "running":
            if self.stop.requests:
                self._end("cancelled", "stopped on request")
                break
            now = time.monotonic() - self.began
            if now > self.job.timeout:
                self._end("failed", f"not done after its timeout of {self.job.timeout:.0f} s")
                break
            due = [kill for kill in pending if self._due(kill, now)]
            pending = [kill for kill in pending if kill not in due]
            for kill in due:
                self._strike(kill)
            try:
                self._handle(self.queue.get(timeout=0.2))
            except queue.Empty:
                continue
        self._drain()
        for kill in pending:
            self._note(kill.replica, "the job ended before it was to be killed")
        self._write()
        return self._outcome()

    # --- events ---

    def _handle(self, event: _Said | _Ended) -> None:
        one = self.running[event.name]
        if isinstance(event, _Said):
            with one.log.open("a", encoding="utf-8") as file:
                stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
                file.write(f"{stamp} {event.text}\n")
            self._tell(ReplicaLine(event.name, event.text))
            one.last = contract.words(event.text) or one.last
            step = contract.step_of(event.text)
            if step is not None:
                self.step = max(self.step or 0, step)
        elif event.attempt == one.attempt and one.state == "running":
            self._ended(one)

    def _ended(self, one: _Running) -> None:
        """Handle the end of a container, whether by itself or by `_strike`."""
        code, out_of_memory = self._collect(one)
        if code == 0:
            one.state = "succeeded"
            self._note(one.replica.name, "done")
            if one.replica.primary:
                self._end("succeeded", "the chief is done")
        elif self.state == "running":
            self._failed(one, code, out_of_memory)
        self._write()

    def _failed(self, one: _Running, code: int, out_of_memory: bool) -> None:
        name, how = one.replica.name, described(code, out_of_memory)
        one.state = "failed"
        if self._chief_was_done_before(one):
            self._note(name, f"{how}, after the chief was done")
            self._end("succeeded", "the chief is done")
        elif self.stop.requests:
            self._note(name, f"{how}; the job is being stopped: not started again")
        elif code < 128 or out_of_memory or self.job.restarts == "never":
            self.failed = name
            self._end("failed", f"{name} {how}" + (f": {one.last[:200]}" if one.last else ""))
        elif one.restarts < RESTARTS_OF_A_REPLICA:
            one.restarts += 1
            counted = f"restart {one.restarts} of {RESTARTS_OF_A_REPLICA}"
            if self.job.restarts == "job":
                self._note(name, f"{how}: all replicas are started again ({counted})")
                self._restart_all()
            else:
                self._note(name, f"{how}: started again ({counted})")
                self._start(one)
        elif self.restarts < RESTARTS_OF_A_JOB:
            self.restarts += 1
            self._note(
                "",
                f"{name} {how} after {RESTARTS_OF_A_REPLICA} restarts: the whole job is started "
                f"again ({self.restarts} of {RESTARTS_OF_A_JOB})",
            )
            for other in self.running.values():
                other.restarts = 0
            self._restart_all()
        else:
            self.failed = name
            self._end("failed", f"{name} {how}; no restarts are left")

    def _restart_all(self) -> None:
        """Start all replicas again, unless the chief succeeded while they were being stopped."""
        self._stop_all(grace=0.0)
        if any(one.replica.primary and one.state == "succeeded" for one in self.running.values()):
            self._end("succeeded", "the chief is done")
        else:
            self._start_all()

    def _chief_was_done_before(self, one: _Running) -> bool:
        """Whether the chief ended with 0 before this replica failed.

        Each replica's end arrives through its own thread, so the engine's times tell the order.
        """
        for chief in self.running.values():
            if chief.replica.primary and chief.state == "running" and chief is not one:
                done, failed = container.end_of(chief.container), container.end_of(one.container)
                return bool(done and failed and done[1] == 0 and done[0] <= failed[0])
        return False

    def broke_off(self, error: BaseException) -> None:
        """Record in state.json that an error of the engine or of the factory ended the run."""
        if self.running:
            asked = isinstance(error, KeyboardInterrupt)
            self.state = "cancelled" if asked else "failed"
            self.message = str(error) or type(error).__name__
            for one in self.running.values():
                if one.state == "running":
                    one.state = "stopped"
            with contextlib.suppress(OSError):
                self._write()

    def _end(self, state: State, message: str) -> None:
        self.state, self.message = state, message
        self._note("", message)
        self._stop_all(self.job.grace)

    def _due(self, kill: Kill, seconds: float) -> bool:
        if kill.seconds is not None:
            return seconds >= kill.seconds
        return self.step is not None and kill.step is not None and self.step >= kill.step

    def _strike(self, kill: Kill) -> None:
        one = self.running[kill.replica]
        at = f"at step {self.step}" if kill.step is not None else f"after {kill.seconds:.0f} s"
        if one.state != "running":
            self._note(kill.replica, f"was to be killed {at}, but does not run")
            return
        if kill.soft:
            self._note(kill.replica, f"preempted {at}: SIGTERM, {self.job.grace:.0f} s of grace")
            container.send(one.container, "SIGTERM")
            timer = threading.Timer(self.job.grace, container.send, (one.container, "SIGKILL"))
            timer.daemon = True
            timer.start()
        else:
            self._note(kill.replica, f"killed {at}, on purpose")
            container.send(one.container, "SIGKILL")

    # --- containers ---

    def _network(self) -> None:
        self.client.networks.create(
            container.network_of(self.identity),
            driver="bridge",
            labels=container.labels(self.job, self.identity),
            check_duplicate=True,
        )

    def _start_all(self) -> None:
        for one in self.running.values():
            if self.stop.requests:
                return
            self._start(one)

    def _start(self, one: _Running) -> None:
        """Start a new container under the replica's name; its lines go to the queue."""
        if one.container is not None:
            one.container.remove(force=True, v=True)
        one.attempt += 1
        one.exit_code = None
        wanted = container.spec(self.job, one.replica, self.identity)
        wanted["image"] = self.image
        labels = container.labels(self.job, self.identity)
        one.container = container.create(self.client, wanted, labels)
        _follow(one.container, one.replica.name, one.attempt, self.queue)
        one.container.start()
        one.began, one.state = time.monotonic(), "running"
        threading.Thread(target=self._measure, args=(one, one.container), daemon=True).start()
        self._write()

    def _collect(self, one: _Running) -> tuple[int, bool]:
        """The exit code of a container that has ended, and whether it ran out of memory."""
        code, out_of_memory = container.wait(one.container)
        one.exit_code = code
        one.seconds += time.monotonic() - one.began
        return code, out_of_memory

    def _stop_all(self, grace: float) -> None:
        """End all replicas: SIGTERM, then SIGKILL after the grace or at a further request."""
        alive = [one for one in self.running.values() if one.state == "running"]
        if grace > 0:
            for one in alive:
                container.send(one.container, "SIGTERM")
        until, insisted = time.monotonic() + grace, self.stop.requests
        while alive:
            if time.monotonic() >= until or self.stop.requests > max(insisted, 1):
                for one in alive:
                    container.send(one.container, "SIGKILL")
                until = float("inf")
            try:
                event = self.queue.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, _Said):
                self._handle(event)
                continue
            one = self.running[event.name]
            if one in alive and event.attempt == one.attempt:
                alive.remove(one)
                code, _ = self._collect(one)
                one.state = "succeeded" if code == 0 else "stopped"

    def _drain(self) -> None:
        """Handle the lines that arrived together with the end."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self.queue.get_nowait()
                if isinstance(event, _Said):
                    self._handle(event)

    def _measure(self, one: _Running, measured_container: Container) -> None:
        """Write down the container's use of CPU and memory until it ends; runs in a thread."""
        path = one.log.with_suffix(".stats")
        last = 0.0
        with contextlib.suppress(Exception):  # the container or the engine is gone
            for sample in measured_container.stats(stream=True, decode=True):
                measured = usage.usage(sample)
                if measured is None:
                    continue
                one.memory = max(one.memory, measured["memory"])
                if time.monotonic() - last >= STATS_EVERY:
                    last = time.monotonic()
                    if one.replica.gpus:
                        measured |= usage.gpu_usage(usage.nvidia_smi(), one.replica.gpus)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"time": round(time.time(), 1), **measured}) + "\n")

    # --- telling ---

    def _note(self, replica: str, text: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        with (self.job.folder / LOCAL / NOTES).open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {replica or 'job'}: {text}\n")
        self._tell(Note(replica, text))

    def _tell(self, event: JobEvent) -> None:
        """Tell an event. A terminal that is gone ends the run, with the trainers' grace."""
        try:
            self.on_event(event)
        except OSError:
            self.on_event = ignore
            self.stop.request(signal.SIGHUP)

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
            restarts=self.restarts,
            folder=str(self.job.folder),
            replicas=tuple(one.result() for one in self.running.values()),
            step=self.step,
        )

    def _write(self) -> None:
        """state.json, for `builder job watch`."""
        content = {
            **asdict(self._outcome()),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "owner": containers.owner(os.getpid()),
            "image": self.job.image,
        }
        files.write(self.job.folder / LOCAL / STATE, json.dumps(content, indent=1) + "\n")


# --- pieces ---------------------------------------------------------------------------------------


def _count(replicas: Sized) -> str:
    return "1 replica" if len(replicas) == 1 else f"{len(replicas)} replicas"


def _follow(
    attached: Container, name: str, attempt: int, lines: queue.Queue[_Said | _Ended]
) -> None:
    """Put the container's lines into the queue from now on, each whole, then its end."""
    containers.follow(
        attached,
        lambda text: lines.put(_Said(name, attempt, text)),
        lambda: lines.put(_Ended(name, attempt)),
    )
