"""What the trials of a study reported, and what follows from it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from builder.jobs.running import Outcome, State

MEDIAN_OF = 3
"""How many completed trials it takes to judge another one by their median. The service does not say
its own number."""

Value = float | int | str
TrialState = Literal["running", "succeeded", "stopped", "failed", "cancelled"]
ENDED = ("succeeded", "stopped", "failed")
"""States of a trial that has a result; `stopped` means early, with its last value."""


@dataclass(frozen=True)
class Point:
    """One line of a metric file: the metric's value at a step."""

    step: int
    value: float


@dataclass(frozen=True)
class TrialResult:
    """One trial. value: None where it failed. curve: what it reported, in order."""

    number: int
    state: TrialState
    parameters: Mapping[str, Value]
    value: float | None = None
    message: str = ""
    seconds: float = 0.0
    curve: tuple[Point, ...] = ()


@dataclass(frozen=True)
class StudyOutcome:
    """How a study ended; `best` is the number of the best trial."""

    job: str
    metric: str
    goal: str
    algorithm: str
    state: State
    message: str
    seconds: float
    folder: str
    best: int | None
    trials: tuple[TrialResult, ...]
    signal: int = 0
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.state == "cancelled":
            return 128 + (self.signal or 15)
        return 0 if self.state == "succeeded" else 1


def measurements(text: str, metric: str) -> tuple[Point, ...]:
    """The values of a metric in a file of cloudml-hypertune: JSON lines with the metric's tag, all
    values texts. A line that is torn or of another metric is passed over."""
    found = []
    for line in text.splitlines():
        try:
            content = json.loads(line)
            value = float(content[metric])
            step = int(float(content.get("global_step") or 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if math.isfinite(value):
            found.append(Point(step, value))
    return tuple(found)


def falls_behind(curve: Sequence[Point], completed: Sequence[Sequence[Point]], goal: str) -> bool:
    """The median rule: whether the best value of a trial is worse than the median, over completed
    trials, of the mean of what each reported up to the trial's last step.

    Source: aiplatform v1, StudySpec.MedianAutomatedStoppingSpec. A trial that reports no steps is
    not judged, nor is one beside fewer than MEDIAN_OF others.
    """
    last = max((point.step for point in curve), default=0)
    sign = 1.0 if goal == "maximize" else -1.0
    upto = [[sign * point.value for point in one if point.step <= last] for one in completed]
    means = [statistics.fmean(values) for values in upto if values]
    if last <= 0 or len(means) < MEDIAN_OF:
        return False
    return max(sign * point.value for point in curve) < statistics.median(means)


def result(
    number: int,
    parameters: Mapping[str, Value],
    outcome: Outcome,
    text: str,
    metric: str,
    early: bool = False,
) -> TrialResult:
    """A trial's result from how its job ended and what it reported. early: it was stopped because
    it fell behind."""
    curve = measurements(text, metric)
    state: TrialState = "failed"
    value, message = None, outcome.message
    if outcome.state == "cancelled" and early and curve:
        state, value, message = "stopped", curve[-1].value, "stopped early"
    elif outcome.state == "cancelled":
        state = "cancelled"
    elif outcome.state == "succeeded" and curve:
        state, value, message = "succeeded", curve[-1].value, ""
    elif outcome.state == "succeeded":
        tags = sorted(_tags(text))
        message = f"it reported no {metric}" + (f", but {', '.join(tags)}" if tags else "")
    return TrialResult(number, state, parameters, value, message, outcome.seconds, curve)


def _tags(text: str) -> set[str]:
    known = {"timestamp", "trial", "global_step", "checkpoint_path"}
    found: set[str] = set()
    for line in text.splitlines():
        try:
            found |= set(json.loads(line)) - known
        except (ValueError, TypeError):
            continue
    return found


def best(trials: tuple[TrialResult, ...], goal: str) -> TrialResult | None:
    """The best trial that has a value; of equals the first."""
    having = [trial for trial in trials if trial.value is not None]
    sign = -1 if goal == "maximize" else 1
    return min(having, key=lambda trial: sign * (trial.value or 0.0), default=None)


def shown(value: Value | None) -> str:
    """A value as it is passed: the shortest form that reads back the same."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def dump(outcome: StudyOutcome) -> str:
    """The text of study.json."""
    return json.dumps({**asdict(outcome), "exit_code": outcome.exit_code}, indent=1) + "\n"
