"""The seam between the loop and what looks on: summaries, utilisation, tuning, progress.

The loop calls every observer at the same places on every rank, in the order of the list. An
observer reads and reports; it takes part in no collective, and it changes nothing of the run. So
one that fails, on whatever rank, can be left out there and then: see Watch.
"""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.report import say


class Writer:
    """TensorBoard's event files, written without TensorBoard: the image need not have it.

    Each `run` ("train", "validation", ...) is a folder below `folder`, so that one chart shows
    several. Where `write` is false (every rank but the chief) nothing is written.
    """

    def __init__(self, folder: str, write: bool) -> None:
        self.folder = folder
        self.write = write
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        proto = tf.compat.v1.SummaryMetadata
        self._metadata = proto(plugin_data=proto.PluginData(plugin_name="scalars"))

    def of(self, run: str) -> tf.summary.SummaryWriter:
        """The writer of a run, made when it is first asked for; one that drops all elsewhere."""
        if not self.write:
            return tf.summary.create_noop_writer()
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(f"{self.folder}/{run}")
        return self._writers[run]

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        if not self.write:
            return
        with self.of(run).as_default():
            for tag, value in values.items():
                tf.summary.write(tag, np.float32(value), step=step, metadata=self._metadata)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()


@dataclass
class Run:
    """What an observer may look at. Only the loop writes to it."""

    config: Config
    place: Any
    """trainer.loop.distribution.Cluster: role, index, workers, whether this is the chief."""
    strategy: Any
    model: Any
    optimizer: Any
    names: tuple[str, ...]
    """Of the classes; label n is names[n]."""
    train: tuple[Any, ...]
    """trainer.input.parts.Shard of the training records, and below of the validation ones."""
    validation: tuple[Any, ...]
    ledger: Any
    """trainer.observe.ledger.Ledger: where the time went."""
    writer: Writer
    position: Any
    """trainer.job.checkpoints.Position: step, examples, epoch; at all times the present one."""
    steps: int
    """Optimizer steps of the whole run, those before a restart included."""
    policy: str = "float32"
    facts: dict[str, Any] = field(default_factory=dict)
    """Software and devices, as in the first log line."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Observers that failed in this attempt, by name, and how."""


class Observer:
    """Does nothing at each occasion; override the ones of interest."""

    name = ""
    """Key of its state in a checkpoint; "" for none."""

    def begin(self, run: Run) -> None:
        """Once, after a checkpoint was taken up, before the first step."""

    def until(self, step: int) -> int | None:
        """The next step (> `step`) after which it wants to be called; None: any. One inner call
        never goes past it, so that a profile or a histogram is of the very step asked for. A
        function of `step` and the options alone: all ranks have to come to the same."""
        return None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        """After each inner call: arrays with one value a step, for first_step, first_step + 1, ...
        There are loss, accuracy, gradient_norm, learning_rate, and (the same for all steps of a
        call) seconds, the wall time of one step, and input_wait, the seconds of it without data."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        """After an evaluation of the model as it is: loss, accuracy, examples, seconds."""

    def saved(self, run: Run, step: int, seconds: float) -> None:
        """After a checkpoint was taken: `seconds` for which training stood still for it."""

    def end(self, run: Run, outcome: str) -> None:
        """Once: "done", "stopped" (early), "preempted", "diverged", "fault". Last words only:
        there may be less than a second left. Not called after kill -9."""

    def closed(self, run: Run) -> None:
        """Once, after the last SavedModel, at the very end of a run that is done or stopped."""

    def state(self) -> dict[str, Any]:
        """What is to lie in the checkpoint, as JSON knows it."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """What `state` gave when the checkpoint was taken; called before `begin`."""


class Watch:
    """The observers of a run as one. One that raises is told of, once, and left out from then on.

    What looks on must not end a run of hours. Leaving it out on one rank alone is no harm to the
    others, as it takes part in no collective. Where a call ends, though, all ranks have to come to
    the same: what is left out is still asked `until`, and what that raises is not caught.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = tuple(observers)
        self._kept = list(observers)

    def until(self, step: int) -> int | None:
        """The next step after which one of them wants to be called."""
        wanted = [one.until(step) for one in self._all]
        return min((one for one in wanted if one is not None and one > step), default=None)

    def begin(self, run: Run) -> None:
        self._each(run, lambda one: one.begin(run))

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._each(run, lambda one: one.steps(run, first_step, metrics))

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        self._each(run, lambda one: one.evaluated(run, step, result))

    def saved(self, run: Run, step: int, seconds: float) -> None:
        self._each(run, lambda one: one.saved(run, step, seconds))

    def end(self, run: Run, outcome: str) -> None:
        self._each(run, lambda one: one.end(run, outcome))

    def closed(self, run: Run) -> None:
        self._each(run, lambda one: one.closed(run))

    def states(self, run: Run) -> dict[str, Any]:
        """What is to lie in the checkpoint, by name."""
        found: dict[str, Any] = {}

        def ask(one: Observer) -> None:
            if one.name:
                found[one.name] = json.loads(json.dumps(one.state()))

        self._each(run, ask)
        return found

    def restore(self, run: Run, states: Mapping[str, Any]) -> None:
        self._each(run, lambda one: one.restore(states[one.name]) if one.name in states else None)

    def _each(self, run: Run, tell: Callable[[Observer], None]) -> None:
        for one in tuple(self._kept):
            try:
                tell(one)
            except Exception as error:
                self._kept.remove(one)
                name = type(one).__name__
                said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                run.left_out[name] = said
                say(
                    "observer",
                    f"{name} failed and is left out from here on, training goes on: {said}",
                    "WARNING",
                    step=run.position.step,
                    observer=name,
                    traceback=traceback.format_exc(),
                )
