"""A job that runs, looked at until its end: its lines, or a page with a row for each replica.

A line that reports a step (builder/contract.py) carries step, loss and speed as fields. What a
backend does not report stays empty.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from builder import contract
from builder.core.display import plain
from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import (
    SERVICE,
    Backend,
    JobStatus,
    LogLine,
    OnLine,
    ReplicaStatus,
    UnansweredError,
    refreshed,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

LATEST_LINES = 8
MOST_PAUSES = 15
"""Between two questions to a service that does not answer."""
_SHAPES = (
    ("step", "{:.0f}"),
    ("steps", " of {:.0f}"),
    ("loss", "{:.4f}"),
    ("examples_per_second", "{:,.0f}"),
)
COLUMNS = ("replica", "state", "step", "loss", "examples/s", "left", "restarts")


def follow(backend: Backend, job: JobStatus, write: OnLine, pause: Callable[[], None]) -> JobStatus:
    """Write every line until the job has ended; lines that come a little later are written, too.

    A service that does not answer is asked again, at longer and longer intervals: the job runs on,
    and an upgrade takes minutes. What holds the job up is written when it changes. write: gets
    each line. pause: waits between two looks.
    """
    log, told, looks = backend.logs(job), "", 0
    log.hold()
    while True:
        try:
            job = refreshed(backend, job)
            for line in log.read():
                write(line)
            looks, note = 0, job.error if job.active else ""
        except UnansweredError as error:
            looks, note = min(2 * looks + 1, MOST_PAUSES), f"{error.message}; asking again"
        if note not in ("", told):
            told = note
            write(LogLine(datetime.now(UTC), SERVICE, "WARNING", note))
        for _ in range(looks):
            pause()
        pause()
        if not job.active:
            for line in log.rest():
                write(line)
            return job


def figures(line: LogLine) -> dict[str, float]:
    """Return step, steps, loss, speed, time left and use of GPUs, as far as a line has them."""
    event = contract.event(line.fields)
    if event is None or event.name != contract.STEP:
        return {}
    values = {name: value for name, value in vars(event).items() if isinstance(value, int | float)}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def measured(backend: Backend, job: JobStatus) -> JobStatus:
    """Return the job with what its replicas said last of their GPUs. A log that cannot be read says
    nothing."""
    told: dict[str, dict[str, float]] = {}
    alive = job.state == "running" and not job.trials
    with contextlib.suppress(OutsideError):
        for line in backend.logs(job).latest() if alive else ():
            if found := figures(line):
                told[line.replica] = found
    return with_gpus(job, told)


def with_gpus(job: JobStatus, figures: Mapping[str, Mapping[str, float]]) -> JobStatus:
    """Return a job with the GPU use among the figures of its replicas that run."""
    if job.trials or job.state != "running":
        return job
    rows = [
        replace(row, gpu_percent=told.get("gpu_percent"), gpu_memory=_whole(told))
        if row.state == "running" and (told := figures.get(row.name))
        else row
        for row in _rows(job)
    ]
    return replace(job, replicas=tuple(rows)) if any(row.uses for row in rows) else job


def _whole(told: Mapping[str, float]) -> int | None:
    return int(told["gpu_memory_bytes"]) if "gpu_memory_bytes" in told else None


@dataclass
class Watch:
    """One job, looked at again and again. Only new lines are read each time."""

    backend: Backend
    job: JobStatus
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=LATEST_LINES))

    def __post_init__(self) -> None:
        self._log = self.backend.logs(self.job)

    def look(self) -> RenderableType:
        """Ask for the job's status and its new lines, and return the page.

        Raises OutsideError where the backend does not tell the status. Where the log may not be
        read, the status alone is shown.
        """
        self.job = refreshed(self.backend, self.job)
        try:
            lines = self._log.read()
        except OutsideError as error:
            note = f"the log cannot be read: {error.message}"
            if note not in self.latest:
                self.latest.append(note)
            lines = ()
        for line in lines:
            name = f"trial {line.trial}" if line.trial else line.replica
            if line.text.strip():
                self.latest.append(f"{name} | {plain(line.text)[:150]}")
            if line.replica != SERVICE and (found := figures(line)):
                self.figures[name] = found
        self.job = with_gpus(self.job, self.figures)
        return page(self.job, self.figures, tuple(self.latest))


def page(
    job: JobStatus, figures: dict[str, dict[str, float]], latest: tuple[str, ...]
) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colour = "cyan" if job.active else "green" if job.exit_code == 0 else "red"
    begun = job.started or job.created
    seconds = ((job.ended or datetime.now(UTC)) - begun).total_seconds() if begun else 0.0
    head = Text.assemble(
        (job.display_name, "bold"), "  ", (job.state, colour), f"  {_clock(seconds)}  {job.error}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        words = name in ("replica", "state")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for replica in _rows(job):
        values = figures.get(replica.name, {})
        metrics = {name: shape.format(values[name]) for name, shape in _SHAPES if name in values}
        left = _clock(values["eta_seconds"]) if "eta_seconds" in values and job.active else ""
        cells = (metrics.get(name, "") for name in ("loss", "examples_per_second"))
        steps = metrics.get("step", "") + metrics.get("steps", "")
        restarts = str(replica.restarts or "")
        state = ", ".join(filter(None, (replica.state, replica.uses)))
        table.add_row(replica.name, state, steps, *cells, left, restarts)
    return Group(head, table, *(Text(line, style="dim") for line in latest))


def _rows(job: JobStatus) -> tuple[ReplicaStatus, ...]:
    """Return a row for each trial or replica; of one that is not reported the job's own state."""
    if job.trials:
        results = {t.id: "" if t.value is None else f": {t.value:g}" for t in job.trials}
        return tuple(ReplicaStatus(f"trial {t.id}", t.state + results[t.id]) for t in job.trials)
    return job.replicas or tuple(
        ReplicaStatus(name, job.state, gpus=pool.accelerators if pool.has_gpus else 0)
        for pool in job.pools
        for name in pool.replicas
    )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
