"""A job as one page on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.jobs.watch.view import View

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

LATEST_LINES = 8
_SPARK = "▁▂▃▄▅▆▇█"


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
    """One terminal page: the job, a row a replica, the course of the loss, the latest lines."""
    from rich.console import Group
    from rich.text import Text

    notes = [Text(note, style="dim") for note in view.notes[-LATEST_LINES:]]
    said = [
        Text(f"{one.name} | {one.message[:150]}", style="dim")
        for one in view.replicas
        if one.message
    ]
    parts: list[RenderableType] = [
        _head(view),
        Text(),
        _table(view),
        Text(),
        *_courses(view),
        Text(),
        *notes,
        *said,
    ]
    return Group(*parts)


def _head(view: View) -> Text:
    from rich.text import Text

    colour = {"running": "cyan", "succeeded": "green"}.get(view.state, "red")
    if view.state != "running" and not view.over:  # queued, pending, being cancelled
        colour = "yellow"
    message = view.message
    first = next((one for one in view.replicas if one.step is not None), None)
    if not view.over and first:
        of = f" of {first.steps}" if first.steps else ""
        message = f"step {first.step}{of}" + (f", {_clock(first.eta)} left" if first.eta else "")
    return Text.assemble(
        (view.job, "bold"), "  ", (view.state, colour), f"  {_clock(view.seconds)}  {message}"
    )


COLUMNS = ("replica", "state", "step", "loss", "ex/s", "wait", "CPU", "memory", "GPU", "again")


def _table(view: View) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in COLUMNS:
        words = name in ("replica", "state")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
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
    return table


def _courses(view: View) -> list[Text]:
    from rich.text import Text

    return [
        Text.assemble(
            f"{chart} {name}  ".ljust(30), (spark(points), "cyan"), f"  {points[-1][1]:.4g}"
        )
        for chart in ("loss", "accuracy", "examples per second")
        for name, points in view.series.get(chart, {}).items()
        if points
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
