"""A job that runs, looked at until its end: its lines, or a page with a row for each replica.

A line of our trainer carries step, loss and speed as fields; in the lines of other programs, `step
10 of 200` and `loss: 0.1` are understood. What a backend does not report stays empty.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder import contract
from builder.core.display import plain
from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import SERVICE, Backend, JobStatus, LogLine, ReplicaStatus
from builder.jobs.pools import replica_names

if TYPE_CHECKING:
    from rich.console import RenderableType

LATEST_LINES = 8
_SHAPES = (
    ("step", "{:.0f}"),
    ("steps", " of {:.0f}"),
    ("loss", "{:.4f}"),
    ("examples_per_second", "{:,.0f}"),
)
COLUMNS = ("replica", "state", "step", "loss", "examples/s", "left", "restarts")
_STEP = re.compile(r"\bstep[ :=]+(?P<step>\d+)(?: *(?:of|/) *(?P<steps>\d+))?", re.IGNORECASE)
_LOSS = re.compile(r"\bloss[ :=]+(?P<loss>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)


def follow(
    backend: Backend,
    job: JobStatus,
    write: Callable[[LogLine], None],
    *,
    replica: str | None = None,
    pause: Callable[[], None],
) -> JobStatus:
    """Write every line until the job has ended; lines that come a little later are written, too.

    write: gets each line. replica: only that one's lines. pause: waits between two looks.
    """
    log = backend.logs(job, replica)
    while True:
        job = backend.get(job.name)
        for line in log.read():
            write(line)
        pause()
        if not job.active:
            for line in log.read():
                write(line)
            return job


def figures(line: LogLine) -> dict[str, float]:
    """Return step, steps, loss, examples_per_second and eta_seconds, as far as a line has them.

    A line of our trainer about another event than a step, such as an evaluation, has none.
    """
    if event := contract.event(line.fields):
        names = ("step", "steps", "loss", "examples_per_second", "eta_seconds")
        values = {name: getattr(event, name) for name in names if event.name == contract.STEP}
        return {
            name: float(value)
            for name, value in values.items()
            if value is not None and math.isfinite(value)
        }
    matches = (_STEP.search(line.text), _LOSS.search(line.text))
    numbers = [match.groupdict() for match in matches if match]
    return {name: float(text) for each in numbers for name, text in each.items() if text}


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
        self.job = self.backend.get(self.job.name)
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
            if line.replica != SERVICE:
                self.figures.setdefault(name, {}).update(figures(line))
        return page(self.job, self.figures, tuple(self.latest))


def page(
    job: JobStatus, figures: dict[str, dict[str, float]], latest: tuple[str, ...]
) -> RenderableType:
    """Return the page: the job, a row for each replica or trial, the latest lines."""
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
        shown = {name: shape.format(values[name]) for name, shape in _SHAPES if name in values}
        left = _clock(values["eta_seconds"]) if "eta_seconds" in values and job.active else ""
        cells = (shown.get(name, "") for name in ("loss", "examples_per_second"))
        steps = shown.get("step", "") + shown.get("steps", "")
        restarts = str(replica.restarts or "")
        table.add_row(replica.name, replica.state, steps, *cells, left, restarts)
    for trial in job.trials:
        given = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
        value = "" if trial.value is None else f": {trial.value:g}"
        latest = (*latest, f"trial {trial.id}: {given}{value}")
    return Group(head, table, *(Text(line, style="dim") for line in latest))


def _rows(job: JobStatus) -> tuple[ReplicaStatus, ...]:
    """Return a row for each trial, or for each replica; where the backend reports no single
    replica, its state is the job's."""
    if job.trials:
        return tuple(ReplicaStatus(f"trial {trial.id}", trial.state) for trial in job.trials)
    return job.replicas or tuple(ReplicaStatus(n, job.state) for n in replica_names(job.pools))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
