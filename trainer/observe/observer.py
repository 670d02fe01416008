"""The interface between the loop and its observers: summaries, utilisation, tuning, progress.

The loop calls every observer at the same places on every rank, in the order of the list. An
observer reads and reports; it takes part in no collective operation and changes nothing of the run.
So if one fails, on any rank, it can be left out at once: see Watch.
"""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.report import say


@dataclass
class Run:
    """The state of a run, for observers to read. Only the loop writes to it."""

    config: Config
    place: Any
    """trainer.loop.distribution.Cluster: role, index, workers, whether this is the chief."""
    strategy: Any
    model: Any
    optimizer: Any
    names: tuple[str, ...]
    """Names of the classes; label n is names[n]."""
    train: tuple[Any, ...]
    """trainer.input.parts.Shard of the training records; `validation` has those held out."""
    validation: tuple[Any, ...]
    ledger: Any
    """trainer.observe.ledger.Ledger: where the time went."""
    writes: bool
    """Does this process write for TensorBoard, and the report? The chief and an evaluator do."""
    position: Any
    """trainer.job.checkpoints.Position: the present step, examples, epoch."""
    steps: int
    """Optimizer steps of the whole run, those before a restart included."""
    policy: str = "float32"
    facts: dict[str, Any] = field(default_factory=dict)
    """Software and devices, as in the first log line."""
    tally: Any = None
    """trainer.model.scores.Tally of the last evaluation."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Observers that failed in this attempt: name and error."""


class Observer:
    """Does nothing on each occasion; a subclass overrides the occasions that it needs."""

    name = ""
    """Key of its state in a checkpoint; "": it has no state."""

    def begin(self, run: Run) -> None:
        """Called once, after a checkpoint was restored and before the first step."""

    def until(self, step: int) -> int | None:
        """Return the next step (> `step`) after which it must be called; None: any step.

        An inner call never goes past that step, so that a profile or a histogram shows exactly the
        step that was asked for. The answer may depend on `step` and the options only, because all
        ranks must give the same one.
        """
        return None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        """Called after each inner call with arrays of one value a step, from `first_step` on.

        The metrics are loss, accuracy, gradient_norm, learning_rate, input_wait (seconds in which
        the step waited for data) and seconds (wall time of one step, the same for all steps of a
        call).
        """

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        """Called after an evaluation of the present model: trainer.config.METRICS, examples,
        seconds. `run.tally` has more."""

    def saved(self, run: Run, step: int, seconds: float) -> None:
        """Called after a checkpoint was taken, for which training stood still for `seconds`."""

    def end(self, run: Run, outcome: str) -> None:
        """Called once with "done", "stopped" (early), "preempted", "diverged" or "fault".

        There may be less than a second left. It is not called after kill -9.
        """

    def closed(self, run: Run) -> None:
        """Called once after the last SavedModel, at the end of a run that is done or stopped."""

    def state(self) -> dict[str, Any]:
        """Return its state for the checkpoint, in JSON's types."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave when the checkpoint was taken. Called before `begin`."""


class Watch:
    """The observers of a run as one. If one raises, it is reported once and left out from then on.

    An observer must not end a run of hours. One rank alone can leave it out, since it takes part in
    no collective operation. But all ranks must agree where an inner call ends. So an observer that
    is left out is still asked `until`, and an error of `until` is not caught.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = tuple(observers)
        self._kept = list(observers)

    def until(self, step: int) -> int | None:
        """Return the next step after which one of them must be called; None: any step."""
        wanted = [observer.until(step) for observer in self._all]
        return min(
            (observer for observer in wanted if observer is not None and observer > step),
            default=None,
        )

    def begin(self, run: Run) -> None:
        self._each(run, lambda observer: observer.begin(run))

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._each(run, lambda observer: observer.steps(run, first_step, metrics))

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        self._each(run, lambda observer: observer.evaluated(run, step, result))

    def saved(self, run: Run, step: int, seconds: float) -> None:
        self._each(run, lambda observer: observer.saved(run, step, seconds))

    def end(self, run: Run, outcome: str) -> None:
        self._each(run, lambda observer: observer.end(run, outcome))

    def closed(self, run: Run) -> None:
        self._each(run, lambda observer: observer.closed(run))

    def states(self, run: Run) -> dict[str, Any]:
        """Return the observers' states for the checkpoint, by name."""
        kept: dict[str, Any] = {}

        def ask(observer: Observer) -> None:
            if observer.name:
                kept[observer.name] = json.loads(json.dumps(observer.state()))

        self._each(run, ask)
        return kept

    def restore(self, run: Run, states: Mapping[str, Any]) -> None:
        self._each(
            run,
            lambda observer: (
                observer.restore(states[observer.name]) if observer.name in states else None
            ),
        )

    def _each(self, run: Run, tell: Callable[[Observer], None]) -> None:
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
