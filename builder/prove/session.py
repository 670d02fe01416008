"""The containers that one proof runs of its image.

Each container is hermetic: it has no network, a root file system that it cannot write to, no right
that a container can do without, and bounds on memory, processes and time. Files get in and out
through one volume, so that nothing of this machine is mounted. What a probe asks and what a
training run prints comes back as a `Run`.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import re
import tarfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from builder import contract
from builder.contract import TrainerEvent
from builder.core.events import OnEvent, RunningStep, ignore
from builder.engine import containers
from builder.prove import audit
from builder.prove.run import Run
from builder.prove.subject import Subject

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from builder.devicecode.images import ImageContent

LABEL: Final = "training-image-factory.smoke"
"""The label of everything on the engine that belongs to a proof."""

APP: Final = "/app"
"""Where an image has its program."""

FOLDER: Final = "/smoke"
"""Where the session's volume is in a container."""
RECORDS: Final = f"{FOLDER}/records"
JOB: Final = f"{FOLDER}/job"
PROBES: Final = f"{FOLDER}/probes"

_NO_ACCELERATOR: Final = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    contract.ACCELERATOR: contract.CPU,
    # Else libtpu waits two minutes for Google's metadata server, which is not there.
    "TPU_SKIP_MDS_QUERY": "1",
}

NOT_EXECUTED: Final = 127
"""The exit code of a container whose entry point cannot be executed, as a shell gives it."""

Stop = Callable[[Sequence[TrainerEvent]], bool]
"""Whether a container is to be stopped, given the events that it has reported so far."""

StopSignal = Literal["SIGKILL", "SIGTERM"]
"""How a container is stopped: as if its machine were gone, or as a service asks it to end."""


@dataclass(frozen=True)
class Limits:
    """What a container may use. memory in bytes; processes counts threads too; times in seconds.

    grace_seconds: how long it may take to end after SIGTERM (Kubernetes' default).
    """

    memory: int = 4 * 1024**3
    processes: int = 4096
    probe_seconds: float = 600.0
    training_seconds: float = 900.0
    grace_seconds: float = 30.0


@dataclass(frozen=True)
class Workload:
    """How much is trained: optimizer steps of the whole run, examples a step, steps between two
    checkpoints."""

    steps: int = 400
    batch: int = 16
    checkpoint_every: int = 40


@dataclass(frozen=True)
class Gpus:
    """The ids of this machine's GPUs that an image is made for; `note` says why there are none."""

    ids: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Session:
    """The containers and the volume of one proof. At the end of the block they are gone.

    image: the engine's object of the image; log: every line that a container printed; step: the
    check that runs; finished_job: the job folder of a training run that ended well.
    """

    client: docker.DockerClient
    subject: Subject
    image: Any
    limits: Limits = field(default_factory=Limits)
    workload: Workload = field(default_factory=Workload)
    on_event: OnEvent = ignore
    log: list[str] = field(default_factory=list)
    finished_job: str | None = None

    def __post_init__(self) -> None:
        self.step = RunningStep("", self.on_event)
        self.config: dict[str, Any] = self.image.attrs.get("Config") or {}
        self.name = f"smoke-{self.subject.target}-{uuid.uuid4().hex[:12]}"
        self.labels = containers.labels(LABEL, self.name)

    def __enter__(self) -> Session:
        self.client.volumes.create(name=self.name, labels=self.labels)
        return self

    def __exit__(self, *_: object) -> None:
        containers.remove(self.client, f"{LABEL}={self.name}")

    def fill(self) -> None:
        """Put the records, and a job folder that anybody may write to, into the volume."""
        files = sorted(file for file in self.subject.records.iterdir() if file.is_file())
        content = {f"records/{file.name}": file.read_bytes() for file in files}
        folders = {"records": 0o755, "probes": 0o755, "job": 0o1777}
        with self.container(["true"], {}) as container:  # it never runs
            container.put_archive(FOLDER, _archive(content, folders))

    @cached_property
    def content(self) -> ImageContent:
        """What the image's layers hold: libraries and secrets."""
        return audit.of_engine(self.client, str(self.image.id), self.subject.layers)

    @cached_property
    def gpus(self) -> Gpus:
        """This machine's GPUs that the image is made for, by their compute capability."""
        from docker.errors import APIError

        stack = self.subject.stack
        if stack.accelerator.kind != "gpu":
            return Gpus(note=f"this image is for {stack.accelerator.kind.upper()}")
        if "nvidia" not in (self.client.info().get("Runtimes") or {}):
            return Gpus(note="no GPU on this engine: trained on the CPU")
        try:
            run = self.probe("builder.prove.probes.devices", {}, gpus=["all"])
        except APIError as error:
            return Gpus(note=f"the engine gave no GPU ({error.explanation}): trained on the CPU")
        devices = (run.answer or {}).get("seen", {}).get("devices", [])
        fitting = [d for d in devices if d["compute_capability"] == stack.compute_capability]
        if not fitting:
            others = ", ".join(f"{d['name']} ({d['compute_capability']})" for d in devices)
            note = f"the GPU here is another one ({others or 'none'}): trained on the CPU"
            return Gpus(note=note)
        return Gpus(tuple(str(device["index"]) for device in fitting))

    def probe(
        self,
        program: str,
        request: Mapping[str, Any],
        as_root: bool = False,
        gpus: Sequence[str] = (),
        imports: Sequence[str] = (),
    ) -> Run:
        """Run a probe with the Python that the image's program runs with.

        program: a module or a package of the factory, which is copied into the container (see
        builder/prove/probes/__init__.py for what such a program is held to). imports: modules that
        it imports.
        """
        files: dict[str, bytes] = {}
        for name in (program, *imports):
            files |= program_files(name)
        first = (self.config.get("Entrypoint") or [""])[0]
        python = first if re.match(r"python[\d.]*$", Path(first).name) else "python3"
        start = next(iter(files)).partition("/")[0]
        command = ["-B", f"{PROBES}/{start}", json.dumps(request)]
        with self.container(command, {}, [python], as_root, gpus) as container:
            container.put_archive(PROBES, _archive(files))
            return self._run(container, self.limits.probe_seconds)

    def start(
        self,
        arguments: Sequence[str],
        seconds: float,
        steps: int | None = None,
        stop: Stop | None = None,
        gpus: Sequence[str] = (),
        stop_signal: StopSignal = "SIGKILL",
        entrypoint: Sequence[str] | None = None,
    ) -> Run:
        """Run the image as a job would, for at most `seconds`; stop it once `stop` says so.

        steps: how many optimizer steps it trains, for the progress that is shown.
        """
        environment = {"PYTHONUNBUFFERED": "1"}
        with self.container(arguments, environment, entrypoint, gpus=gpus) as container:
            return self._run(container, seconds, stop, steps, stop_signal)

    @contextlib.contextmanager
    def container(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        entrypoint: Sequence[str] | None = None,
        as_root: bool = False,
        gpus: Sequence[str] = (),
    ) -> Iterator[Container]:
        """Create a container, which is removed at the end of the block.

        gpus: the ids of the GPUs that it is given; `["all"]` gives every one.
        """
        from docker.types import DeviceRequest, Mount

        options: dict[str, Any] = {}
        if entrypoint is not None:
            options["entrypoint"] = list(entrypoint)
        if as_root:  # to read every user's files: the whole image, /tmp included
            options.update(user="0:0", cap_add=["DAC_READ_SEARCH"])
        else:
            options["tmpfs"] = {"/tmp": "rw,exec,mode=1777"}
        if gpus:
            ids = {"count": -1} if list(gpus) == ["all"] else {"device_ids": list(gpus)}
            options["device_requests"] = [DeviceRequest(capabilities=[["gpu"]], **ids)]
        container = self.client.containers.create(
            self.image.id,
            list(command),
            name=f"{self.name}-{uuid.uuid4().hex[:6]}",
            labels=self.labels,
            network_mode="none",
            read_only=True,
            mounts=[Mount(FOLDER, self.name)],
            mem_limit=self.limits.memory,
            memswap_limit=self.limits.memory,
            pids_limit=self.limits.processes,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            environment={**({} if gpus else _NO_ACCELERATOR), **environment},
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
        """Start a container and follow it to its end."""
        from docker.errors import APIError

        self.log.append(f"== {self.step.name}: {container.name}")
        began = time.monotonic()
        try:
            lines = _started(container)
        except APIError as error:  # the entry point is not there, or cannot be executed
            reason = str(error.explanation)
            self.log.append(reason)
            return Run(NOT_EXECUTED, time.monotonic() - began, tail=(reason,))
        return self._follow(container, lines, began, seconds, stop, steps, stop_signal)

    def _follow(
        self,
        container: Container,
        lines: queue.Queue[str | None],
        began: float,
        seconds: float,
        stop: Stop | None,
        steps: int | None,
        stop_signal: StopSignal,
    ) -> Run:
        """Read a container's lines until it ends, and stop it where `stop` or the time says so."""
        events: list[TrainerEvent] = []
        tail: deque[str] = deque(maxlen=40)
        answer: Mapping[str, Any] | None = None
        stopped, timed_out = False, False
        deadline = began + seconds
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                timed_out = True
                _send(container, "SIGKILL")
                break
            if line is None:
                break
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
                stopped = _send(container, stop_signal)
                if stop_signal == "SIGTERM":
                    deadline = min(deadline, time.monotonic() + self.limits.grace_seconds)
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        self.log.append(f"== exit code {code}")
        return Run(
            exit_code=code,
            seconds=time.monotonic() - began,
            events=tuple(events),
            tail=tuple(tail),
            answer=answer,
            # it may have ended on its own in the same moment
            stopped=stopped and (code == 137 or stop_signal == "SIGTERM"),
            timed_out=timed_out,
            out_of_memory=bool(container.attrs["State"].get("OOMKilled")),
        )


def _discard(container: Container) -> None:
    """Remove a container. One that is gone already, or being removed (404, 409), is no error."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _send(container: Container, name: StopSignal) -> bool:
    """Send a container's first process a signal; False where it has ended already."""
    from docker.errors import APIError

    try:
        container.kill(name)
    except APIError:
        return False
    return True


def _started(container: Container) -> queue.Queue[str | None]:
    """Start a container, and return its lines as they come, then None."""
    lines: queue.Queue[str | None] = queue.Queue()
    containers.follow(container, lines.put, lambda: lines.put(None))
    container.start()
    return lines


def program_files(name: str) -> dict[str, bytes]:
    """Return the files of a module (`builder.prove.probes.contents`) or of a package, by their path
    below the folder that they lie in."""
    parent, _, last = name.rpartition(".")
    folder = resources.files(parent)
    if folder.joinpath(f"{last}.py").is_file():
        return {f"{last}.py": folder.joinpath(f"{last}.py").read_bytes()}

    def files(at: Traversable, below: str) -> Iterator[tuple[str, bytes]]:
        for entry in sorted(at.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                yield from files(entry, f"{below}{entry.name}/")
            elif entry.name.endswith(".py"):
                yield f"{below}{entry.name}", entry.read_bytes()

    return dict(files(folder.joinpath(last), f"{last}/"))


def _archive(files: Mapping[str, bytes], folders: Mapping[str, int] | None = None) -> bytes:
    """Return a tar archive of folders (path -> mode) and of files that everybody may read."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, mode in (folders or {}).items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
