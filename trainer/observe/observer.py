"""The interface between the loop and its observers: summaries, utilisation, tuning, progress.

The chief's loop calls every observer at the same places, in the order of the list; the other ranks
ask only where an inner call ends (`until`). An observer reads and reports; it takes part in no
collective operation and changes nothing of the run. So if one fails, it can be left out at once:
see Watch.
"""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.event_lines import say


@dataclass
class Run:
    """Holds the state of a run, for observers to read. Only the loop writes to it."""

    config: Config
    place: Any
    """trainer.loop.distribution.Cluster: role, index, workers, whether this is the chief."""
    strategy: Any
    """tf.distribute.Strategy."""
    names: tuple[str, ...]
    """Names of the classes; label n is names[n]."""
    train: tuple[Any, ...]
    """trainer.input.parts.Shard of the training records; `validation` has those held out."""
    validation: tuple[Any, ...]
    stopwatch: Any
    """trainer.observe.stopwatch.Stopwatch: where the time went."""
    position: Any
    """trainer.job.checkpoints.Position: the present step, examples, epoch."""
    records: dict[str, Any] = field(default_factory=dict)
    """trainer.input.splits.fingerprint of all records."""
    policy: str = "float32"
    """Keras dtype policy."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Software and devices, as in the first log line."""
    model: Any = None
    """None until it is built."""
    scores: Any = None
    """trainer.model.scores.Scores of the last evaluation."""
    judge: Any = None
    """trainer.loop.judge.Judge, which knows the best evaluation."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Observers that failed in this attempt: name and error."""


class Observer:
    """Does nothing on each occasion; a subclass overrides the occasions that it needs."""

    name = ""
    """Key of its state in a checkpoint; "": it has no state."""

    def begin(self, run: Run) -> None:
        """Begin, after a checkpoint was restored and before the first step."""

    def until(self, step: int) -> int | None:
        """Return the next step (> `step`) after which it must be called; None: any step.

        An inner call never goes past that step, so that a profile shows exactly the steps that
        were asked for. The answer may depend on `step` and the options only, because all
        ranks must give the same one.
        """
        return None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        """Take the metrics of an inner call: arrays of one value a step, from `first_step` on.

        They are loss, accuracy, gradient_norm, learning_rate, input_wait (seconds in which
        the step waited for data) and seconds (wall time of one step, the same for all steps of a
        call).
        """

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        """Take the result of an evaluation: trainer.config.METRICS, examples, seconds. `run.scores`
        has more."""

    def end(self, run: Run, outcome: str) -> None:
        """End, with "done", "stopped" (early), "preempted", "diverged" or "fault".

        There may be less than a second left. After kill -9 it is not called.
        """

    def closed(self, run: Run) -> None:
        """Finish, after the last SavedModel of a run that is done or stopped."""

    def state(self) -> dict[str, Any]:
        """Return its state for the checkpoint, in JSON's types."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over, before `begin`, what `state` gave when the checkpoint was taken."""


class Watch:
    """Calls the observers of a run. If one raises, it is reported once and left out from then on.

    An observer must not end a run of hours. But all ranks must agree where an inner call ends. So
    an observer that is left out is still asked `until`, and an error of `until` is not caught.
    """

    def __init__(self, observers: Sequence[Observer], chief: bool = True) -> None:
        self._all = tuple(observers)
        self._kept = list(observers) if chief else []

    def until(self, step: int) -> int | None:
        """Return the next step after which one of them must be called; None: any step."""
        wanted = [observer.until(step) for observer in self._all]
        return min((end for end in wanted if end is not None and end > step), default=None)

    def states(self, run: Run) -> dict[str, Any]:
        """Return the observers' states for the checkpoint, by name."""
        kept: dict[str, Any] = {}

        def ask(observer: Observer) -> None:
            if observer.name:
                kept[observer.name] = json.loads(json.dumps(observer.state()))

        self.each(run, ask)
        return kept

    def restore(self, run: Run, states: Mapping[str, Any]) -> None:
        def give(observer: Observer) -> None:
            if observer.name in states:
                observer.restore(states[observer.name])

        self.each(run, give)

    def each(self, run: Run, tell: Callable[[Observer], None]) -> None:
        """Call `tell` with each observer that has not failed."""
        for observer in tuple(self._kept):
            try:
                tell(observer)
            except Exception as error:
                self._kept.remove(observer)
                name = type(observer).__name__
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                run.left_out[name] = reason
                say(
                    "observer",
                    f"{name} failed and is left out from here on, training goes on: {reason}",
                    "WARNING",
                    step=run.position.step,
                    observer=name,
                    traceback=traceback.format_exc(),
                )
