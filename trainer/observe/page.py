"""report.html: a run, with the curves of all its attempts, on one page, which needs no other file,
no script and no network."""

import base64
import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import METRICS, Config
from trainer.event_lines import say
from trainer.input import data, targets
from trainer.job import storage
from trainer.model import optimization
from trainer.observe.observer import Observer, Run

REPORT = "report.html"
"""In the job folder."""
POINTS = 400
"""Most points of a curve; with more, every second one is left out."""
POOL, FILES = 256, 32
"""Most held-out examples that are looked at, always the same ones, from so many files at most."""
WORST = 8
"""Mistakes in the report."""
_BATCH = 32
SHOWN = ("loss", "accuracy", "mae")
"""The curves; accuracy and mae exclude each other."""
CLASSES = 40
"""Most classes of a confusion matrix on the page."""
_WIDE, _HIGH, _LEFT, _LOW = 520, 220, 52, 24
_COLOURS = {"training": "#3b6fb5", "evaluation": "#c2571a"}
HELPS = (
    "more records, --trivial-augment, --crop 0.35 --flip horizontal, --mixup 0.2, --dropout 0.3, "
    "--weight-decay, given --weights, --early-stopping 3, or fewer --epochs"
)
"""Options against overfitting."""
_RISEN = 1.2
"""A validation loss that is so many times the least one has risen."""

Curve = list[tuple[int, float]]
"""Steps and values."""
Curves = dict[str, Curve]
"""By the curves' names: "loss, training"."""


class Mistakes(Observer):
    """Looks for the worst answers after the last evaluation, with --summaries images after each."""

    def __init__(self) -> None:
        self._pool: tuple[np.ndarray, np.ndarray] | None = None
        self._predict: Any = None
        self.pictures: list[tuple[np.ndarray, str]] = []
        """Those of the last evaluation, with their captions."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        last = step >= run.config.steps or run.judge.stop
        if not (last or "images" in run.config.summaries):
            return
        self._predict = self._predict or optimization.predictor(run.config, run.model)
        images, labels = self.examples(run)
        starts = range(0, len(images), _BATCH)
        parts = [self._predict(images[at : at + _BATCH]).numpy() for at in starts]
        captions = worst(run, labels, np.concatenate(parts))
        self.pictures = [(images[number], caption) for number, caption in captions]

    def examples(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples that are looked at: pictures and targets."""
        self._pool = self._pool or pool(run)
        return self._pool


def pool(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out examples from the beginnings of the files: pictures and targets."""
    shards = [shard for shard in run.validation if shard.records]
    chosen = shards[:: -(-len(shards) // FILES)]
    each = -(-POOL // len(chosen))
    shards = [dataclasses.replace(shard, records=min(each, shard.records)) for shard in chosen]
    context = tf.distribute.InputContext()
    dataset = data.evaluation(tuple(shards), context, run.config, len(run.names), _BATCH)
    images, labels, weights = zip(*dataset.as_numpy_iterator(), strict=True)
    real = np.concatenate(weights) > 0
    return np.concatenate(images)[real][:POOL], np.concatenate(labels)[real][:POOL]


def worst(run: Run, labels: np.ndarray, predicted: np.ndarray) -> list[tuple[int, str]]:
    """Return numbers and captions of the WORST examples whose prediction is furthest from what they
    are: of a class, the surest of the wrong ones.
    """
    names = run.names
    if run.config.target == targets.CLASS:
        answers, sure = predicted.argmax(axis=1), predicted.max(axis=1)
        wrong = np.flatnonzero(answers != labels)
        order = wrong[np.argsort(-sure[wrong], kind="stable")][:WORST]
        return [(n, f"is {names[labels[n]]}, {sure[n]:.0%} {names[answers[n]]}") for n in order]
    scale = np.asarray(optimization.units(run.config, run.model)[1])
    far = np.abs((predicted - labels) / scale).max(axis=1)

    def words(own: np.ndarray) -> str:
        if run.config.target == targets.VALUES:
            return ", ".join(f"{value:.4g}" for value in own)
        present = [name for name, value in zip(names, own, strict=True) if value >= 0.5]
        return ", ".join(present) or "none"

    order = np.argsort(-far, kind="stable")[:WORST]
    return [(n, f"is {words(labels[n])}, predicted {words(predicted[n])}") for n in order]


class Report(Observer):
    """Collects the curves, and writes the page when the run is over."""

    name = "page"

    def __init__(self, mistakes: Mistakes, account: Any) -> None:
        """`account`: insight.Account."""
        self.mistakes, self.account = mistakes, account
        self.curves: Curves = {}
        self._every = 1

    def state(self) -> dict[str, Any]:
        return {"curves": self.curves, "every": self._every}

    def restore(self, state: dict[str, Any]) -> None:
        self._every, self.curves = state["every"], state["curves"]

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        for name in (name for name in SHOWN if name in metrics):
            curve = self._curve(f"{name}, training", first_step)
            numbered = enumerate(metrics[name].tolist(), start=first_step)
            curve += [(step, round(v, 5)) for step, v in numbered if step % self._every == 0]
        if len(self.curves["loss, training"]) > POINTS:
            self._every *= 2
            for curve in (curve for name, curve in self.curves.items() if "training" in name):
                curve[:] = [point for point in curve if point[0] % self._every == 0]

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        for name in (name for name in SHOWN if name in result):
            self._curve(f"{name}, evaluation", step).append((step, round(result[name], 5)))

    def end(self, run: Run, outcome: str) -> None:
        text = overfitting(self.curves)
        if outcome in ("done", "stopped") and text:
            best = f"{run.config.checkpoint_dir}/best has the best by --metric {run.config.metric}"
            helps = f"what helps: {HELPS}; {best}"
            say("overfitting", f"{text}; {helps}", "WARNING", step=run.position.step)

    def closed(self, run: Run) -> None:
        path = f"{run.config.job_dir}/{REPORT}"
        text = page(run, self.account.summary(run), self.curves, self.mistakes.pictures)
        if storage.attempt(path, text.encode()):
            say("report", f"the run on one page: {path}", path=path)

    def _curve(self, name: str, first: int) -> Curve:
        """Return a curve without its points from step `first` on, which are made again."""
        curve = self.curves.setdefault(name, [])
        while curve and curve[-1][0] >= first:
            curve.pop()
        return curve


def page(
    run: Run,
    summary: dict[str, Any],
    curves: Curves,
    mistakes: Sequence[tuple[np.ndarray, str]],
) -> str:
    """Return the page's HTML. `mistakes`: uint8 pictures with captions."""
    title = f"{run.model.name}: {summary['outcome']} at step {run.position.step}"
    warning, matrix = overfitting(curves), run.scores and run.scores.confusion
    rows = run.scores.table(run.names) if run.scores else []
    values = bool(rows) and "value" in rows[0]
    shown = "" if values else ".4f"  # values have units of their own
    time = summary["time"]
    return Template(Path(__file__).with_name("report.html").read_text()).substitute(
        title=escape(title),
        warning=f"<p class=warning>{escape(f'{warning}. What helps: {HELPS}')}." if warning else "",
        measured=table((), _measured(summary)),
        curves="".join(chart(name, curves) for name in SHOWN),
        parts="Values" if values else "Classes",
        table=table(rows[0], ([_cell(v, shown) for v in row.values()] for row in rows))
        if rows
        else "",
        confusion=confusion(matrix, run.names)
        if matrix is not None and len(run.names) <= CLASSES
        else "",
        which="surest" if run.config.target == targets.CLASS else "largest",
        mistakes="".join(_picture(*mistake) for mistake in mistakes) or "none",
        time=table(
            (f"{time['attempts']} attempt(s)", f"{time['wall_seconds']:,.1f} s", ""),
            (
                (part, f"{seconds:,.1f} s", f"{seconds / time['wall_seconds']:.1%}")
                for part, seconds in sorted(time["seconds"].items(), key=lambda part: -part[1])
            ),
        ),
        options=table((), _options(run.config), "words"),
    )


def overfitting(curves: Curves) -> str:
    """Return, in words, that a run learnt its training records and not what they have in common:
    since some step the validation loss has risen, and the training loss is lower. "": not so.
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


def table(heads: Iterable[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """Return a table of texts and numbers, a row of which is a sequence."""
    head = "".join(f"<th>{escape(cell)}" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) for row in rows)
    return f"<table class='{kind}'><tr>{head}{body}</table>"


def confusion(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Return a table of counts [true, predicted]; a darker cell has a larger share of its row."""
    rows = ""
    for row, (name, counts) in enumerate(zip(names, matrix.tolist(), strict=True)):
        rows += f"<tr><td>{escape(name)}"
        for column, count in enumerate(counts):
            colour = "40,140,60" if row == column else "190,40,40"
            words = escape(f"{name} as {names[column]}: {count}")
            style = f"background:rgba({colour},{count / max(sum(counts), 1):.3f})"
            rows += f"<td title='{words}' style='{style}'>{count or ''}"
    heads = "".join(f"<th>{escape(name[:4])}" for name in names)
    caption = "<figcaption>confusion: rows are true, columns predicted</figcaption>"
    return f"<figure>{caption}<table><tr><th>{heads}{rows}</table></figure>"


def chart(name: str, curves: Curves) -> str:
    """Return a drawing of the curves `name, training` and `name, evaluation`; bad values are left
    out. "": there are none.
    """
    drawn = {
        kind: [(x, y) for x, y in curves.get(f"{name}, {kind}", []) if np.isfinite(y)]
        for kind in _COLOURS
    }
    points = [point for curve in drawn.values() for point in curve]
    if not points:
        return ""
    right, high = max(x for x, _ in points), max(y for _, y in points)
    low = min(0.0, min(y for _, y in points))
    high = max(high, low + 1e-6)

    def across(x: float) -> str:
        return f"{_LEFT + (_WIDE - _LEFT - 10) * x / max(right, 1):.1f}"

    def down(y: float) -> float:
        return round(8 + (_HIGH - _LOW - 8) * (high - y) / (high - low), 1)

    lines = [f"<text x={_LEFT} y={_HIGH - 6} fill=#5b6673>step 0 to {right}</text>"]
    for value in (low, (low + high) / 2, high):
        lines.append(f"<path d='M{_LEFT} {down(value)}H{_WIDE - 10}' stroke=#dde2e7 />")
        lines.append(f"<text x=4 y={down(value) + 4} fill=#5b6673>{value:.3g}</text>")
    for number, (kind, colour) in enumerate(_COLOURS.items()):
        places = [(across(x), down(y)) for x, y in drawn[kind]]
        path = " ".join(f"{x},{y}" for x, y in places)
        lines.append(f"<polyline points='{path}' fill=none stroke={colour} stroke-width=1.6 />")
        if kind == "evaluation":
            lines += [f"<circle cx={x} cy={y} r=2.5 fill={colour} />" for x, y in places]
        beside = _WIDE - 170 + 85 * number
        lines.append(f"<text x={beside} y={_HIGH - 6} fill={colour}>{kind}</text>")
    if name == "loss" and overfitting(curves):
        step, _ = min(drawn["evaluation"], key=lambda point: point[1])
        mark = f"M{across(step)} 8V{_HIGH - _LOW}"
        lines.append(f"<path d='{mark}' stroke=#c2571a stroke-dasharray=4 />")
        text = f"least after step {step}"
        lines.append(f"<text x={across(step)} y=18 dx=4 fill=#c2571a>{text}</text>")
    drawing = f"<svg viewBox='0 0 {_WIDE} {_HIGH}' width={_WIDE} role=img>{''.join(lines)}</svg>"
    return f"<figure><figcaption>{name}</figcaption>{drawing}</figure>"


def _measured(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    evaluation, best, model = summary["evaluation"], summary["best"], summary["model"]
    yield from ((name, f"{evaluation[name]:.4f}") for name in METRICS if name in evaluation)
    yield "validation records", f"{evaluation.get('examples', 0):,}"
    if best:
        yield f"best {best['metric']}", f"{best['value']:.4f} after step {best['step']}"
    yield "parameters", f"{model['parameters']:,}"
    yield "trained", f"{model['trained_parameters']:,}"
    yield "precision of numbers", model["precision"]


def _options(config: Config) -> Iterable[tuple[str, Any]]:
    """Yield the options that have another value than their default."""
    for field in dataclasses.fields(config):
        if (value := getattr(config, field.name)) != field.default:
            yield f"--{field.name.replace('_', '-')}", value


def _cell(value: Any, shown: str) -> str:
    """Return a cell's text; `shown` is the format of a float."""
    return "-" if value is None else format(value, shown if isinstance(value, float) else "")


def _picture(image: np.ndarray, caption: str) -> str:
    content = base64.b64encode(tf.io.encode_png(image).numpy()).decode()
    words = escape(caption)
    picture = f"<img alt='{words}' src='data:image/png;base64,{content}'>"
    return f"<figure>{picture}<figcaption>{words}</figcaption></figure>"
