"""A job as one HTML page: tables and plots, without scripts and without outside resources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from builder.jobs.watch.view import BY_STEP, Points, View

WIDTH, HEIGHT = 460, 230
"""The size of a plot in CSS pixels."""

COLOURS = ("#1a73e8", "#d93025", "#188038", "#e37400", "#9334e6", "#12858d", "#c5221f", "#5f6368")
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 10, 34
MOST_POINTS = 400
"""The most points of a line; a longer line is thinned, its last point is kept."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #202124; background: #fff; margin: 0; }
main { max-width: 1000px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 28px 0 8px; }
.state { display: inline-block; padding: 1px 10px; border-radius: 10px; color: #fff;
  background: #5f6368; font-size: 13px; vertical-align: middle; }
.succeeded { background: #188038; } .failed, .lost { background: #d93025; }
.running { background: #1a73e8; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #dadce0; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 16px; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: 14px; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #5f6368; }
.key { font-size: 12px; color: #5f6368; } .key b { font-weight: 600; }
.bar { display: flex; height: 22px; border-radius: 4px; overflow: hidden; }
pre { background: #f1f3f4; padding: 10px; font-size: 12px; overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #202124; color: #e8eaed; }
  pre { background: #303134; } th, td { border-color: #3c4043; } }
"""


def html(view: View) -> str:
    """The whole page."""
    plots = "".join(
        plot(chart, lines, "step" if chart in BY_STEP else "seconds")
        for chart, lines in sorted(view.series.items(), key=lambda one: _order(one[0]))
        if any(len(points) > 1 for points in lines.values())
    )
    notes = escape("\n".join(view.notes))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(view.job)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(view.job)} <span class="state {escape(view.state)}">'
        f"{escape(view.state)}</span></h1>"
        f"<p>{escape(view.message)}; {view.seconds:,.0f} s; image {escape(view.image)}</p>"
        f"<h2>Replicas</h2>{_replicas(view)}"
        f"{_time(view)}{_result(view)}"
        f'<h2>Course</h2><div class="plots">{plots}</div>'
        f"<h2>What happened</h2><pre>{notes}</pre>"
        "</main></body></html>\n"
    )


def _order(chart: str) -> int:
    """The order of charts: loss, accuracy and speed first."""
    first = ("loss", "accuracy", "examples per second")
    return first.index(chart) if chart in first else len(first)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(one)}</th>" for one in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _replicas(view: View) -> str:
    rows = [
        (
            one.name,
            one.state,
            _number(one.exit_code, "d"),
            str(one.restarts),
            f"{one.seconds:,.0f} s",
            _number(one.step, "d"),
            _number(one.loss, ".4f"),
            _number(one.speed, ",.0f"),
            _number(one.input_wait, ".0%"),
            _peak(view, "CPU, cores", one.name, ".1f"),
            _peak(view, "memory, GB", one.name, ".2f", " GB"),
            _peak(view, "GPU, busy", one.name, ".0%"),
        )
        for one in view.replicas
    ]
    head = ("replica", "state", "exit code", "restarts", "time", "step", "loss", "examples/s")
    return _table((*head, "input wait", "peak CPU", "peak memory", "peak GPU"), rows)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _peak(view: View, chart: str, name: str, form: str, unit: str = "") -> str:
    points = view.series.get(chart, {}).get(name) or []
    return format(max(y for _, y in points), form) + unit if points else ""


def _time(view: View) -> str:
    """Where the time went, as the trainer's summary says."""
    seconds = (view.summary.get("time") or {}).get("seconds") or {}
    parts = [(k, float(v)) for k, v in seconds.items() if isinstance(v, int | float) and v > 0]
    total = sum(value for _, value in parts)
    if not total:
        return ""
    bar = "".join(
        f'<div style="width:{100 * value / total:.2f}%;background:{COLOURS[i % len(COLOURS)]}" '
        f'title="{escape(name)} {value:.1f} s"></div>'
        for i, (name, value) in enumerate(parts)
    )
    key = " &nbsp; ".join(
        f'<b style="color:{COLOURS[i % len(COLOURS)]}">&#9632;</b> {escape(name)} {value:.1f} s '
        f"({100 * value / total:.0f} %)"
        for i, (name, value) in enumerate(parts)
    )
    return f'<h2>Where the time went</h2><div class="bar">{bar}</div><p class="key">{key}</p>'


def _result(view: View) -> str:
    """The last and the best evaluation."""
    rows = []
    for name in ("evaluation", "best"):
        values = view.summary.get(name) or {}
        if values:
            words = ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in values.items()
            )
            rows.append((name, words))
    return f"<h2>Evaluation</h2>{_table(('', ''), rows)}" if rows else ""


# --- plots ----------------------------------------------------------------------------------------


def plot(title: str, lines: Mapping[str, Points], axis: str) -> str:
    """A chart of several lines over steps or seconds, as SVG."""
    drawn = {name: thinned(points) for name, points in lines.items() if points}
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    left, right = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
    low, high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def x_of(value: float) -> float:
        return _LEFT + (value - left) / ((right - left) or 1) * (WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - _TOP - _BOTTOM)

    parts = []
    for value in y_ticks:
        y = y_of(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dadce0"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    parts += [
        f'<text x="{x_of(value):.1f}" y="{HEIGHT - _BOTTOM + 16}" '
        f'text-anchor="middle">{value:.4g}</text>'
        for value in x_ticks
    ]
    parts.append(
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(axis)}</text>'
    )
    for index, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}">'
            f"<title>{escape(name)}</title></polyline>"
        )
        x, y = points[-1]
        parts.append(
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{colour}">'
            f"<title>{escape(name)}: {y:.6g} at {x:.6g}</title></circle>"
        )
    key = " &nbsp; ".join(
        f'<b style="color:{COLOURS[index % len(COLOURS)]}">&#9632;</b> {escape(name)} '
        f"{points[-1][1]:.4g}"
        for index, (name, points) in enumerate(drawn.items())
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg><div class="key">{key}</div></figure>'
    )


def thinned(points: Points) -> Points:
    """At most MOST_POINTS of a line, its last one among them."""
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    found = points[::step]
    return found if found[-1] == points[-1] else [*found, points[-1]]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that span a range."""
    if high == low:
        pad = abs(high) * 0.1
        low, high = (low - pad, high + pad) if pad else (0.0, 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.floor(low / step) * step
    found = [first]
    while found[-1] < high - step * 1e-9:
        found.append(first + len(found) * step)
    return [round(one, 12) for one in found]
