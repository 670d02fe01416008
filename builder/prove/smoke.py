"""A real training run in a hermetic container: proof that an image works, without its accelerator.

No network, a read-only root, the image's own user, no capabilities, a memory limit; nothing of this
machine is mounted, so that it works on a remote engine as well. Four checks, in this order:

* loader: TensorFlow finds each library it opens by name (builder/prove/probes/loader.py);
* contents: no secrets, no caches, not root, exactly the locked packages (probes/contents.py);
* training: a run is killed after a checkpoint, the next one resumes there, the loss falls, and
  what was held out is told apart;
* outputs: SavedModel, TensorBoard events and checkpoint can be used (probes/outputs.py).

Of a program that is not ours (`Program`) nobody knows how to train with it. There, two others stand
in the place of the last two: imports (each module that it imports loads; probes/imports.py), and
starts (its entry point answers to --help, or does at least not fall over its imports).

The trainer is started with the image's own entry point and `--records DIR --job-dir DIR --steps N
--batch N --checkpoint-every N`, and has to say what it does in lines of JSON on stdout:
{"event": "step" | "checkpoint" | "resumed", "step": N, "loss": X}, and where it evaluates
{"event": "evaluated", "step": N, "accuracy": X}.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import queue
import re
import signal
import tarfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.core import files
from builder.core.events import OnEvent, StepLog, StepProgress, ignore, step
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.prove.receipts import Check, Problem, Receipt, failure, write

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from builder.spec.catalogue import ImageSpec
    from builder.spec.compatibility import Stack

CHECKS: Mapping[str, int] = {"loader": 1, "contents": 1, "training": 2, "outputs": 1}
"""The checks of a smoke run and their versions: raise one when it starts to ask for more."""

PROGRAM_CHECKS: Mapping[str, int] = {
    "loader": CHECKS["loader"],
    "contents": CHECKS["contents"],
    "imports": 1,
    "starts": 1,
}
"""The checks of an image whose program is not ours."""

HELP_SECONDS = 60.0
"""How long a program may take to answer to --help; one that trains instead is stopped."""

RECEIPT = "receipt.json"
LOG = "smoke.log"
LOSS_FALLS_TO = 0.7
"""The mean of the last losses has to be below this share of the mean of the first ones."""
ACCURACY = 0.9
"""Of the held-out digits, where the trainer tells of an evaluation; one in ten is chance."""

LABEL = "training-image-factory.smoke"
_PLACE = "/smoke"
_RECORDS, _JOB, _PROBES = f"{_PLACE}/records", f"{_PLACE}/job", f"{_PLACE}/probes"
_NO_ACCELERATOR = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    # Without it libtpu asks Google's metadata server for two minutes, where there is none.
    "TPU_SKIP_MDS_QUERY": "1",
}


@dataclass(frozen=True)
class Limits:
    """What a smoke run may use. memory in bytes, processes counts threads too, times in seconds."""

    memory: int = 4 * 1024**3
    processes: int = 4096
    probe_seconds: float = 600.0
    training_seconds: float = 900.0


@dataclass(frozen=True)
class Size:
    """How much is trained: optimizer steps of the whole run, examples a step."""

    steps: int = 400
    batch: int = 16
    checkpoint_every: int = 40


@dataclass(frozen=True)
class Event:
    """One line that the trainer said. `loss` is NaN where it said so; `accuracy` of "evaluated"."""

    name: str
    step: int | None = None
    loss: float | None = None
    message: str = ""
    severity: str = "INFO"
    accuracy: float | None = None


@dataclass(frozen=True)
class Run:
    """What one container did.

    stopped: killed by us, on purpose; timed_out: killed by us, for it took too long; out_of_memory:
    killed by the kernel; answer: the last line of stdout that is a JSON object.
    """

    exit_code: int
    seconds: float
    events: tuple[Event, ...] = ()
    tail: tuple[str, ...] = ()
    answer: Mapping[str, Any] | None = None
    stopped: bool = False
    timed_out: bool = False
    out_of_memory: bool = False

    def of(self, name: str) -> tuple[Event, ...]:
        """The events of this name that have a step."""
        return tuple(e for e in self.events if e.name == name and e.step is not None)

    @property
    def losses(self) -> tuple[float, ...]:
        """The training losses, in order."""
        return tuple(e.loss for e in self.of("step") if e.loss is not None)

    @property
    def accuracy(self) -> float | None:
        """Of the last evaluation on what was held out; None where it told of none."""
        found = [e.accuracy for e in self.of("evaluated") if e.accuracy is not None]
        return found[-1] if found else None

    @property
    def last_step(self) -> int:
        """The last step it told of; 0 where it told of none."""
        return max((e.step or 0 for e in self.of("step")), default=0)

    @property
    def last_checkpoint(self) -> int | None:
        """The step of the last checkpoint it told of."""
        return max((e.step or 0 for e in self.of("checkpoint")), default=None)


def smoke(
    engine: ContainerEngine,
    image: str,
    spec: ImageSpec,
    stack: Stack,
    packages: Mapping[str, str],
    records: Path,
    folder: Path,
    inputs: str = "",
    digest: str | None = None,
    others: Sequence[Check] = (),
    foreign: bool = False,
    on_event: OnEvent = ignore,
    limits: Limits | None = None,
    size: Size | None = None,
) -> Receipt:
    """Prove `image` (a reference or an id that the engine holds), and write its receipt.

    packages: name -> version of every locked Python package; records: folder of TFRecords;
    folder: build/<target>, where receipt.json and smoke.log go; inputs: hash of what the image was
    made from; digest: of its manifest, where it is known; others: checks made elsewhere (device
    code), to stand in the same receipt; foreign: the program is not ours, PROGRAM_CHECKS hold. The
    receipt is written in any case; CheckFailed is raised where a check did not pass, OutsideError
    where the engine refused.
    """
    target = spec.name
    with refusals(image), _interruptible():
        client = engine.client
        containers.sweep(client, LABEL)
        found = client.images.get(image)
        log: list[str] = []
        with _Bench(client, found, limits or Limits(), target, log, on_event) as bench:
            bench.fill(records)
            try:
                checks, device = _checks(bench, spec, stack, packages, size or Size(), foreign)
            finally:
                files.write(folder / LOG, "\n".join(log) + "\n")
    receipt = Receipt(
        target=target,
        accelerator=spec.accelerator,
        reference=image,
        digest=digest,
        image_id=str(found.id),
        inputs=inputs,
        made_by=__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        checks=(*others, *checks),
    )
    write(receipt, folder / RECEIPT)
    if not receipt.passed:
        raise failure(receipt)
    return receipt


def _checks(
    bench: _Bench,
    spec: ImageSpec,
    stack: Stack,
    packages: Mapping[str, str],
    size: Size,
    foreign: bool,
) -> tuple[list[Check], str]:
    """Every check that can run, and the device that training ran on."""
    own = spec.base == "own"
    loader = {
        "accelerator": stack.accelerator.kind,
        "cuda": stack.cuda,
        "cudnn": stack.cudnn,
        "locked": dict(packages),
        "strict": own,
    }
    contents = {
        "user": bench.config.get("User") or "",
        "python": stack.python if own else "",
        "packages": dict(packages),
        "strict": own,
        "skip": [_PLACE],
    }
    checks = [
        bench.check("loader", lambda: _probed(bench.probe("loader", loader))),
        bench.check("contents", lambda: _contents(bench, contents)),
    ]
    if foreign:
        checks.append(bench.check("imports", lambda: _probed(bench.probe("imports", _APP))))
        return [*checks, bench.check("starts", lambda: _starts(bench))], "CPU"
    gpu, note = _gpu(bench, stack)
    bench.gpu = gpu
    training = bench.check("training", lambda: _training(bench, spec, size, note))
    checks.append(training)
    device = "CPU"
    if training.seen.get("finished"):  # else there is nothing to look at
        request = {"records": _RECORDS, "job": bench.job, "gpu": gpu is not None}
        outputs = bench.check("outputs", lambda: _probed(bench.probe("outputs", request)))
        checks.append(outputs)
        devices = outputs.seen.get("devices")
        if isinstance(devices, dict) and devices.get("gpus"):
            device = ", ".join(map(str, devices["gpus"]))  # type: ignore[arg-type]
    return checks, device


Verdict = tuple[list[Problem], dict[str, Any]]


def _probed(run: Run) -> Verdict:
    """What a probe answered; one that did not answer is a problem itself."""
    if run.answer is not None and run.exit_code == 0 and "problems" in run.answer:
        problems = [Problem(**problem) for problem in run.answer["problems"]]
        return problems, dict(run.answer["seen"])
    return [explain(run, "the probe")], {"tail": list(run.tail[-5:])}


def _contents(bench: _Bench, request: Mapping[str, Any]) -> Verdict:
    """The files, and what the image's configuration and history say."""
    from builder.prove.probes.contents import secret_in

    problems, seen = _probed(bench.probe("contents", request, as_root=True))
    texts = {f"environment ({e.partition('=')[0]})": e for e in bench.config.get("Env") or ()}
    for key, value in (bench.config.get("Labels") or {}).items():
        texts[f"label {key}"] = value
    for number, made in enumerate(bench.image.history()):
        texts[f"history (step {number})"] = str(made.get("CreatedBy", ""))
    for where, text in texts.items():
        kind = secret_in(text.encode(), configuration=True)
        if kind is not None:
            problems.append(
                Problem(
                    message=f"the image's {where} holds {kind}",
                    fix="hand it to the build as a secret (never as ARG, ENV or LABEL), revoke it",
                )
            )
    return problems, seen


_APP = {"folder": "/app"}
_FALLS = re.compile(r"(ModuleNotFoundError|ImportError|SyntaxError|No module named)\b.*")


def _starts(bench: _Bench) -> Verdict:
    """Whether the entry point comes as far as its own code. A program may take no --help, and may
    need data to do anything: only what says that the image is wrong is a problem."""
    bench.limits = replace(bench.limits, training_seconds=HELP_SECONDS)
    run = bench.train(["--help"], steps=1)
    seen: dict[str, Any] = {"exit_code": run.exit_code, "seconds": round(run.seconds, 1)}
    last = next((line for line in reversed(run.tail) if _FALLS.search(line)), "")
    if run.exit_code not in (0, 2) and last and not run.timed_out:
        message = f"the program does not start: {last.strip()[:200]}"
        return [
            Problem(message=message, fix="mend the import, or add it to requirements.txt")
        ], seen
    seen["answered"] = "--help" if run.exit_code == 0 and not run.timed_out else "started"
    return [], seen


def _training(bench: _Bench, spec: ImageSpec, size: Size, note: str) -> Verdict:
    """Train, kill it behind a checkpoint, train again. A run that is over before it could be killed
    is tried again with more steps, in a folder of its own."""
    if not bench.config.get("Entrypoint"):
        problem = Problem(
            message="the image has no ENTRYPOINT: a training service would start nothing",
            fix=f'end the Dockerfile with ENTRYPOINT ["python", "-m", "{spec.trainer.module}"]',
        )
        return [problem], {}
    for attempt in range(3):
        steps = size.steps * 4**attempt
        bench.job = f"{_JOB}/{attempt}"
        arguments = [f"--records={_RECORDS}", f"--job-dir={bench.job}", f"--steps={steps}"]
        arguments += [f"--batch={size.batch}", f"--checkpoint-every={size.checkpoint_every}"]
        first = bench.train(arguments, steps, stop=_behind_a_checkpoint)
        if first.exit_code != 0 or first.last_checkpoint is None:
            break
    seen: dict[str, Any] = {"steps": steps, "note": note, "first": _summary(first)}
    problems = judge_first(first, steps)
    if problems:
        return problems, seen
    second = bench.train(arguments, steps)
    seen["second"] = _summary(second)
    seen["finished"] = second.exit_code == 0
    seen["loss"] = falling(first.losses, second.losses)
    seen["accuracy"] = second.accuracy
    return judge_second(first, second, steps), seen


def _behind_a_checkpoint(events: Sequence[Event]) -> bool:
    """Whether a step came after the first checkpoint: what it did is lost if it is killed now."""
    names = [event.name for event in events]
    return "checkpoint" in names and "step" in names[names.index("checkpoint") :]


def _summary(run: Run) -> dict[str, Any]:
    resumed = run.of("resumed")
    return {
        "exit_code": run.exit_code,
        "seconds": round(run.seconds, 1),
        "last_step": run.last_step,
        "last_checkpoint": run.last_checkpoint,
        "resumed_at": resumed[0].step if resumed else None,
    }


def falling(first: Sequence[float], second: Sequence[float]) -> dict[str, float] | None:
    """Mean of the first losses of the first run and of the last ones of the second; at most five
    each, and at most half of a run. None where there are fewer than two."""
    total = len(first) + len(second)
    count = min(5, total // 2)
    if count == 0:
        return None
    losses = [*first, *second]
    start, end = sum(losses[:count]) / count, sum(losses[-count:]) / count
    return {"first": start, "last": end} if math.isfinite(start + end) else None


def judge_first(run: Run, steps: int) -> list[Problem]:
    """What is wrong with the run that was to be killed behind a checkpoint."""
    if run.stopped and run.last_checkpoint is not None and not run.timed_out:
        bad = _not_finite(run)
        return [bad] if bad else []
    if run.exit_code != 0 or run.timed_out:
        return [explain(run, "the trainer")]
    if run.last_checkpoint is None:
        return [
            Problem(
                message=f"the trainer told of no checkpoint in {run.last_step or steps} steps",
                fix='print {"event": "checkpoint", "step": N} once one is safely written',
            )
        ]
    return [
        Problem(
            message=f"the trainer was through with {steps} steps before it could be killed, or "
            "printed no step after its first checkpoint",
            fix='print {"event": "step", "step": N, "loss": X} at least every ten steps',
        )
    ]


def judge_second(first: Run, second: Run, steps: int) -> list[Problem]:
    """What is wrong with the run that was to resume and to finish."""
    if second.exit_code != 0 or second.timed_out:
        return [explain(second, "the trainer, started again after a kill,")]
    problems: list[Problem] = []
    saved = first.last_checkpoint or 0
    resumed = second.of("resumed")
    began = min((event.step or 0 for event in second.of("step")), default=0)
    if not resumed or (resumed[0].step or 0) < saved or began <= saved:
        how = f"said it resumed at step {resumed[0].step}" if resumed else "did not say it resumed"
        problems.append(
            Problem(
                message=f"the trainer ignored its checkpoint: killed at step {first.last_step} "
                f"with a checkpoint of step {saved}, it {how} and went on with step {began}",
                fix="restore the newest checkpoint of --job-dir at the start, and print "
                '{"event": "resumed", "step": N}',
            )
        )
    if second.last_step < steps:
        problems.append(
            Problem(
                message=f"the trainer ended well, but at step {second.last_step} of {steps}",
                fix="let it train until --steps, those before a restart included",
            )
        )
    bad = _not_finite(second)
    if bad:
        return [*problems, bad]
    losses = falling(first.losses, second.losses)
    if losses is None:
        problems.append(
            Problem(
                message="the trainer told of no loss",
                fix='print {"event": "step", "step": N, "loss": X} every few steps',
            )
        )
    elif losses["last"] >= LOSS_FALLS_TO * losses["first"]:
        problems.append(
            Problem(
                message=f"the loss does not fall: {losses['first']:.4g} at first, "
                f"{losses['last']:.4g} after {steps} steps (wanted: below "
                f"{LOSS_FALLS_TO * losses['first']:.4g})",
                fix="see build/*/smoke.log; learning rate, labels or a frozen model are the usual "
                "reasons",
            )
        )
    elif second.accuracy is not None and not second.accuracy >= ACCURACY:
        problems.append(
            Problem(
                message=f"it does not learn: {second.accuracy:.1%} of the held-out digits are "
                f"right after {steps} steps (wanted: {ACCURACY:.0%})",
                fix="where the loss falls all the same, training and evaluation do not see the "
                "same: preprocessing, BatchNorm's statistics or the order of the labels",
            )
        )
    return problems


def _not_finite(run: Run) -> Problem | None:
    for event in run.of("step"):
        if event.loss is not None and not math.isfinite(event.loss):
            return Problem(
                message=f"the loss is {event.loss} at step {event.step}",
                fix="lower the learning rate or clip gradients; see the step before it",
            )
    return None


_NETWORK = re.compile(
    r"name resolution|Name or service not known|Network is unreachable|No route to host|"
    r"getaddrinfo|Could not resolve|Couldn't resolve|Failed to establish a new connection",
    re.IGNORECASE,
)
_READ_ONLY = re.compile(r"Read-only file system|Permission denied")
_PATH = re.compile(r"(/[^\s'\";:,]+)")


def explain(run: Run, who: str) -> Problem:
    """Why a container failed: from how it ended and from what it said last."""
    if run.timed_out:
        last = run.tail[-1] if run.tail else "nothing"
        return Problem(
            message=f"{who} was not done after {run.seconds:.0f} s; it said last: {last[:200]}",
            fix="see build/*/smoke.log for where it hangs",
        )
    if run.out_of_memory:
        return Problem(
            message=f"{who} needed more memory than its limit and was killed",
            fix="make the batch or the shuffle buffer smaller, or look for a leak",
        )
    bad = _not_finite(run)
    if bad:
        return bad
    for line in reversed(run.tail):
        if _NETWORK.search(line):
            return Problem(
                message=f"{who} needs the network, and has none: {line.strip()[:200]}",
                fix="put what it downloads into the image or beside the records",
            )
        if _READ_ONLY.search(line):
            path = _PATH.search(line)
            return Problem(
                message=f"{who} writes outside its job folder: {path[1] if path else line[:200]}",
                fix="write below --job-dir (or, what may be lost, below /tmp)",
            )
    said = [event.message for event in run.events if event.severity == "ERROR" and event.message]
    errors = [line for line in run.tail if re.match(r"[\w.]*(?:Error|Exception|Exit)\b", line)]
    last = (said or errors or list(run.tail) or ["nothing"])[-1].strip()[:300]
    at = f" after step {run.last_step}" if run.last_step else ""
    if run.exit_code == 4:
        return Problem(
            message=f"{who} ended with a loss that is not finite{at}: {last}",
            fix="lower the learning rate or clip gradients",
        )
    if run.exit_code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(run.exit_code - 128).name
            return Problem(
                message=f"{who} was ended by {name}{at}; it said last: {last}",
                fix="see build/*/smoke.log",
            )
    return Problem(
        message=f"{who} failed with exit code {run.exit_code}{at}: {last}",
        fix="see build/*/smoke.log for its last lines",
    )


def _gpu(bench: _Bench, stack: Stack) -> tuple[list[str] | None, str]:
    """The ids of this machine's GPUs that the image is made for, and a note on why none."""
    if stack.accelerator.kind != "gpu":
        return None, f"this image is for {stack.accelerator.kind.upper()}"
    if "nvidia" not in (bench.client.info().get("Runtimes") or {}):
        return None, "no GPU on this engine: trained on the CPU"
    from docker.errors import APIError

    try:
        run = bench.probe("devices", {}, gpu=["all"])
    except APIError as error:
        return None, f"the engine gave no GPU ({error.explanation}): trained on the CPU"
    devices = (run.answer or {}).get("seen", {}).get("devices", [])
    fitting = [d for d in devices if d["compute_capability"] == stack.compute_capability]
    if not fitting:
        there = ", ".join(f"{d['name']} ({d['compute_capability']})" for d in devices) or "none"
        return None, f"the GPU here is another one ({there}): trained on the CPU"
    return [str(d["index"]) for d in fitting], ""


class _Bench:
    """One smoke run's containers and its volume; leaves nothing behind."""

    def __init__(
        self,
        client: docker.DockerClient,
        image: Any,
        limits: Limits,
        target: str,
        log: list[str],
        on_event: OnEvent,
    ) -> None:
        self.client = client
        self.image = image
        self.config: dict[str, Any] = image.attrs.get("Config") or {}
        self.limits = limits
        self.target = target
        self.log = log
        self.on_event = on_event
        self.name = f"smoke-{target}-{uuid.uuid4().hex[:12]}"
        self.labels = containers.labels(LABEL, self.name)
        self.job = _JOB
        self.gpu: list[str] | None = None
        self.step = ""

    def __enter__(self) -> _Bench:
        self.client.volumes.create(name=self.name, labels=self.labels)
        return self

    def __exit__(self, *_: object) -> None:
        containers.remove(self.client, f"{LABEL}={self.name}")

    def check(self, name: str, work: Callable[[], Verdict]) -> Check:
        """Do one check, and tell of it."""
        self.step = f"{self.target}: {name}"
        with step(self.step, self.on_event) as running:
            problems, seen = work()
            seconds = running.seconds
            running.error = problems[0].message if problems else None
        return Check(
            name=name,
            version={**CHECKS, **PROGRAM_CHECKS}[name],
            passed=not problems,
            seconds=round(seconds, 2),
            problems=tuple(problems),
            seen=seen,
        )

    def fill(self, records: Path) -> None:
        """Put the probes, the records and an empty job folder that anybody may write into the
        volume, through a container that never runs."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, mode in ((_RECORDS, 0o755), (_PROBES, 0o755), (_JOB, 0o1777)):
                entry = tarfile.TarInfo(Path(path).name)
                entry.type, entry.mode = tarfile.DIRTYPE, mode
                archive.addfile(entry)
            for probe in ("loader", "contents", "outputs", "devices", "imports"):
                content = (
                    resources.files("builder.prove.probes").joinpath(f"{probe}.py").read_bytes()
                )
                _add(archive, f"probes/{probe}.py", content)
            for file in sorted(records.iterdir()):
                if file.is_file():
                    _add(archive, f"records/{file.name}", file.read_bytes())
        with self.container(["true"], {}) as container:
            container.put_archive(_PLACE, buffer.getvalue())

    @contextlib.contextmanager
    def container(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        entrypoint: Sequence[str] | None = None,
        as_root: bool = False,
        gpu: list[str] | None = None,
    ) -> Iterator[Container]:
        """A container that is made, not started, and removed whatever happens."""
        from docker.types import DeviceRequest, Mount

        options: dict[str, Any] = {}
        if entrypoint is not None:
            options["entrypoint"] = list(entrypoint)
        if as_root:  # to read what is root's, and every user's: the whole image, /tmp included
            options.update(user="0:0", cap_add=["DAC_READ_SEARCH"])
        else:
            options["tmpfs"] = {"/tmp": "rw,exec,mode=1777"}
        if gpu:
            ids = {"count": -1} if gpu == ["all"] else {"device_ids": gpu}
            options["device_requests"] = [DeviceRequest(capabilities=[["gpu"]], **ids)]
        container = self.client.containers.create(
            self.image.id,
            list(command),
            name=f"{self.name}-{uuid.uuid4().hex[:6]}",
            labels=self.labels,
            network_mode="none",
            read_only=True,
            mounts=[Mount(_PLACE, self.name)],
            mem_limit=self.limits.memory,
            memswap_limit=self.limits.memory,
            pids_limit=self.limits.processes,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            environment={**({} if gpu else _NO_ACCELERATOR), **environment},
            **options,
        )
        try:
            yield container
        finally:
            _discard(container)

    def probe(
        self,
        name: str,
        request: Mapping[str, Any],
        as_root: bool = False,
        gpu: list[str] | None = None,
    ) -> Run:
        """Run a probe with the Python that the trainer runs with."""
        first = (self.config.get("Entrypoint") or [""])[0]
        python = first if re.match(r"python[\d.]*$", Path(first).name) else "python3"
        command = ["-B", f"{_PROBES}/{name}.py", json.dumps(request)]
        gpu = gpu or (self.gpu if name == "outputs" else None)
        with self.container(command, {}, [python], as_root, gpu) as container:
            return self._run(container, self.limits.probe_seconds)

    def train(
        self,
        arguments: Sequence[str],
        steps: int,
        stop: Callable[[Sequence[Event]], bool] | None = None,
    ) -> Run:
        """Run the image as a job would; kill it once `stop` says so."""
        environment = {"PYTHONUNBUFFERED": "1"}
        with self.container(arguments, environment, gpu=self.gpu) as container:
            return self._run(container, self.limits.training_seconds, stop, steps)

    def _run(
        self,
        container: Container,
        seconds: float,
        stop: Callable[[Sequence[Event]], bool] | None = None,
        steps: int | None = None,
    ) -> Run:
        self.log.append(f"== {self.step}: {container.name}")
        events: list[Event] = []
        tail: deque[str] = deque(maxlen=40)
        answer: Mapping[str, Any] | None = None
        stopped = timed_out = False
        began = time.monotonic()
        lines = _follow(container)
        while True:
            try:
                line = lines.get(timeout=max(0.0, began + seconds - time.monotonic()))
            except queue.Empty:
                timed_out = True
                break
            if line is None:
                break
            self.log.append(line)
            value = _object(line)
            self.on_event(StepLog(self.step, str((value or {}).get("message") or line)))
            if value is None:
                tail.append(line)
                continue
            answer = value
            event = _event(value)
            if event is None:
                continue
            events.append(event)
            if event.severity == "ERROR" and event.message:
                tail.append(event.message)
            if event.name == "step" and event.step is not None:
                self.on_event(StepProgress(self.step, event.step, steps, "steps"))
            if stop is not None and not stopped and stop(events):
                stopped = _kill(container)
        if timed_out:
            _kill(container)
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        self.log.append(f"== exit code {code}")
        return Run(
            exit_code=code,
            seconds=time.monotonic() - began,
            events=tuple(events),
            tail=tuple(tail),
            answer=answer,
            # it may have ended by itself in the same moment
            stopped=stopped and code == 137,
            timed_out=timed_out,
            out_of_memory=bool(container.attrs["State"].get("OOMKilled")),
        )


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def _discard(container: Container) -> None:
    """Remove a container; one that is gone or going (404, 409) needs nothing more."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _kill(container: Container) -> bool:
    from docker.errors import APIError

    try:
        container.kill("SIGKILL")
    except APIError:  # it has ended by itself
        return False
    return True


def _follow(container: Container) -> queue.Queue[str | None]:
    """Start a container; its lines, stdout's and stderr's each whole, then None."""
    lines: queue.Queue[str | None] = queue.Queue()
    containers.follow(container, lines.put, lambda: lines.put(None))
    container.start()
    return lines


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _event(value: Mapping[str, Any]) -> Event | None:
    name = value.get("event")
    if not isinstance(name, str):
        return None
    step, loss, accuracy = value.get("step"), value.get("loss"), value.get("accuracy")
    if isinstance(loss, str):  # JSON has no NaN: "nan"
        try:
            loss = float(loss)
        except ValueError:
            loss = math.nan
    return Event(
        name=name,
        step=step if isinstance(step, int) else None,
        loss=float(loss) if isinstance(loss, int | float) else None,
        message=str(value.get("message", "")),
        severity=str(value.get("severity", "INFO")),
        accuracy=float(accuracy) if isinstance(accuracy, int | float) else None,
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a smoke run as Ctrl-C does: through each `finally`, nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
