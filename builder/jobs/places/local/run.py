"""Run a job as containers on this machine, as Vertex AI would.

A network, a container a replica, restarts as the service does them, and an end when the chief ends.
Works with any image: what a container prints is shown as it is; lines of JSON with `event` and
`step` are understood, too. Everything lies in the job's folder: what the trainer writes, and in
`local/` the state (state.json), each replica's lines (<replica>.log) and its use of CPU and memory
(<replica>.stats).

Restarts (Vertex AI, "Understanding the training service"): a replica that ends by a signal (exit
code 128 and above: 134, 139, 143 ...) is started again, up to 5 times; after that all of them are,
up to 3 times. An exit code from 1 to 127 is an error of the program and ends the job, as does a
replica that ran out of memory.

Whatever ends the run, no container and no network stays: signals only set a flag, each thing
carries a label, and a run whose builder was killed is removed by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from builder import contract
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.jobs import leftovers
from builder.jobs.places.local.replicas import (
    GCS,
    JOB,
    METRICS,
    RECORDS,
    LocalJob,
    Replica,
    replicas,
)

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

RESTARTS_OF_A_REPLICA = 5
RESTARTS_OF_A_JOB = 3
LOCAL = "local"
"""The folder of a job's folder that the runner writes."""
STATE = "state.json"
NOTES = "job.log"
"""What the runner itself had to say: starts, restarts, the end."""
STATS_EVERY = 2.0
"""Seconds between two measurements of a container."""

State = Literal["running", "succeeded", "failed", "cancelled"]
ReplicaState = Literal["waiting", "running", "succeeded", "failed", "stopped"]

_KILL = re.compile(r"(chief|worker|ps|evaluator):(\d+)@(\d+)(s?)")
_CPUS_MISSING = 1
_TERM: int = signal.SIGTERM
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Kill:
    """A preemption to try: the replica is killed once the job is at `step`, or after `seconds`.

    soft: SIGTERM and the grace period first, as a spot machine does; else it is gone at once.
    """

    role: str
    index: int
    step: int | None = None
    seconds: float | None = None
    soft: bool = False

    @property
    def replica(self) -> str:
        return f"{self.role}-{self.index}"


def parse_kill(text: str, soft: bool = False) -> Kill:
    """`worker:0@50` (at step 50) or `worker:0@12s` (12 s after the start). Raises InputError."""
    match = _KILL.fullmatch(text)
    option = "--preempt" if soft else "--kill"
    if match is None:
        raise InputError(f"{option} {text}: is not ROLE:INDEX@STEP", f"write {option} worker:0@50")
    value = int(match[3])
    at: dict[str, Any] = {"seconds": float(value)} if match[4] else {"step": value}
    return Kill(match[1], int(match[2]), soft=soft, **at)


NO_IMAGE = "builder image TARGET makes one of this project's; docker pull fetches another"


# --- what it tells --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One line that a replica printed."""

    replica: str
    text: str


@dataclass(frozen=True)
class Note:
    """What the runner itself has to say; `replica` is "" where it is about the job."""

    replica: str
    text: str


JobEvent = Line | Note
OnJobEvent = Callable[[JobEvent], None]


def ignore(event: JobEvent) -> None:
    """The callback of someone who does not watch."""


@dataclass(frozen=True)
class ReplicaResult:
    """What became of a replica. seconds: that its containers ran, over all restarts; memory: the
    most that was seen, in bytes."""

    name: str
    state: ReplicaState
    exit_code: int | None
    restarts: int
    seconds: float
    memory: int = 0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `exit_code`: 0, the chief's, 130 or 143 where it was stopped."""

    job: str
    state: State
    exit_code: int
    message: str
    seconds: float
    restarts: int
    folder: str
    replicas: tuple[ReplicaResult, ...]
    step: int | None = None


class Stop:
    """A request to end, from another thread or from a signal. The first one ends the containers
    with SIGTERM and their grace, the second one kills them.

    `of`: another one, whose requests count here, too; not the other way round.
    """

    def __init__(self, of: Stop | None = None) -> None:
        self._of = of
        self._requests = 0
        self._signal = 0

    def request(self, number: int = _TERM) -> None:
        self._requests += 1
        self._signal = number

    @property
    def requests(self) -> int:
        """How often an end was asked for."""
        return self._requests + (self._of.requests if self._of else 0)

    @property
    def signal(self) -> int:
        """The last signal that asked for it, 0 for none."""
        return self._signal or (self._of.signal if self._of else 0)


# --- running --------------------------------------------------------------------------------------


def run(
    engine: ContainerEngine,
    job: LocalJob,
    *,
    kills: Sequence[Kill] = (),
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> Outcome:
    """Run a job to its end. Returns how it ended, even where it failed.

    May run in any thread; in the main one, Ctrl-C and SIGTERM end it in order. Raises InputError
    for an image, a folder or a replica that is not there, OutsideError for an engine that refuses.
    """
    if not engine.host.startswith(("unix://", "npipe://")):
        raise OutsideError(
            f"the engine at {engine.host} is on another machine: it cannot mount the job's folder",
            "unset DOCKER_HOST, or use --engine private",
        )
    if job.records is not None and not job.records.is_dir():
        raise InputError(f"--records {job.records}: there is no such folder", "name a folder")
    identity = uuid.uuid4().hex[:10]
    known = {f"{pool.role}-{index}" for pool in job.pools for index in range(pool.count)}
    for kill in kills:
        if kill.replica not in known:
            raise InputError(
                f"--kill {kill.role}:{kill.index}: the job has no such replica",
                f"it has {', '.join(sorted(known)).replace('-', ':')}",
            )
    stop = stop or Stop()
    with signals(stop), refusals(job.image, NO_IMAGE):
        client = engine.client
        leftovers.sweep(client)
        image = client.images.get(job.image)
        with only_run(job.folder):
            cluster = _Cluster(client, image, job, identity, kills, stop, on_event)
            try:
                return cluster.run()
            except BaseException as error:
                cluster.broke_off(error)
                raise
            finally:
                containers.remove(client, f"{leftovers.LABEL}={identity}")
                leftovers.give_back(job.folder)


@dataclass
class _Running:
    """A replica while the job runs."""

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
            self.restarts,
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
    """One run's state machine. Only `run` and what it calls touch it; threads only fill the
    queue and the files of statistics."""

    client: docker.DockerClient
    image: Any
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
        folder = self.job.folder / LOCAL
        leftovers.open_up(self.job.folder)
        folder.mkdir(exist_ok=True)
        for old in (*folder.glob("*.log"), *folder.glob("*.stats")):
            old.unlink()
        gpus = machine_gpus(self.client)
        for one in replicas(self.job, self.identity, gpus):
            self.running[one.name] = _Running(one, folder / f"{one.name}.log")
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
            self._tell(Line(event.name, event.text))
            one.last = contract.words(event.text) or one.last
            step = contract.step_of(event.text)
            if step is not None:
                self.step = max(self.step or 0, step)
        elif event.attempt == one.attempt and one.state == "running":
            self._ended(one)

    def _ended(self, one: _Running) -> None:
        """A container ended by itself, or was killed by `_strike`."""
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
        """All replicas from the start, unless the chief got done while they were being ended."""
        self._stop_all(grace=0.0)
        if any(one.replica.primary and one.state == "succeeded" for one in self.running.values()):
            self._end("succeeded", "the chief is done")
        else:
            self._start_all()

    def _chief_was_done_before(self, one: _Running) -> bool:
        """Whether the chief ended with 0 before this replica failed.

        The replicas' ends arrive through a thread each: what came first is what the engine says.
        """
        for chief in self.running.values():
            if chief.replica.primary and chief.state == "running" and chief is not one:
                done, failed = _end_of(chief.container), _end_of(one.container)
                return bool(done and failed and done[1] == 0 and done[0] <= failed[0])
        return False

    def broke_off(self, error: BaseException) -> None:
        """The run ends with an error of the engine or of the factory: state.json says so."""
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
            _signal(one.container, "SIGTERM")
            timer = threading.Timer(self.job.grace, _signal, (one.container, "SIGKILL"))
            timer.daemon = True
            timer.start()
        else:
            self._note(kill.replica, f"killed {at}, on purpose")
            _signal(one.container, "SIGKILL")

    # --- containers ---

    def _network(self) -> None:
        self.client.networks.create(
            f"job-{self.identity}", driver="bridge", labels=self._labels(), check_duplicate=True
        )

    def _labels(self) -> dict[str, str]:
        return {
            **containers.labels(leftovers.LABEL, self.identity),
            leftovers.FOLDER: str(self.job.folder.absolute()),
        }

    def _start_all(self) -> None:
        for one in self.running.values():
            if self.stop.requests:
                return
            self._start(one)

    def _start(self, one: _Running) -> None:
        """A new container under the same name, with its followers."""
        if one.container is not None:
            one.container.remove(force=True, v=True)
        one.attempt += 1
        one.exit_code = None
        one.container = self._create(one.replica)
        _follow(one.container, one.replica.name, one.attempt, self.queue)
        one.container.start()
        one.began, one.state = time.monotonic(), "running"
        threading.Thread(target=self._measure, args=(one, one.container), daemon=True).start()
        self._write()

    def _create(self, replica: Replica) -> Container:
        from docker.types import DeviceRequest, LogConfig, Mount

        job = self.job
        folder = job.folder.parent if job.trial else job.folder
        mounts = [Mount(JOB, str(folder.absolute()), "bind")]
        if job.records is not None:
            mounts.append(Mount(RECORDS, str(job.records.absolute()), "bind", read_only=True))
        if job.buckets is not None:
            mounts.append(Mount(GCS, str(job.buckets.absolute()), "bind"))
        if job.trial is not None:
            mounts.append(Mount(METRICS, str(job.trial.metrics.absolute()), "bind"))
        options: dict[str, Any] = {}
        environment = dict(replica.environment)
        user = leftovers.user()
        if user is not None:
            options["user"] = user
            environment.setdefault("HOME", "/tmp")
        if replica.gpus:
            options["device_requests"] = [
                DeviceRequest(device_ids=list(replica.gpus), capabilities=[["gpu"]])
            ]
        if job.command is not None:
            options["entrypoint"] = list(job.command)
        network = f"job-{self.identity}"
        endpoint = self.client.api.create_endpoint_config(aliases=[replica.host])
        return self.client.containers.create(
            self.image.id,
            list(replica.arguments) or None,
            name=f"job-{self.identity}-{replica.name}",
            hostname=replica.host,
            network=network,
            networking_config={network: endpoint},
            labels=self._labels(),
            environment=environment,
            mounts=mounts,
            shm_size=job.shm,
            log_config=LogConfig(
                type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"}
            ),
            **options,
        )

    def _collect(self, one: _Running) -> tuple[int, bool]:
        """Exit code of a container that has ended, and whether it ran out of memory."""
        from docker.errors import NotFound

        try:
            code = int(one.container.wait(timeout=60)["StatusCode"])
            one.container.reload()
            out_of_memory = bool(one.container.attrs["State"].get("OOMKilled"))
        except NotFound:  # somebody removed it
            code, out_of_memory = 137, False
        one.exit_code = code
        one.seconds += time.monotonic() - one.began
        return code, out_of_memory

    def _stop_all(self, grace: float) -> None:
        """SIGTERM to all that run, SIGKILL after the grace, or at once where someone insists."""
        alive = [one for one in self.running.values() if one.state == "running"]
        if grace > 0:
            for one in alive:
                _signal(one.container, "SIGTERM")
        until, insisted = time.monotonic() + grace, self.stop.requests
        while alive:
            if time.monotonic() >= until or self.stop.requests > max(insisted, 1):
                for one in alive:
                    _signal(one.container, "SIGKILL")
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
        """Lines that arrived with the end."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self.queue.get_nowait()
                if isinstance(event, _Said):
                    self._handle(event)

    def _measure(self, one: _Running, container: Container) -> None:
        """In a thread: the container's use of CPU and memory, until it ends."""
        path = one.log.with_suffix(".stats")
        last = 0.0
        with contextlib.suppress(Exception):  # the container or the engine is gone
            for sample in container.stats(stream=True, decode=True):
                measured = usage(sample)
                if measured is None:
                    continue
                one.memory = max(one.memory, measured["memory"])
                if time.monotonic() - last >= STATS_EVERY:
                    last = time.monotonic()
                    if one.replica.gpus:
                        measured |= gpu_usage(_nvidia_smi(), one.replica.gpus)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"time": round(time.time(), 1), **measured}) + "\n")

    # --- telling ---

    def _note(self, replica: str, text: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        with (self.job.folder / LOCAL / NOTES).open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {replica or 'job'}: {text}\n")
        self._tell(Note(replica, text))

    def _tell(self, event: JobEvent) -> None:
        """A terminal that is gone ends the run in order: the trainers get their grace."""
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


def described(code: int, out_of_memory: bool = False) -> str:
    """An exit code in words."""
    if out_of_memory:
        return "ran out of memory"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended with exit code {code} ({signal.Signals(code - 128).name})"
    return f"failed with exit code {code}"


def usage(sample: Any) -> dict[str, Any] | None:
    """`{"cpu": cores, "memory": bytes}` of one of the engine's samples; None where it has none.

    As `docker stats` computes it: memory without the page cache.
    """
    try:
        now, before = sample["cpu_stats"], sample["precpu_stats"]
        used = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
        passed = now["system_cpu_usage"] - before["system_cpu_usage"]
        memory = sample["memory_stats"]["usage"]
        cache = sample["memory_stats"].get("stats") or {}
        cached = cache.get("inactive_file", cache.get("total_inactive_file", 0))
        cores = now.get("online_cpus") or _CPUS_MISSING
    except (KeyError, TypeError):
        return None
    if passed <= 0:
        return None
    return {"cpu": round(used / passed * cores, 3), "memory": max(0, memory - cached)}


def machine_gpus(client: docker.DockerClient) -> tuple[str, ...]:
    """The ids of the GPUs that this engine can hand out; none where it has no runtime for them."""
    if "nvidia" not in (client.info().get("Runtimes") or {}):
        return ()
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return tuple(str(index) for index in range(len(found)))


def gpu_usage(text: str, ids: Sequence[str]) -> dict[str, float]:
    """`{"gpu": share of time busy, "gpu_memory": bytes}` over these GPUs, of nvidia-smi's lines of
    index, utilization.gpu in percent, memory.used in MiB."""
    found = []
    for line in text.splitlines():
        index, *values = (part.strip() for part in line.split(","))
        if index in ids and len(values) == 2 and all(value.isdigit() for value in values):
            found.append((float(values[0]) / 100, float(values[1]) * 2**20))
    if not found:
        return {}
    busy, memory = zip(*found, strict=True)
    return {"gpu": round(sum(busy) / len(busy), 3), "gpu_memory": sum(memory)}


def _nvidia_smi() -> str:
    """What each GPU does; "" where nvidia-smi is missing or does not answer."""
    command = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used"]
    command.append("--format=csv,noheader,nounits")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    return ""


def default_shm() -> int:
    """Half of this machine's memory, in bytes: what a machine's own /dev/shm may hold."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _end_of(container: Container) -> tuple[datetime, int] | None:
    """When a container ended, and with which exit code; None while it runs, or where it is gone."""
    from docker.errors import NotFound

    try:
        container.reload()
    except NotFound:  # somebody removed it
        return None
    state = container.attrs["State"]
    if state.get("Running") or not state.get("FinishedAt"):
        return None
    return datetime.fromisoformat(state["FinishedAt"]), int(state["ExitCode"])


def _signal(container: Container, name: str) -> None:
    from docker.errors import APIError

    with contextlib.suppress(APIError):  # it has ended by itself
        container.kill(name)


def _follow(
    container: Container, name: str, attempt: int, lines: queue.Queue[_Said | _Ended]
) -> None:
    """Put the container's lines into the queue from now on, each whole, then its end."""
    containers.follow(
        container,
        lambda text: lines.put(_Said(name, attempt, text)),
        lambda: lines.put(_Ended(name, attempt)),
    )


@contextlib.contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a terminal that closes set a flag: nothing is cut off in the middle of
    making a container. A fourth one gives up waiting. What is ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.request(number)
        if stop.requests > 3:
            raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    caught = [one for one in _ENDING if one != signal.SIGHUP or not ignored]
    before = {one: signal.signal(one, handle) for one in caught}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def only_run(folder: Path, lock: str = f"{LOCAL}/.lock") -> Iterator[None]:
    """One run at a time in a job's folder. Raises InputError where another one is at work."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.locked(folder / lock, wait=False))
        except BlockingIOError:
            raise InputError(
                f"{folder}: another run of this job is at work there",
                "wait for it, or give --job-dir another folder",
            ) from None
        yield
