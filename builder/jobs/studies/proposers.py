"""What a study tries next: every combination, or what Optuna's samplers propose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

from builder.jobs.description import Parameter, Study
from builder.jobs.studies.results import ENDED, TrialResult, Value


class Proposer(Protocol):
    """Where the next parameters come from."""

    def ask(self) -> tuple[Any, dict[str, Value]] | None:
        """A key and parameters; None where nothing is left to try."""

    def tell(self, key: Any, value: float | None) -> None:
        """What came of it; None: it failed."""

    def recall(self, trial: TrialResult) -> Any:
        """The next trial of an earlier run, in their order; a key for one that runs again."""


class Grid:
    """Every combination, in order."""

    def __init__(self, study: Study) -> None:
        self._left = combinations(study)

    def ask(self) -> tuple[Any, dict[str, Value]] | None:
        found = next(self._left, None)
        return None if found is None else (0, found)

    def tell(self, key: Any, value: float | None) -> None:
        pass

    def recall(self, trial: TrialResult) -> Any:
        del trial  # the order says which one it was
        next(self._left, None)
        return 0


class Sampled:
    """Optuna's random or Bayesian sampler, by ask and tell. `known`: trials of an earlier run."""

    def __init__(self, study: Study, seed: int, known: int = 0) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        startup = min(10, max(4, study.trials // 3))
        sampler: Any = (
            optuna.samplers.RandomSampler(seed=seed)
            if study.algorithm == "random"
            else optuna.samplers.TPESampler(seed=seed + known, n_startup_trials=startup)
        )
        self._random = study.algorithm == "random"
        self._parameters = study.parameters
        self._study = optuna.create_study(direction=study.goal, sampler=sampler)
        self._space = {name: distribution(one) for name, one in study.parameters.items()}

    def ask(self) -> tuple[Any, dict[str, Value]] | None:
        trial = self._study.ask(self._space)
        values = {
            name: from_sample(self._parameters[name], value) for name, value in trial.params.items()
        }
        return trial, values

    def tell(self, key: Any, value: float | None) -> None:
        from optuna.trial import TrialState as State

        if value is None:
            self._study.tell(key, state=State.FAIL)
        else:
            self._study.tell(key, value)

    def recall(self, trial: TrialResult) -> Any:
        from optuna.trial import TrialState as State
        from optuna.trial import create_trial

        if self._random:  # the same numbers again: the next ones are those that were to come
            return self._study.ask(self._space)
        samples = {
            name: to_sample(self._parameters[name], value)
            for name, value in trial.parameters.items()
        }
        if trial.state not in ENDED:
            self._study.enqueue_trial(samples)
            return self._study.ask(self._space)
        state = State.FAIL if trial.value is None else State.COMPLETE
        space = {name: self._space[name] for name in samples}
        self._study.add_trial(
            create_trial(state=state, value=trial.value, params=samples, distributions=space)
        )
        return None


def combinations(study: Study) -> Iterator[dict[str, Value]]:
    """Every combination in order, each once: what does not count in a trial is left out."""
    names = list(study.parameters)
    values = [grid_values(one) for one in study.parameters.values()]
    for combination in itertools.product(*values):
        yield dict(zip(names, combination, strict=True))


def grid_values(one: Parameter) -> list[Value]:
    """The points of a parameter in a grid."""
    if one.values is not None:
        return [number(text) for text in one.values] if one.kind == "discrete" else [*one.values]
    return list(range(int(float(one.min or 0)), int(float(one.max or 0)) + 1))


def distribution(one: Parameter) -> Any:
    """Optuna's form of a parameter: a reverse log scale is a log scale looked at from the end, and
    discrete values are numbered, for their order counts."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if one.values is not None:
        if one.kind == "categorical":
            return CategoricalDistribution(one.values)
        return IntDistribution(0, len(one.values) - 1)
    low, high, log = float(one.min or 0), float(one.max or 0), one.scale != "linear"
    if one.kind == "integer":
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def from_sample(one: Parameter, value: Any) -> Value:
    """The value that a sampler's number stands for."""
    if one.values is not None:
        if one.kind == "categorical":
            return str(value)
        return number(sorted(one.values, key=float)[int(value)])
    if one.scale == "reverse-log":
        value = float(one.min or 0) + float(one.max or 0) - value
    return int(value) if one.kind == "integer" else float(value)


def to_sample(one: Parameter, value: Value) -> Any:
    """The sampler's number for a value: `from_sample` the other way round."""
    if one.values is not None:
        if one.kind == "categorical":
            return str(value)
        return [float(text) for text in sorted(one.values, key=float)].index(float(value))
    low, high, found = float(one.min or 0), float(one.max or 0), float(value)
    if one.scale == "reverse-log":
        found = min(max(low + high - found, low), high)
    return round(found) if one.kind == "integer" else found


def number(text: str) -> Value:
    """'16' -> 16, '0.1' -> 0.1."""
    value = float(text)
    return int(value) if value == int(value) and "." not in text and "e" not in text else value
