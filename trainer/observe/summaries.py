"""What TensorBoard shows of training: scalars, options, the graph, weights, a profile.

These observers write on the chief, at cadences in steps. The runs `train` and `validation` have the
same tags, so that one chart shows both. The time of each kind of summary is measured. Histograms
and activations, which are expensive, are skipped where they would cost too much of the run.
"""

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from trainer.config import METRICS, Config
from trainer.observe import events
from trainer.observe.board import Board
from trainer.observe.observer import Observer, Run
from trainer.report import say


class Scalars(Observer):
    """Loss, accuracy, learning rate, gradient norm; speed; the split of a step."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._before: dict[str, float] = {}
        self._reached = 0

    def begin(self, run: Run) -> None:
        self.board.begin(run)
        self._before = run.ledger.seconds()

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if not self.board.writes:
            return
        with self.board.spend("scalars"):
            train = self.board.of("train")
            if first_step <= self._reached:  # back to a checkpoint
                self.board.restart(first_step)
            self._reached = run.position.step
            shown = {k: v for k, v in metrics.items() if k not in ("seconds", "input_wait")}
            count = len(metrics["loss"])
            for index in range(count):
                values = {name: float(value[index]) for name, value in shown.items()}
                train.scalars(first_step + index, values)
            train.scalars(first_step + count - 1, self._speed(run, metrics, count))

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if self.board.writes:
            with self.board.spend("scalars"):
                known = {name: result[name] for name in METRICS if name in result}
                self.board.of("validation").scalars(
                    step, {name: value for name, value in known.items() if np.isfinite(value)}
                )

    def _speed(self, run: Run, metrics: Mapping[str, np.ndarray], count: int) -> dict[str, float]:
        """Examples a second, and milliseconds a step by part, since the last call."""
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


class Options(Observer):
    """Every option as text."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin(self, run: Run) -> None:
        if self.board.writes and run.place.role != "evaluator" and run.position.step == 0:
            options = dataclasses.asdict(run.config)
            table = "\n".join(f"| {key} | {value} |" for key, value in options.items())
            self.board.of("").text(0, "options", f"| option | value |\n|---|---|\n{table}")


class Graph(Observer):
    """The model's graph, once a job."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def begin(self, run: Run) -> None:
        fresh = run.position.step == 0 and run.place.role != "evaluator"
        if not (self.board.writes and fresh):
            return
        with self.board.spend("graph"):
            size = run.config.image_size
            images = tf.TensorSpec((None, size, size, 3), tf.uint8, name="images")
            # A function around the model, because Keras would keep the trace of the model itself.
            call = tf.function(lambda images: run.model(images, training=False))
            graph = call.get_concrete_function(images).graph
            self.board.of("train").graph(graph.as_graph_def())


class Every(Observer):
    """Something expensive, every `every` steps and at the end, within the budget."""

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
    """Histograms of the trained weights."""

    kind = "histograms"

    def __init__(self, board: Board, config: Config) -> None:
        super().__init__(board, config.histograms_every)

    def look(self, run: Run, step: int) -> None:
        values = {
            f"weights/{variable.path}": events.buckets(variable.numpy())
            for variable in run.model.trainable_variables
        }
        self.board.of("train").histograms(step, values)


class Profile(Observer):
    """TensorFlow's profiler over the steps of --profile-steps, on the chief.

    Each of these steps is an inner call of its own and is marked in the trace.
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
