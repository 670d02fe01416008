"""report.html: a finished run on one page, which needs no other file and no network."""

import base64
import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import METRICS, Config
from trainer.input import targets
from trainer.job import storage
from trainer.observe.examples import Mistakes
from trainer.observe.observer import Observer, Run
from trainer.report import say

REPORT = "report.html"
"""In the job folder."""
POINTS = 400
"""Most points of a curve; with more, every second one is left out."""
SHOWN = ("loss", "accuracy", "mae")
"""The curves; accuracy and mae exclude each other."""
_SHOWN = 40
"""Most classes of a confusion matrix on the page."""
_WIDE, _HIGH, _LEFT, _LOW = 520, 220, 52, 24
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;
color:#1d2733;background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.2rem}
table{border-collapse:collapse;display:block;max-width:100%;overflow-x:auto}
td,th{padding:.15rem .7rem;text-align:right}
td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f3f5f7}
.row{display:flex;flex-wrap:wrap;gap:1.5rem}.row>*{min-width:0;max-width:100%}.bar{background:#3b6fb5;height:.8rem}
.warning{border-left:4px solid #c2571a;background:#fdf1e9;padding:.5rem 1rem}
figure{margin:0}figcaption{color:#5b6673;font-size:.85rem}
img.pixels{image-rendering:pixelated;min-width:128px;max-width:100%}svg{max-width:100%;height:auto}
.part{width:20rem}td:first-child{white-space:nowrap}
.words td:last-child{text-align:left;overflow-wrap:anywhere}
@media(max-width:500px){td,th{padding:.15rem .4rem}.part{width:6rem}}
"""

Curve = list[tuple[int, float]]
"""Steps and values."""


class Page(Observer):
    """Collects the curves, and writes the page when the run is over."""

    name = "page"

    def __init__(self, mistakes: Mistakes, account: Any) -> None:
        """`account`: insight.Account."""
        self.mistakes, self.account = mistakes, account
        self._curves: dict[str, Curve] = {}
        self._every = 1

    def state(self) -> dict[str, Any]:
        return {"curves": self._curves, "every": self._every}

    def restore(self, state: dict[str, Any]) -> None:
        self._every = state["every"]
        self._curves = {
            name: [(step, value) for step, value in curve]
            for name, curve in state["curves"].items()
        }

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        drawn = [name for name in SHOWN if name in metrics]
        for name in drawn:
            curve = self._curve(f"{name}, training", first_step)
            for index, value in enumerate(metrics[name].tolist()):
                if (first_step + index) % self._every == 0:
                    curve.append((first_step + index, round(value, 5)))
        if len(self._curves["loss, training"]) > POINTS:
            self._every *= 2
            for name in drawn:
                kept = [
                    point
                    for point in self._curves[f"{name}, training"]
                    if not point[0] % self._every
                ]
                self._curves[f"{name}, training"] = kept

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        for name in [name for name in SHOWN if name in result]:
            self._curve(f"{name}, evaluation", step).append((step, round(result[name], 5)))

    def end(self, run: Run, outcome: str) -> None:
        text = overfitting(self._curves)
        if run.place.chief and outcome in ("done", "stopped") and text:
            best = f"{run.config.checkpoint_dir}/best has the best by --metric {run.config.metric}"
            helps = f"what helps: {HELPS}; {best}"
            say("overfitting", f"{text}; {helps}", "WARNING", step=run.position.step)

    def closed(self, run: Run) -> None:
        if not run.writes:
            return
        path = f"{run.config.job_dir}/{REPORT}"
        summary = self.account.summary(run)
        text = page(run, summary, self._curves, self.mistakes.pictures)
        try:
            storage.write(path, text.encode())
        except storage.FAILURES as error:  # A full disk is not a fault of this program.
            say("summary", f"{REPORT} cannot be written: {error}", "WARNING")
        else:
            say("report", f"the run on one page: {path}", path=path)

    def _curve(self, name: str, first: int) -> Curve:
        """Return a curve without its points from step `first` on, which are made again."""
        curve = self._curves.setdefault(name, [])
        while curve and curve[-1][0] >= first:
            curve.pop()
        return curve


HELPS = (
    "more records, --trivial-augment, --crop 0.35 --flip horizontal, --mixup 0.2, --dropout 0.3, "
    "--weight-decay, given --weights, --early-stopping 3, or fewer --epochs"
)
"""Options against overfitting."""
_RISEN = 1.2
"""A validation loss that is so many times the least one has risen."""


def overfitting(curves: dict[str, Curve]) -> str:
    """Say, in words, that a run learnt its training records and not what they have in common: since
    some step the validation loss has risen, and the training loss is lower. "" if that is not so.
    """
    evaluated, trained = (curves.get(f"loss, {kind}", []) for kind in ("evaluation", "training"))
    if len(evaluated) < 3 or not trained:
        return ""
    at, least = min(evaluated, key=lambda point: point[1])
    now = evaluated[-1][1]
    recent = float(np.mean([value for _, value in trained[-20:]]))
    if not (now > _RISEN * least and recent < now):
        return ""
    return (
        f"the run overfits: the validation loss was least, {least:.3g}, after step {at} and is "
        f"{now:.3g} now, with a training loss of {recent:.3g}"
    )


def page(
    run: Run,
    summary: dict[str, Any],
    curves: dict[str, Curve],
    mistakes: Sequence[tuple[np.ndarray, str]],
) -> str:
    """Return the page's HTML. `mistakes`: uint8 pictures with captions."""
    title = html.escape(f"{run.model.name}: {summary['outcome']} at step {run.position.step}")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{title}</h1>",
        _warning(overfitting(curves)),
        _measured(summary),
        "<h2>Curves</h2><div class=row>",
        *(chart(name, curves) for name in SHOWN),
        "</div>",
        _classes(run),
        _mistakes(mistakes, run.config.target),
        _time(summary["time"]),
        _options(run.config),
    ]
    return "\n".join(parts) + "\n</html>\n"


def chart(name: str, curves: dict[str, Curve]) -> str:
    """Return a drawing of the curves `name, training` and `name, evaluation`; bad values are left
    out.
    """
    colours = {"training": "#3b6fb5", "evaluation": "#c2571a"}
    shown = {
        kind: [(x, y) for x, y in curves.get(f"{name}, {kind}", []) if np.isfinite(y)]
        for kind in colours
    }
    every = [point for curve in shown.values() for point in curve]
    if not every:
        return ""
    right, high = max(x for x, _ in every), max(y for _, y in every)
    low = min(0.0, min(y for _, y in every))
    high = max(high, low + 1e-6)

    def place(x: float, y: float) -> str:
        across = _LEFT + (_WIDE - _LEFT - 10) * x / max(right, 1)
        return f"{across:.1f},{8 + (_HIGH - _LOW - 8) * (high - y) / (high - low):.1f}"

    lines = []
    for number, (kind, curve) in enumerate(shown.items()):
        points = " ".join(place(x, y) for x, y in curve)
        lines.append(
            f"<polyline points='{points}' fill=none stroke='{colours[kind]}' stroke-width=1.6 />"
        )
        lines += [
            f"<circle cx={at[0]} cy={at[1]} r=2.5 fill='{colours[kind]}' />"
            for at in (place(x, y).split(",") for x, y in curve)
            if kind == "evaluation"
        ]
        beside = _WIDE - 170 + 85 * number
        lines.append(f"<text x={beside} y={_HIGH - 6} fill='{colours[kind]}'>{kind}</text>")
    for value in (low, (low + high) / 2, high):
        across, down = place(0, value).split(",")
        lines.append(f"<path d='M{across} {down}H{_WIDE - 10}' stroke=#dde2e7 />")
        lines.append(f"<text x=4 y={float(down) + 4:.1f} fill=#5b6673>{value:.3g}</text>")
    lines.append(f"<text x={_LEFT} y={_HIGH - 6} fill=#5b6673>step 0 to {right}</text>")
    if name == "loss" and overfitting(curves):
        least = min(shown["evaluation"], key=lambda point: point[1])
        across = place(*least).split(",")[0]
        lines.append(f"<path d='M{across} 8V{_HIGH - _LOW}' stroke=#c2571a stroke-dasharray=4 />")
        lines.append(f"<text x={across} y=18 dx=4 fill=#c2571a>least after step {least[0]}</text>")
    head = f"<svg viewBox='0 0 {_WIDE} {_HIGH}' width={_WIDE} font-size=12 role=img>"
    drawn = "".join(lines)
    return f"<figure><figcaption>{name}</figcaption>{head}{drawn}</svg></figure>"


def _warning(text: str) -> str:
    return f"<p class=warning>{html.escape(text)}. What helps: {HELPS}.</p>" if text else ""


def _measured(summary: dict[str, Any]) -> str:
    evaluation = summary["evaluation"]
    rows = [(name, f"{evaluation[name]:.4f}") for name in METRICS if name in evaluation]
    rows += [("validation records", f"{evaluation.get('examples', 0):,}")]
    best = summary["best"]
    if best:
        rows.append((f"best {best['metric']}", f"{best['value']:.4f} after step {best['step']}"))
    rows.append(("parameters", f"{summary['model']['parameters']:,}"))
    rows.append(("trained", f"{summary['model']['trained_parameters']:,}"))
    rows.append(("precision of numbers", summary["model"]["precision"]))
    return f"<h2>What was measured</h2>{_table((), rows)}"


def _classes(run: Run) -> str:
    if run.tally is None:
        return ""
    table = run.tally.table(run.names)
    heads = list(table[0])
    title = "Values" if heads[0] == "value" else "Classes"
    shares = ".4f" if title == "Classes" else ""  # values have units of their own
    rows = [[_number(value, shares) for value in row.values()] for row in table]
    parts = [f"<h2>{title}</h2><div class=row>", _table(heads, rows)]
    matrix = run.tally.confusion
    if matrix is not None and len(run.names) <= _SHOWN:
        parts.append(confusion(matrix, run.names))
    return "".join([*parts, "</div>"])


def confusion(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Return a table of counts [true, predicted]; a darker cell has a larger share of its row."""
    rows = []
    for row, (name, counts) in enumerate(zip(names, matrix.tolist(), strict=True)):
        cells = []
        for column, count in enumerate(counts):
            colour = "40,140,60" if row == column else "190,40,40"
            share = count / max(sum(counts), 1)
            word = html.escape(f"{name} as {names[column]}: {count}")
            style = f"background:rgba({colour},{share:.3f})"
            cells.append(f"<td title='{word}' style='{style}'>{count or ''}")
        rows.append(f"<tr><td>{html.escape(name)}{''.join(cells)}")
    heads = "".join(f"<th>{html.escape(name[:4])}" for name in names)
    caption = "<figcaption>confusion: rows are true, columns predicted</figcaption>"
    return f"<figure>{caption}<table><tr><th>{heads}{''.join(rows)}</table></figure>"


def _number(value: Any, shown: str) -> str:
    """ "-" for None. shown: how a float is formatted."""
    return "-" if value is None else format(value, shown if isinstance(value, float) else "")


def _mistakes(mistakes: Sequence[tuple[np.ndarray, str]], target: str) -> str:
    if not mistakes:
        return ""
    drawn = "".join(_picture(image, caption) for image, caption in mistakes)
    title = "The surest mistakes" if target == targets.CLASS else "The largest mistakes"
    return f"<h2>{title}</h2><div class=row>{drawn}</div>"


def _time(account: dict[str, Any]) -> str:
    """Return where the time went, over all attempts."""
    wall = account["wall_seconds"]
    rows = "".join(
        f"<tr><td>{part}<td>{seconds:,.1f} s<td>{seconds / wall:.1%}"
        f"<td><div class=part><div class=bar style='width:{100 * seconds / wall:.1f}%'></div></div>"
        for part, seconds in sorted(account["seconds"].items(), key=lambda event: -event[1])
    )
    text = f"{wall:,.1f} s in {account['attempts']} attempt(s)"
    if account.get("lost_steps"):
        text += f"; {account['lost_steps']} steps were made again"
    return f"<h2>Where the time went</h2><p>{html.escape(text)}</p><table>{rows}</table>"


def _options(config: Config) -> str:
    """Return the options that have another value than their default."""
    values = dataclasses.asdict(config)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    rows = [
        (f"--{name.replace('_', '-')}", value)
        for name, value in values.items()
        if value != defaults[name]
    ]
    return f"<h2>Options</h2>{_table((), rows, 'words')}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "numbers") -> str:
    head = "".join(f"<th>{cell}" for cell in heads)
    lines = ("".join(f"<td>{html.escape(str(cell))}" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}" for line in lines)
    return f"<table class={kind}><tr>{head}{body}</table>"


def _picture(image: np.ndarray, caption: str) -> str:
    content = base64.b64encode(tf.io.encode_png(image).numpy()).decode()
    words = html.escape(caption)
    source = f"data:image/png;base64,{content}"
    return (
        f"<figure><img class=pixels alt='{words}' src='{source}'>"
        f"<figcaption>{words}</figcaption></figure>"
    )
