"""What TensorBoard shows of a run. Observers: they read, at cadences in steps, on the chief.

Everything is written under `train` and `validation` with the same tags, so that one chart shows
both. What it costs is measured kind by kind; histograms and activations, the dear ones, are
skipped where they would take more of the run than --summary-budget.
"""

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.input import data, spectrograms
from trainer.observe import drawing, events
from trainer.observe.observer import Observer, Run
from trainer.records import tfrecord
from trainer.report import say

POOL = 256
"""Held-out examples that pictures, confusion matrix and activations are made from."""
PROBE = 32
"""Of these, the ones whose activations are looked at."""
_BATCH = 32
_BOUNDS = {
    "sigmoid": (0.0, 1.0),
    "hard_sigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
}
_NEAR = 0.01
"""Closer to a bound than this share of the range is saturated."""


class Board:
    """The event files of a job, and what has been spent on them."""

    def __init__(self) -> None:
        self._runs: dict[str, events.Events] = {}
        self._folder = ""
        self._write = False
        self._shared = False
        self._run: Any = None
        self._step = 0
        self._latest: dict[str, float] = {}
        self.costs: dict[str, dict[str, float]] = {}
        """By kind: times, seconds, skipped."""

    def begin(self, run: Run) -> None:
        self._folder, self._write = run.config.log_dir, run.writer.write
        self._step = run.position.step
        self._run = run
        # A dedicated evaluator writes there, too: neither may take away what the other wrote.
        self._shared = run.place.evaluator

    @property
    def writes(self) -> bool:
        return self._write

    @property
    def folder(self) -> str:
        return self._folder

    def of(self, name: str) -> events.Events:
        """The events of "train", "validation" or "" (the job itself)."""
        if name not in self._runs:
            folder = f"{self._folder}/{name}".rstrip("/")
            shared = self._shared and name == "validation"
            first = self._run.position.step if shared else self._step + 1
            self._runs[name] = events.Events(folder, first)
        return self._runs[name]

    def restart(self, step: int) -> None:
        """Steps from `step` on are made again: what was written of them is to be forgotten."""
        for name, opened in self._runs.items():
            if not (self._shared and name == "validation"):
                opened.restart(step)

    @contextlib.contextmanager
    def spend(self, kind: str) -> Iterator[None]:
        """Measure what is done inside."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        cost = self._cost(kind)
        cost["times"] += 1
        cost["seconds"] += seconds
        self._latest[kind] = seconds

    def affordable(self, run: Run, kind: str) -> bool:
        """Would one more of `kind` keep all summaries within the budget?

        The first two always may: the first is also traced, the second tells what one costs.
        """
        if self._cost(kind)["times"] < 2:
            return True
        spent = run.ledger.seconds()["summaries"] + self._latest[kind]
        if spent <= run.config.summary_budget * run.ledger.wall():
            return True
        cost = self._cost(kind)
        cost["skipped"] += 1
        if cost["skipped"] == 1:
            text = (
                f"{kind} take {self._latest[kind]:.2f} s each: skipped where they would cost more "
                f"than {run.config.summary_budget:.0%} of the run (--summary-budget, or larger "
                "steps between them)"
            )
            say("summaries", text, step=run.position.step)
        return False

    def flush(self) -> None:
        for opened in self._runs.values():
            opened.flush()

    def close(self) -> None:
        for opened in self._runs.values():
            opened.close()
        self._runs.clear()

    def _cost(self, kind: str) -> dict[str, float]:
        return self.costs.setdefault(kind, {"times": 0, "seconds": 0.0, "skipped": 0})


class Scalars(Observer):
    """Loss, accuracy, learning rate, gradient norm; speed; the split of a step."""

    FLUSH = 10.0
    """Seconds after which what is written becomes readable."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._before: dict[str, float] = {}
        self._flushed = 0.0
        self._reached = 0

    def begin(self, run: Run) -> None:
        self.board.begin(run)
        self._before = run.ledger.seconds()

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        every = run.config.scalars_every
        if not (self.board.writes and every):
            return
        with self.board.spend("scalars"):
            train = self.board.of("train")
            if first_step <= self._reached:  # back to a checkpoint
                self.board.restart(first_step)
            self._reached = run.position.step
            shown = {k: v for k, v in metrics.items() if k not in ("seconds", "input_wait")}
            count = len(metrics["loss"])
            for index in range(count):
                if (first_step + index) % every == 0:
                    values = {name: float(value[index]) for name, value in shown.items()}
                    train.scalars(first_step + index, values)
            last = first_step + count - 1
            if any(step % every == 0 for step in range(first_step, last + 1)):
                train.scalars(last, self._speed(run, metrics, count))
            if time.monotonic() - self._flushed > self.FLUSH:
                self.board.flush()
                self._flushed = time.monotonic()

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if self.board.writes:
            with self.board.spend("scalars"):
                self.board.of("validation").scalars(
                    step, {name: result[name] for name in ("loss", "accuracy")}
                )
                self.board.flush()

    def end(self, run: Run, outcome: str) -> None:
        self.board.flush()

    def _speed(self, run: Run, metrics: Mapping[str, np.ndarray], count: int) -> dict[str, float]:
        """Examples a second, and milliseconds a step by part since the last call."""
        now = run.ledger.seconds()
        split = {
            f"step_ms/{part}": 1000 * (now[part] - self._before.get(part, 0.0)) / count
            for part in ("input", "compute", "checkpoint", "evaluation", "summaries", "other")
        }
        self._before = now
        seconds = float(metrics["seconds"][0])
        return {
            "examples_per_second": run.config.batch_size / seconds,
            "epoch": run.position.epoch,
            "step_ms/total": 1000 * seconds,
            **split,
        }


class Hyperparameters(Observer):
    """What training depends on, for the HParams page; every option as text."""

    ABSENT = re.compile(
        r"records|.*_dir|.*_every|.*_sha256|keep_.*|steps_per_loop|.*_seconds|evaluate_.*|export|"
        r"evaluation|grace|examples|graph|summary_budget|profile_steps|price_per_hour|output|metric"
    )
    """No hyperparameters: where it writes, how often it looks."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin(self, run: Run) -> None:
        if self.board.writes and run.place.role != "evaluator" and run.position.step == 0:
            options = dataclasses.asdict(run.config)
            chosen = {k: v for k, v in options.items() if not self.ABSENT.fullmatch(k)}
            with self.board.spend("hyperparameters"):
                job = self.board.of("")
                job.hyperparameters(chosen, time.time())
                table = "\n".join(f"| {key} | {value} |" for key, value in options.items())
                job.text(0, "options", f"| option | value |\n|---|---|\n{table}")

    def end(self, run: Run, outcome: str) -> None:
        if self.board.writes and run.place.role != "evaluator" and outcome != "preempted":
            self.board.of("").finished(outcome in ("done", "stopped"))


class Graph(Observer):
    """The model as the devices see it, once a job."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin(self, run: Run) -> None:
        fresh = run.position.step == 0 and run.place.role != "evaluator"
        if not (self.board.writes and run.config.graph and fresh):
            return
        with self.board.spend("graph"):
            size = run.config.image_size
            images = tf.TensorSpec((None, size, size, 3), tf.uint8, name="images")
            # Not the model itself: Keras would keep the trace, and with it its function.
            call = tf.function(lambda images: run.model(images, training=False))
            graph = call.get_concrete_function(images).graph
            self.board.of("train").graph(graph.as_graph_def())


class Every(Observer):
    """Something dear, every so many steps and at the end, as far as the budget goes."""

    kind = ""

    def __init__(self, board: Board, every: int) -> None:
        self.board = board
        self.every = every
        self._done = -1

    def until(self, step: int) -> int | None:
        return (step // self.every + 1) * self.every if self.every else None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if self.every and run.position.step % self.every == 0:
            self._look(run)

    def end(self, run: Run, outcome: str) -> None:
        if self.every and outcome in ("done", "stopped") and run.position.step != self._done:
            self._look(run)

    def look(self, run: Run, step: int) -> None:
        raise NotImplementedError

    def _look(self, run: Run) -> None:
        self._done = run.position.step
        evaluator = run.place.role == "evaluator"
        if self.board.writes and not evaluator and self.board.affordable(run, self.kind):
            with self.board.spend(self.kind):
                self.look(run, run.position.step)


class Weights(Every):
    """Histograms of what is trained."""

    kind = "histograms"

    def __init__(self, board: Board, config: Config) -> None:
        super().__init__(board, config.histograms_every)

    def look(self, run: Run, step: int) -> None:
        values = {
            f"weights/{variable.path}": events.buckets(variable.numpy())
            for variable in run.model.trainable_variables
        }
        self.board.of("train").histograms(step, values)


class Activations(Every):
    """Histograms of each layer's output; zeros, dead and saturated units of ReLUs and sigmoids.

    Over PROBE held-out examples, always the same ones, as the model predicts (not as it trains:
    no dropout, stored BatchNorm statistics). A unit is a channel of the layer's output.
    zeros: share of outputs that are 0 (ReLU). dead: share of units that are 0 for every example
    and place (ReLU), or at one bound for all (sigmoid, tanh): they learn nothing. saturated:
    share of outputs within 1 % of a bound (sigmoid, tanh; the upper one of ReLU6).
    """

    kind = "activations"

    def __init__(self, board: Board, config: Config, pool: "Pool") -> None:
        super().__init__(board, config.activations_every)
        self.pool = pool
        self._probe: Any = None
        self._layers: list[tuple[str, str]] = []
        self.latest: dict[str, dict[str, float]] = {}
        """By layer: the last zeros, dead, saturated."""

    def look(self, run: Run, step: int) -> None:
        images, _ = self.pool.examples(run)
        if self._probe is None:
            self._layers, self._probe = probe(run.model)
        found = [[part.numpy() for part in one] for one in self._probe(images[:PROBE])]
        histograms, scalars = {}, {}
        for (name, kind), (counts, bounds, zeros, dead, saturated) in zip(
            self._layers, found, strict=True
        ):
            histograms[f"activations/{name}"] = events.rows(counts, *map(float, bounds))
            shares = {}
            if kind in ("relu", "relu6"):
                shares["zeros"] = float(zeros)
            if kind == "relu" or kind in _BOUNDS:
                shares["dead"] = float(dead)
            if kind in _BOUNDS:
                shares["saturated"] = float(saturated)
            if shares:
                self.latest[name] = shares
                scalars.update({f"{what}/{name}": share for what, share in shares.items()})
        self.board.of("train").histograms(step, histograms)
        self.board.of("train").scalars(step, scalars)


def probe(network: keras.Model) -> tuple[list[tuple[str, str]], Any]:
    """Layers with an activation as (name, kind), and a function from images to their statistics.

    Of each layer: counts of events.BUCKETS buckets, [low, high], share of zeros, share of dead
    units, share of saturated outputs. Computed on the device; only this little leaves it.
    """
    chosen = [(layer, kind) for layer in network.layers if (kind := activation(layer))]
    inner = keras.Model(network.inputs, [layer.output for layer, _ in chosen])

    @tf.function
    def statistics(images: tf.Tensor) -> list[tuple[tf.Tensor, ...]]:
        outputs = inner(images, training=False)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        return [_statistics(o, kind) for o, (_, kind) in zip(outputs, chosen, strict=True)]

    return [(layer.name, kind) for layer, kind in chosen], statistics


def activation(layer: Any) -> str:
    """relu, relu6, sigmoid, silu ...: what a layer ends with; "" for nothing, or a linear one."""
    if isinstance(layer, keras.layers.ReLU):
        if layer.negative_slope:
            return "leaky_relu"
        return "relu" if layer.max_value is None else f"relu{layer.max_value:g}"
    function = getattr(layer, "activation", None)
    name = getattr(function, "__name__", "")
    return "" if name == "linear" or not function else name


def _statistics(output: tf.Tensor, kind: str) -> tuple[tf.Tensor, ...]:
    flat = tf.reshape(tf.cast(output, tf.float32), [-1, output.shape[-1]])
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    wide = tf.maximum(high, low + 1e-12)
    counts = tf.histogram_fixed_width(flat, [low, wide], events.BUCKETS)
    zero = tf.equal(flat, 0.0)
    if kind in _BOUNDS:
        bottom, top = _BOUNDS[kind]
        margin = _NEAR * (top - bottom)
        at_top = flat >= top - margin
        # 0 is where a ReLU6 is silent, not where it is saturated.
        at_bottom = zero if kind == "relu6" else flat <= bottom + margin
        stuck = tf.reduce_all(at_top, axis=0) | tf.reduce_all(at_bottom, axis=0)
        saturated = at_top if kind == "relu6" else at_top | at_bottom
    else:
        stuck, saturated = tf.reduce_all(zero, axis=0), tf.zeros_like(zero)
    shares = [tf.reduce_mean(tf.cast(one, tf.float32)) for one in (zero, stuck, saturated)]
    return (counts, tf.stack([low, wide]), *shares)


class Pictures(Observer):
    """After an evaluation: the most confident mistakes, and who is taken for whom."""

    def __init__(self, board: Board, pool: "Pool") -> None:
        self.board = board
        self.pool = pool
        self._predict: Any = None

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if not (self.board.writes and run.config.examples):
            return
        if step < run.steps and not self.board.affordable(run, "pictures"):
            return
        with self.board.spend("pictures"):
            images, labels = self.pool.examples(run)
            if self._predict is None:
                network = run.model
                self._predict = tf.function(lambda x: tf.nn.softmax(network(x, training=False)))
            parts = [
                self._predict(images[at : at + _BATCH]).numpy()
                for at in range(0, len(images), _BATCH)
            ]
            probabilities = np.concatenate(parts)
            answers = probabilities.argmax(axis=1)
            classes = len(run.names)
            matrix = np.bincount(labels * classes + answers, minlength=classes**2)
            validation = self.board.of("validation")
            picture = drawing.confusion(matrix.reshape(classes, classes), run.names)
            validation.images(step, "confusion", [picture])
            sure = probabilities.max(axis=1)
            shown = {"misclassified": surest(sure, answers != labels, labels * 0)}
            if run.config.rate:
                shown["recognised"] = surest(sure, answers == labels, labels)
            for tag, order in shown.items():
                shown[tag] = order = order[: run.config.examples]
                captions = [
                    [f"is {run.names[labels[one]]}", f"{sure[one]:.0%} {run.names[answers[one]]}"]
                    for one in order
                ]
                drawn = map(drawing.captioned, images[order], captions)
                validation.images(step, tag, list(drawn))
            if run.config.rate:
                self._sounds(run, step, shown, sure, labels, answers)

    def _sounds(
        self,
        run: Run,
        step: int,
        shown: Mapping[str, np.ndarray],
        sure: np.ndarray,
        labels: np.ndarray,
        answers: np.ndarray,
    ) -> None:
        """What was heard of the examples that are shown, in the same order, and a list of them."""
        validation = self.board.of("validation")
        clips = self.pool.heard(np.concatenate(list(shown.values())))
        rows = ["| | is | taken for | sure |", "|---|---|---|---|"]
        for tag, order in shown.items():
            for number, one in enumerate(order.tolist(), start=1):
                validation.sound(step, f"{tag}/{number}", clips[one])
                true, taken = (run.names[of[one]].replace("|", "\\|") for of in (labels, answers))
                rows.append(f"| {tag}/{number} | {true} | {taken} | {sure[one]:.0%} |")
        validation.text(step, "sounds", "\n".join(rows))


def surest(sure: np.ndarray, chosen: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Numbers of the `chosen` examples, the surest first: of each group its surest, then of each
    its second, and so on."""
    order = np.flatnonzero(chosen)
    order = order[np.argsort(-sure[order], kind="stable")]
    before: Counter[int] = Counter()
    turns = []
    for group in groups[order].tolist():
        turns.append(before[group])
        before[group] += 1
    return order[np.argsort(turns, kind="stable")]


class Pool:
    """POOL held-out examples, the same ones each time: from the beginnings of up to 32 files."""

    FILES = 32

    def __init__(self) -> None:
        self._examples: tuple[np.ndarray, np.ndarray] | None = None
        self._taken: tuple[data.Shard, ...] = ()

    def examples(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [n, size, size, 3] and int64 [n]."""
        if self._examples is None:
            self._examples = self._read(run)
        return self._examples

    def heard(self, numbers: np.ndarray) -> dict[int, bytes]:
        """WAV files of what evaluation hears of these examples. They are read anew: all of them
        would be tens of megabytes, for as long as the run lasts."""
        sound, found = self._taken[0].sound, {}
        paths, counts = zip(*((s.path, s.records) for s in self._taken), strict=True)
        records = tf.data.Dataset.from_tensor_slices((list(paths), list(counts))).flat_map(
            lambda path, count: tf.data.TFRecordDataset(path).take(tf.cast(count, tf.int64))
        )
        for number, record in enumerate(records.take(POOL).as_numpy_iterator()):
            if number in numbers:
                content = tfrecord.features(record)["audio/encoded"]
                found[number] = spectrograms.clip(content, sound)
        return found

    def _read(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        shards = [shard for shard in run.validation if shard.records]
        chosen = shards[:: -(-len(shards) // self.FILES)]
        each = -(-POOL // len(chosen))
        taken = tuple(dataclasses.replace(s, records=min(each, s.records)) for s in chosen)
        self._taken = taken
        dataset = data.evaluation(
            taken,
            tf.distribute.InputContext(),
            batch_size=_BATCH,
            image_size=run.config.image_size,
            classes=len(run.names),
        )
        images, labels, weights = zip(*dataset.as_numpy_iterator(), strict=True)
        real = np.concatenate(weights) > 0
        return np.concatenate(images)[real][:POOL], np.concatenate(labels)[real][:POOL]


class Profile(Observer):
    """TensorFlow's profiler over the steps of --profile-steps, on the chief.

    Each of them is a call of its own, and marked in the trace.
    """

    def __init__(self, board: Board, config: Config) -> None:
        self.board = board
        self.first, self.last = config.profile_steps or (0, 0)
        self._running = self._failed = False
        self._mark = contextlib.ExitStack()

    def begin(self, run: Run) -> None:
        if run.place.role == "evaluator":
            self.last = 0
        self._turn(run.position.step)

    def until(self, step: int) -> int | None:
        if not self.last or step >= self.last:
            return None
        return max(self.first - 1, step + 1)

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._turn(run.position.step)

    def end(self, run: Run, outcome: str) -> None:
        self._stop(run.position.step)

    def _turn(self, step: int) -> None:
        self._mark.close()
        if self._running and step >= self.last:
            self._stop(step)
        elif self.board.writes and self.last and self.first - 1 <= step < self.last:
            self._start(step)
        if self._running:
            mark = tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1)
            self._mark.enter_context(mark)

    def _start(self, step: int) -> None:
        if self._running or self._failed:
            return
        with self.board.spend("profile"):
            try:
                tf.profiler.experimental.start(f"{self.board.folder}/train")
                self._running = True
            except tf.errors.OpError as error:
                self._failed = True
                say("profile", f"cannot profile: {error.message}", "WARNING", step=step)

    def _stop(self, step: int) -> None:
        self._mark.close()
        if not self._running:
            return
        self._running = False
        with self.board.spend("profile"):
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                say("profile", f"the profile was lost: {error.message}", "WARNING", step=step)
                return
        folder = f"{self.board.folder}/train/plugins/profile"
        say("profile", f"steps {self.first} to {step} are in {folder}", step=step, path=folder)
