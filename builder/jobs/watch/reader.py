"""What a local job does, from its logs, its containers' figures and its TensorBoard events; the
page on the terminal, which watch_remote fills for a job on Vertex AI, too.

A Reader looks at a job's folder again and again, reading only what is new, and returns a View; the
page on the terminal (rich) and the HTML page are made of that. Nothing is asked of the job: it is
watched just as well when it is over, or when another process runs it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.contract import TrainerEvent
from builder.core.errors import InputError
from builder.engine import containers
from builder.jobs.places.local import run as local
from builder.jobs.places.vertex import status as remote
from builder.jobs.studies import loop as studies

if TYPE_CHECKING:
    from rich.console import RenderableType

Points = list[tuple[float, float]]

LATEST_LINES = 8
_SPARK = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class ReplicaView:
    """A replica now. cpu in cores, memory in bytes, gpu and input_wait as shares."""

    name: str
    state: str
    restarts: int = 0
    exit_code: int | None = None
    seconds: float = 0.0
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    speed: float | None = None
    eta: float | None = None
    input_wait: float | None = None
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    message: str = ""


@dataclass(frozen=True)
class View:
    """A job now. series: chart -> line -> points; by step, or by seconds since the job's start."""

    job: str
    state: str
    message: str
    seconds: float
    image: str
    replicas: tuple[ReplicaView, ...]
    series: Mapping[str, Mapping[str, Points]]
    notes: tuple[str, ...]
    summary: Mapping[str, Any]

    @property
    def over(self) -> bool:
        return self.state not in remote.ACTIVE


@dataclass
class _Tail:
    """A file that grows, read line by line; begins again where it was made anew."""

    path: Path
    position: int = 0
    rest: str = ""

    def lines(self) -> Iterator[str]:
        try:
            if self.path.stat().st_size < self.position:
                self.position, self.rest = 0, ""
            with self.path.open(encoding="utf-8", errors="replace") as file:
                file.seek(self.position)
                text = self.rest + file.read()
                self.position = file.tell()
        except FileNotFoundError:
            return
        *whole, self.rest = text.split("\n")
        yield from whole


@dataclass
class _Known:
    """What is known of a replica so far."""

    told: TrainerEvent = field(default_factory=lambda: TrainerEvent(contract.STEP))
    message: str = ""
    usage: dict[str, float] = field(default_factory=dict)


def has_run(folder: Path) -> bool:
    """Whether a job runs or ran in a folder. Raises InputError for a study: its trials are jobs."""
    if (folder / studies.FILE).is_file():
        ran = {path.parents[1].name for path in folder.glob(f"*/{local.LOCAL}/{local.STATE}")}
        trials = sorted(ran, key=lambda name: (len(name), name))
        raise InputError(
            f"{folder}: a study, and watched is one trial ({', '.join(trials) or 'none yet'})",
            f"builder job watch {folder}/{trials[-1] if trials else 1}; builder tensorboard "
            f"{folder.name} shows all",
        )
    return (folder / local.LOCAL / local.STATE).is_file()


class Reader:
    """Follows one job's folder. Raises InputError where no job has run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = folder / local.LOCAL
        if not has_run(folder):
            raise InputError(f"{folder}: no job has run there", "builder job local JOB")
        self._tails: dict[Path, _Tail] = {}
        self._known: dict[str, _Known] = {}
        self._loaders: dict[Path, Any] = {}
        self._series: dict[str, dict[str, Points]] = {}
        self._notes: list[str] = []
        self._began: float | None = None

    def view(self) -> View:
        """The job as it is now."""
        state = self._state()
        for line in self._new(self.local / local.NOTES):
            stamp, _, text = line.partition(" ")
            self._start(stamp)
            self._notes.append(f"{stamp[11:19]} {text}")
        for one in state["replicas"]:
            self._read(one["name"])
        self._events()
        return View(
            job=state["job"],
            state=state["state"],
            message=state["message"],
            seconds=state["seconds"],
            image=state.get("image", ""),
            replicas=tuple(self._replica(one) for one in state["replicas"]),
            series={chart: self._lines(lines) for chart, lines in self._series.items()},
            notes=tuple(self._notes),
            summary=self._summary(),
        )

    def _lines(self, lines: Mapping[str, Points]) -> dict[str, Points]:
        """Without what a replica's log says where TensorBoard's events say it more finely."""
        if "train" in lines:
            names = self._known.keys()
            return {name: points for name, points in lines.items() if name not in names}
        return dict(lines)

    def _state(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.local / local.STATE).read_text())
        if content["state"] == "running":
            began = datetime.fromisoformat(content["time"])
            content["seconds"] += (datetime.now(began.tzinfo) - began).total_seconds()
            if containers.is_gone(str(content.get("owner", ""))):
                content |= {"state": "lost", "message": "the builder that ran it was killed"}
        return content

    def _summary(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            value = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return value if isinstance(value, dict) else {}
        return {}

    def _new(self, path: Path) -> Iterator[str]:
        return self._tails.setdefault(path, _Tail(path)).lines()

    def _start(self, stamp: str) -> float:
        with contextlib.suppress(ValueError):
            seconds = datetime.fromisoformat(stamp).timestamp()
            self._began = seconds if self._began is None else self._began
            return seconds - self._began
        return 0.0

    def _add(self, chart: str, line: str, x: float, y: object) -> None:
        add_point(self._series, chart, line, x, y)

    def _read(self, name: str) -> None:
        known = self._known.setdefault(name, _Known())
        for line in self._new(self.local / f"{name}.log"):
            text = line.partition(" ")[2]
            known.message = contract.words(text) or known.message
            event = contract.parse(text)
            if event and event.name == contract.STEP and event.step is not None:
                known.told = event
                self._add("loss", name, event.step, event.loss)
                self._add("examples per second", name, event.step, event.examples_per_second)
        for line in self._new(self.local / f"{name}.stats"):
            value = contract.fields(line)
            if "time" in value and self._began is not None:
                known.usage = value
                at = float(value["time"]) - self._began
                self._add("CPU, cores", name, at, value.get("cpu"))
                self._add("memory, GB", name, at, value.get("memory", 0) / 1e9)
                if "gpu" in value:
                    self._add("GPU, busy", name, at, value["gpu"])

    def _events(self) -> None:
        """TensorBoard's scalars that have a chart here."""
        try:
            studies.without_tensorflow()
            from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
                event_file_loader,
            )
            from tensorboard.util import tensor_util  # type: ignore[import-untyped]
        except ImportError:
            return
        for path in sorted(self.folder.rglob("events.out.tfevents.*")):
            if path not in self._loaders:
                self._loaders[path] = event_file_loader.EventFileLoader(str(path))
            run = path.parent.name
            with contextlib.suppress(Exception):  # a torn record: read again next time
                for event in self._loaders[path].Load():
                    for value in event.summary.value:
                        self._scalar(run, value.tag, event.step, value, tensor_util)

    def _scalar(self, run: str, tag: str, step: int, value: Any, tensors: Any) -> None:
        if tag not in TAGS or not value.HasField("tensor"):
            return
        array = tensors.make_ndarray(value.tensor)
        if array.size != 1:
            return
        number = float(array.reshape(()))
        chart = TAGS[tag]
        self._add(chart, run, step, number)

    def _replica(self, one: Mapping[str, Any]) -> ReplicaView:
        known = self._known[one["name"]]
        told, usage = known.told, known.usage
        running = one["state"] == "running"
        chief = one["name"].startswith("chief")
        gpu = usage.get("gpu") if "gpu" in usage else self._last("GPU, busy") if chief else None
        return ReplicaView(
            name=one["name"],
            state=one["state"],
            restarts=one["restarts"],
            exit_code=one["exit_code"],
            seconds=one["seconds"],
            step=told.step,
            steps=told.steps,
            loss=_float(told.loss),
            speed=_float(told.examples_per_second),
            eta=_float(told.eta_seconds) if running else None,
            input_wait=self._input_wait() if chief else None,
            cpu=usage.get("cpu"),
            memory=usage.get("memory"),
            gpu=gpu,
            message=known.message,
        )

    def _last(self, chart: str) -> float | None:
        lines = self._series.get(chart, {})
        return next((points[-1][1] for points in lines.values() if points), None)

    def _input_wait(self) -> float | None:
        """The share of a step that was waited for data, lately; once it is over, of the run."""
        shares = (self._summary().get("time") or {}).get("shares") or {}
        parts = {name: _float(shares.get(name)) or 0.0 for name in ("input", "compute")}
        if sum(parts.values()):
            return parts["input"] / sum(parts.values())
        waited, compute = self._last("input wait, ms a step"), self._last("compute, ms a step")
        if waited is None or compute is None or not waited + compute:
            return None
        return waited / (waited + compute)


TAGS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "learning_rate": "learning rate",
    "step_ms/input": "input wait, ms a step",
    "step_ms/compute": "compute, ms a step",
    "utilisation/gpu_busy": "GPU, busy",
    "gradient_norm": "gradient norm",
}
"""TensorBoard's tags of the trainer: the chart that they belong to."""

BY_STEP = frozenset({*TAGS.values(), "examples per second"})
"""Charts over steps; the others are over seconds."""


def add_point(
    series: dict[str, dict[str, Points]], chart: str, line: str, x: float, y: object
) -> None:
    """One more point of a line; what is no finite number is left out."""
    if isinstance(y, int | float) and math.isfinite(y):
        points = series.setdefault(chart, {}).setdefault(line, [])
        # a restart goes back: what came after that step is made again
        while points and chart in BY_STEP and points[-1][0] >= x:
            points.pop()
        points.append((x, float(y)))


def _float(value: object) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        number = float(value)  # type: ignore[arg-type]
        return number if math.isfinite(number) else None
    return None


# --- the page on the terminal ---------------------------------------------------------------------


def spark(points: Sequence[tuple[float, float]], width: int = 40) -> str:
    """The course of a line in `width` characters."""
    values = [y for _, y in points]
    if not values:
        return ""
    step = max(1, math.ceil(len(values) / width))
    means = [
        sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)
    ]
    low, high = min(means), max(means)
    if high == low:
        return _SPARK[0] * len(means)
    return "".join(_SPARK[int((one - low) / (high - low) * (len(_SPARK) - 1))] for one in means)


def page(view: View) -> RenderableType:
    """One terminal page: the job, a row a replica, the course of the loss, what happened last."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colour = {"running": "cyan", "succeeded": "green"}.get(view.state, "red")
    if view.state != "running" and not view.over:  # queued, pending, being cancelled
        colour = "yellow"
    message = view.message
    first = next((one for one in view.replicas if one.step is not None), None)
    if not view.over and first:
        of = f" of {first.steps}" if first.steps else ""
        message = f"step {first.step}{of}" + (f", {_clock(first.eta)} left" if first.eta else "")
    head = Text.assemble(
        (view.job, "bold"), "  ", (view.state, colour), f"  {_clock(view.seconds)}  {message}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in (
        "replica",
        "state",
        "step",
        "loss",
        "ex/s",
        "wait",
        "CPU",
        "memory",
        "GPU",
        "again",
    ):
        justify = "left" if name in ("replica", "state") else "right"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for one in view.replicas:
        table.add_row(
            one.name,
            one.state,
            "" if one.step is None else str(one.step),
            "" if one.loss is None else f"{one.loss:.4f}",
            "" if one.speed is None else f"{one.speed:,.0f}",
            _percent(one.input_wait),
            "" if one.cpu is None else f"{one.cpu:.1f}",
            "" if one.memory is None else f"{one.memory / 1e6:,.0f} MB",
            _percent(one.gpu),
            str(one.restarts or ""),
        )
    parts: list[Any] = [head, Text(), table, Text()]
    for chart in ("loss", "accuracy", "examples per second"):
        for name, points in view.series.get(chart, {}).items():
            if points:
                parts.append(
                    Text.assemble(
                        f"{chart} {name}  ".ljust(30),
                        (spark(points), "cyan"),
                        f"  {points[-1][1]:.4g}",
                    )
                )
    parts.append(Text())
    parts += [Text(note, style="dim") for note in view.notes[-LATEST_LINES:]]
    parts += [
        Text(f"{one.name} | {one.message[:150]}", style="dim")
        for one in view.replicas
        if one.message
    ]
    return Group(*parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
