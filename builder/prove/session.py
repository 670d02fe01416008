"""The containers that a proof runs of its image.

Each container is hermetic: it has no network, a root file system that it cannot write to, no right
that a container can do without, and bounds on memory, processes and time. Files get in and out
through one volume, so that nothing of this machine is mounted. What a probe asks and what a
training run prints comes back as a `Run`.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import queue
import re
import tarfile
import tempfile
import threading
import time
import uuid
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Self

from builder import contract
from builder.audit import sources
from builder.audit.audited import Gpu
from builder.config.pins import Pin
from builder.config.uv import Platform
from builder.contract import TrainerEvent
from builder.core.events import OnEvent, RunningStep, ignore
from builder.devicecode.pruning.rule import compute_capability
from builder.engine import containers, gpus
from builder.facts.frameworks import Part
from builder.image import download
from builder.prove.image import PATH, Image, Subject
from builder.prove.judge import Run
from builder.prove.ledger import Ledger
from builder.registry import manifests

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

LABEL: Final = "training-image-factory.smoke"
"""The label of everything on the engine that belongs to a proof."""

FOLDER: Final = "/smoke"
"""Where the session's volume is in a container."""
RECORDS: Final = f"{FOLDER}/records"
JOB: Final = f"{FOLDER}/job"
PROBES: Final = f"{FOLDER}/probes"
HOOK: Final = f"{PROBES}/hook"
PART: Final = f"{PROBES}/part"
"""A file that a hook needs, and the image lacks."""

_NO_ACCELERATOR: Final[Mapping[str, str]] = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    contract.ACCELERATOR: contract.CPU,
    # Else libtpu waits two minutes for Google's metadata server, which is not there.
    "TPU_SKIP_MDS_QUERY": "1",
}
_A_GPU: Final = {contract.ACCELERATOR: contract.accelerator(contract.ANY_GPU, 1)}

_TIMES_ASKED: Final = 2
"""How often a probe is asked that ends well and says nothing."""
NOT_EXECUTED: Final = 127
"""The exit code of a container whose entry point cannot be executed, as a shell gives it."""

Stop = Callable[[Sequence[TrainerEvent]], bool]
"""Whether a container is to be stopped, given the events that it has reported so far."""

StopSignal = Literal["SIGKILL", "SIGTERM"]
"""How a container is stopped: as if its machine were gone, or as a service asks it to end."""


@dataclass(frozen=True)
class Limits:
    """What a container may use. memory, output and disk in bytes; processes counts threads too;
    times in seconds."""

    memory: int = 4 * 1024**3
    memory_with_gpu: int = 16 * 1024**3
    """Of this machine, where a GPU is used: CUDA and its libraries take gigabytes of it."""
    output: int = 64 * 1024**2
    """What it may print, after which it is stopped."""
    disk: int = 4 * 1024**3
    """What its volumes may hold, after which it is stopped."""
    processes: int = 4096
    probe_seconds: float = 600.0
    training_seconds: float = 900.0
    compile_seconds: float = 120.0
    grace_seconds: float = 30.0
    """How long it may take to end after SIGTERM (Kubernetes' default)."""


@dataclass(frozen=True)
class Workload:
    """How much is trained: optimizer steps of the whole run, examples a step, steps between two
    checkpoints."""

    steps: int = 400
    batch: int = 16
    checkpoint_every: int = 40


@dataclass
class Sandbox:
    """The containers and the volume of one image. At the end of the block they are gone."""

    client: docker.DockerClient
    image: Any
    """The engine's object of the image."""
    title: str = "image"
    """A part of the containers' names."""
    limits: Limits = field(default_factory=Limits)
    on_event: OnEvent = ignore
    log: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.step = RunningStep("", self.on_event)
        self.config: dict[str, Any] = self.image.attrs.get("Config") or {}
        self.name = f"smoke-{self.title}-{uuid.uuid4().hex[:12]}"
        self.labels = containers.labels(LABEL, self.name)

    def __enter__(self) -> Self:
        self.client.volumes.create(name=self.name, labels=self.labels)
        return self

    def __exit__(self, *_: object) -> None:
        containers.remove(self.client, f"{LABEL}={self.name}")

    def fill(self, records: Path) -> None:
        """Put the records, and a job folder that anybody may write to, into the volume."""
        files = sorted(file for file in records.iterdir() if file.is_file())
        content = {f"records/{file.name}": file.read_bytes() for file in files}
        folders = {"records": 0o755, "probes": 0o755, "job": 0o1777}
        with self.container(["true"], {}) as container:  # it never runs
            container.put_archive(FOLDER, containers.archive(content, folders=folders))

    @property
    def python(self) -> str:
        """The Python that the image's program runs with."""
        first = (self.config.get("Entrypoint") or [""])[0]
        return first if re.match(r"python[\d.]*$", Path(first).name) else "python3"

    def probe(
        self,
        program: str,
        request: Mapping[str, Any],
        imports: Sequence[str] = (),
        user: str = "",
        python: str = "",
    ) -> Run:
        """Run a probe with the Python that the image's program runs with, or another.

        program: a module of the factory, which is copied into the container (see
        builder/prove/probes/__init__.py for what such a program is held to). imports: modules that
        it imports. user: a number, where it is not the image's own.
        python: where it is not the program's. One that ends well without an answer is asked again:
        a busy engine may have lost it (`containers.follow`).
        """
        name, files = program_files(program, imports)
        command = ["-B", f"{PROBES}/{name}", json.dumps(request)]
        for _ in range(_TIMES_ASKED):
            with self.container(command, {}, [python or self.python], user) as container:
                self._put(container, PROBES, files)
                run = self._run(container, self.limits.probe_seconds)
            if run.exit_code or run.answer is not None:
                break
        return run

    def start(
        self,
        arguments: Sequence[str],
        seconds: float,
        steps: int | None = None,
        stop: Stop | None = None,
        stop_signal: StopSignal = "SIGKILL",
        entrypoint: Sequence[str] | None = None,
    ) -> Run:
        """Run the image as a job would, for at most `seconds`; stop it once `stop` says so.

        steps: how many optimizer steps it trains, for the progress that is shown.
        """
        environment = {"PYTHONUNBUFFERED": "1"}
        with self.container(arguments, environment, entrypoint) as container:
            return self._run(container, seconds, stop, steps, stop_signal)

    def start_with(
        self,
        hook: str,
        variable: str,
        request: Mapping[str, Any],
        arguments: Sequence[str],
        entrypoint: Sequence[str] | None = None,
        imports: Sequence[str] = (),
        part: Part | None = None,
        gpu: str = "",
        environment: Mapping[str, str] | None = None,
        programs: Mapping[str, bytes] | None = None,
    ) -> Run:
        """Run the image as a job would, with a module of the factory that Python imports before
        anything else, as its sitecustomize.

        variable: the name of the variable with its request. imports: modules of the factory that it
        imports. part: a file that it finds as PART. gpu: the engine's id of one that it gets.
        environment: variables beside the image's; none of them brings an accelerator. programs:
        scripts that are found by their names before those of the image, in place of its first word
        also by a path.
        """
        shown = self.config.get("Entrypoint") if entrypoint is None else entrypoint
        rest = arguments or (self.config.get("Cmd") if entrypoint is None else None)
        words = [*(shown or ()), *(rest or ())]
        if words and (name := posixpath.basename(words[0])) in (programs or {}):
            entrypoint, arguments = [name], words[1:]
        given = {"PATH": PATH, **manifests.environment(self.config), **(environment or {})}
        first = {"PYTHONPATH": HOOK, **({"PATH": f"{HOOK}/bin"} if programs else {})}
        environment = {
            **(environment or {}),
            "PYTHONUNBUFFERED": "1",
            **{name: ":".join(filter(None, (first[name], given.get(name)))) for name in first},
            variable: json.dumps(request),
        }
        files, limits = hook_files(hook, imports), self.limits
        files |= {f"bin/{name}": content for name, content in (programs or {}).items()}
        with self.container(arguments, environment, entrypoint, gpu=gpu) as container:
            self._put(container, HOOK, files)
            if part:
                with _wheel_file(part, self.step) as archive:
                    container.put_archive(PROBES, archive)
            seconds = limits.training_seconds if gpu else limits.compile_seconds
            return self._run(container, seconds)

    def _put(self, container: Container, folder: str, files: Mapping[str, bytes]) -> None:
        """Put the modules of a program into a folder below PROBES."""
        below = Path(folder).relative_to(PROBES)
        placed = {str(below / path): content for path, content in files.items()}
        folders = sorted({str(each) for path in placed for each in Path(path).parents} - {"."})
        archive = containers.archive(placed, 0o755, folders=dict.fromkeys(folders, 0o755))
        container.put_archive(PROBES, archive)

    @contextlib.contextmanager
    def container(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        entrypoint: Sequence[str] | None = None,
        user: str = "",
        gpu: str = "",
    ) -> Iterator[Container]:
        from docker.types import LogConfig, Mount

        options = gpus.requested([gpu] if gpu else ())
        memory = self.limits.memory_with_gpu if gpu else self.limits.memory
        if entrypoint is not None:
            options["entrypoint"] = list(entrypoint)
        if user:
            options["user"] = user
        container = self.client.containers.create(
            self.image.id,
            list(command),
            name=f"{self.name}-{uuid.uuid4().hex[:6]}",
            labels=self.labels,
            network_mode="none",
            read_only=True,
            mounts=[Mount(FOLDER, self.name)],
            tmpfs={"/tmp": "rw,exec,mode=1777"},
            log_config=LogConfig(type="none"),  # what it prints is read as it comes, and kept once
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=self.limits.processes,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            environment={**environment, **(_A_GPU if gpu else _NO_ACCELERATOR)},
            **options,
        )
        try:
            yield container
        finally:
            _discard(container)

    def _run(
        self,
        container: Container,
        seconds: float,
        stop: Stop | None = None,
        steps: int | None = None,
        stop_signal: StopSignal = "SIGKILL",
    ) -> Run:
        """Start a container and read its lines until it ends, or `stop` or a limit ends it."""
        from docker.errors import APIError

        self.log.append(f"== {self.step.name}: {container.name}")
        began = time.monotonic()
        lines = _Lines(container, began + seconds, self.limits)
        try:
            container.start()
        except APIError as error:  # the entry point is not there, or cannot be executed
            reason = str(error.explanation)
            self.log.append(reason)
            return Run(NOT_EXECUTED, time.monotonic() - began, tail=(reason,))
        events: list[TrainerEvent] = []
        tail: deque[str] = deque(maxlen=200)  # a traceback through a framework is long
        answer: Mapping[str, Any] | None = None
        stopped = False
        for line in lines:
            self.log.append(line)
            self.step.log(contract.words(line))
            fields = contract.fields(line)
            if not fields:
                tail.append(line)
                continue
            answer, event = fields, contract.event(fields)
            if event is None:
                continue
            events.append(event)
            if event.severity == "ERROR" and event.message:
                tail.append(event.message)
            if event.name == contract.STEP and event.step is not None:
                self.step.progress(event.step, steps, "steps")
            if stop is not None and not stopped and stop(events):
                stopped = containers.send(container, stop_signal)
                if stop_signal == "SIGTERM":
                    lines.end_within(self.limits.grace_seconds)
        run = Run(0, time.monotonic() - began, tuple(events), tuple(tail), answer, stopped)
        run = replace(run, timed_out=lines.timed_out, flooded=lines.flooded, filled=lines.filled)
        self.ledger.note("seconds of a container", run.seconds, seconds)
        self.ledger.note("bytes that a container printed", lines.printed, self.limits.output)
        self.ledger.note("bytes in a container's volumes", lines.held, self.limits.disk)
        return self._ended(container, run, stop_signal)

    def _ended(self, container: Container, run: Run, stop_signal: StopSignal) -> Run:
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        self.log.append(f"== exit code {code}")
        # one that was to be killed may have ended on its own in the same moment
        stopped = run.stopped and (code == 137 or stop_signal == "SIGTERM")
        killed = bool(container.attrs["State"].get("OOMKilled"))
        return replace(run, exit_code=code, stopped=stopped, out_of_memory=killed)


@dataclass
class Session(Sandbox):
    """The proof of an image of the project."""

    subject: Subject = field(kw_only=True)
    workload: Workload = field(default_factory=Workload, kw_only=True)
    finished_job: str | None = field(default=None, kw_only=True)
    """The job folder of a training run that ended well."""

    def train(
        self, job: str, steps: int, records: str = RECORDS, every: int | None = None, **more: Any
    ) -> Run:
        """Train into a job folder with the options of builder/contract.py. every: steps between two
        checkpoints, where the workload's are not meant; more: see `start`."""
        every = every or self.workload.checkpoint_every
        arguments = options(job, steps, self.workload.batch, every, records)
        return self.start(arguments, self.limits.training_seconds, steps, **more)

    @cached_property
    def read(self) -> Image:
        stack = self.subject.stack
        gpu = stack.compute_capability and Gpu(
            stack.accelerator.name, compute_capability(stack.compute_capability)
        )
        content = sources.of_engine(self.client, str(self.image.id), self.subject.layers)
        self.ledger.read(content)
        return Image(content, gpu or None, self.subject)


def options(job: str, steps: int, batch: int, every: int, records: str = RECORDS) -> list[str]:
    """Return the options of builder/contract.py. every: steps between two checkpoints."""
    return [
        f"{contract.RECORDS}={records}",
        f"{contract.JOB_DIR}={job}",
        f"{contract.STEPS}={steps}",
        f"{contract.BATCH}={batch}",
        f"{contract.CHECKPOINT_EVERY}={every}",
    ]


def _discard(container: Container) -> None:
    """Remove a container. One that is gone already, or being removed (404, 409), is no error."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


_LOOK: Final = 1.0
"""Seconds between two looks at the volumes; a twentieth of the time goes to them at most."""


class _Lines:
    """The lines of a container, which is killed at a point in time, after so many characters, or
    when its volumes hold too much.

    It waits while nobody takes its lines, so they need no more than a little memory.
    """

    def __init__(self, container: Container, deadline: float, limits: Limits) -> None:
        self.timed_out = self.flooded = self.filled = False
        self.printed = self.held = 0
        self._container, self._deadline, self._limits = container, deadline, limits
        self._next_look = time.monotonic() + _LOOK
        self._ended = threading.Event()
        self._read: queue.Queue[str | None] = queue.Queue(maxsize=1000)
        containers.follow(container, self._put, lambda: self._read.put(None))

    def end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def __iter__(self) -> Iterator[str]:
        while (left := self._deadline - time.monotonic()) > 0 and not self._is_filled():
            try:
                line = self._read.get(timeout=min(left, _LOOK))
            except queue.Empty:
                continue
            if line is None:
                return
            self.printed += len(line)
            self.flooded = self.printed > self._limits.output
            if self.flooded:
                break
            yield line
        self.timed_out = not self.flooded and not self.filled
        self._ended.set()  # the engine ends no container whose lines nobody takes
        with contextlib.suppress(queue.Empty):
            while True:
                self._read.get_nowait()
        containers.send(self._container, "SIGKILL")

    def _is_filled(self) -> bool:
        began = time.monotonic()
        if began >= self._next_look:
            self.held = max(self.held, containers.held(self._container))
            now = time.monotonic()
            self._next_look = now + max(_LOOK, 20 * (now - began))
            self.filled = self.held > self._limits.disk
        return self.filled

    def _put(self, line: str) -> None:
        if not self._ended.is_set():
            self._read.put(line)


def program_files(program: str, imports: Sequence[str]) -> tuple[str, dict[str, bytes]]:
    """Return the file of a module (`builder.prove.probes.imports`), and what is sent as its folder:
    beside it the modules that it imports, in packages that hold nothing else."""
    files = {f"{module.replace('.', '/')}.py": _source(module) for module in imports}
    packages = {str(folder) for path in files for folder in Path(path).parents} - {"."}
    name = f"{program.rpartition('.')[2]}.py"
    inits = dict.fromkeys((f"{package}/__init__.py" for package in packages), b"")
    return name, {name: _source(program), **inits, **files}


def hook_files(hook: str, imports: Sequence[str]) -> dict[str, bytes]:
    """Return what is sent as the folder of a module that Python is to import before all else."""
    name, files = program_files(hook, imports)
    return {"sitecustomize.py": files.pop(name), **files}


@contextlib.contextmanager
def _wheel_file(part: Part, running: RunningStep) -> Iterator[IO[bytes]]:
    """Yield a tar archive of a wheel's file, which is called as PART is. Raises OutsideError."""
    pin = Pin(part.package, part.version, part.sha256, part.bytes)
    here = download.wheel_file(download.home(), pin).is_file()  # then no index is asked
    with (
        download.wheels_of([] if here else [pin], Platform("3.11", 28)) as wheels,
        tempfile.TemporaryFile() as file,
    ):
        wheels.folder.mkdir(parents=True, exist_ok=True)
        progress = partial(running.progress, total=part.bytes, unit="bytes")
        with wheels.fetch(pin, progress) as wheel, zipfile.ZipFile(wheel) as archive:
            entry = tarfile.TarInfo(Path(PART).name)
            entry.size, entry.mode = archive.getinfo(part.path).file_size, 0o644
            with archive.open(part.path) as content, tarfile.open(fileobj=file, mode="w") as made:
                made.addfile(entry, content)
        file.seek(0)
        yield file


def _source(module: str) -> bytes:
    folder, _, name = module.rpartition(".")
    return resources.files(folder).joinpath(f"{name}.py").read_bytes()
