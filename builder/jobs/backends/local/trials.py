"""A study in Optuna's form: its journal in a job's folder, parameters, and what trials reported."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.errors import InputError
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.description import Parameter, Study

if TYPE_CHECKING:
    import optuna

Value = float | int | str
METRICS_FILE = "output.metrics"
"""The name of the file of cloudml-hypertune, in the folder that a trial's replicas share."""
JOURNAL = "study.journal"
MEDIAN_OF = 3
"""How many completed trials it takes to judge another one by their median."""
STATES = {"COMPLETE": "succeeded", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "running"}


@dataclass(frozen=True)
class TrialResult:
    """One trial. state: running, succeeded, stopped (early, with its last value) or failed."""

    number: int
    state: str
    parameters: Mapping[str, Value]
    value: float | None
    message: str
    seconds: float


def opened(job: LocalJob, study: Study, seed: int) -> optuna.Study:
    """Return Optuna's study of a job's folder, a new one or that of an earlier run.

    Raises InputError for a study that is over, or that was begun with something else: its results
    cannot be compared.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path, away = job.folder / JOURNAL, "remove its folder, or give --job-dir another one"
    Path(f"{path}.lock").unlink(missing_ok=True)  # of a run that was killed; only_run holds ours
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        search = optuna.create_study(
            study_name=job.name, storage=storage, direction=study.goal, load_if_exists=True
        )
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: no study that can be continued: {error}", away) from None
    count = len(begun(search))
    search.pruner = optuna.pruners.MedianPruner(n_startup_trials=MEDIAN_OF)
    search.sampler = optuna.samplers.RandomSampler(seed=seed + count)
    if study.algorithm == "bayesian":
        startup = min(10, max(4, study.trials // 3))
        search.sampler = optuna.samplers.TPESampler(seed=seed + count, n_startup_trials=startup)
    description = json.loads(
        study.model_dump_json(include={"metric", "goal", "algorithm", "parameters"})
    )
    description["arguments"] = list(job.arguments)
    before = search.user_attrs.get("study", description)
    if different := [name for name in description if before.get(name) != description[name]]:
        raise InputError(
            f"{path}: this study has begun with other {' and '.join(different)}: its results "
            "cannot be compared",
            f"write them back to continue it; or {away}",
        )
    search.set_user_attr("study", description)
    if count >= study.trials and all(trial.state.is_finished() for trial in begun(search)):
        raise InputError(
            f"{path}: this study has been run already", f"{away}; with more trials it continues"
        )
    return search


def begun(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that run or ran, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "WAITING"]


def result(study: Study, trial: optuna.trial.FrozenTrial) -> TrialResult:
    return TrialResult(
        trial.number + 1,
        STATES[trial.state.name],
        values(study, trial.params),
        trial.value,
        trial.user_attrs.get("message", ""),
        trial.user_attrs.get("seconds", 0.0),
    )


def distribution(parameter: Parameter) -> Any:
    """Return Optuna's form of a parameter. Discrete values are numbered, for their order counts; a
    reverse log scale is a log scale that begins at the end."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.values is not None:
        if parameter.kind == "categorical":
            return CategoricalDistribution(parameter.values)
        return IntDistribution(0, len(parameter.values) - 1)
    low, high = float(parameter.min or 0), float(parameter.max or 0)
    log = parameter.scale != "linear"
    if parameter.kind == "integer":
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def combinations(study: Study) -> Iterator[dict[str, Any]]:
    """Yield every combination of a grid in Optuna's form, in order."""
    spaces = {name: distribution(each) for name, each in study.parameters.items()}
    points = [
        list(getattr(space, "choices", ())) or list(range(space.low, space.high + 1))
        for space in spaces.values()
    ]
    for combination in itertools.product(*points):
        yield dict(zip(spaces, combination, strict=True))


def values(study: Study, samples: Mapping[str, Any]) -> dict[str, Value]:
    """Return the trial's parameters from Optuna's form of them."""
    return {
        name: value_of(study.parameters[name], samples[name])
        for name in study.parameters
        if name in samples
    }


def value_of(parameter: Parameter, sample: Any) -> Value:
    """Return the value that Optuna's sample stands for."""
    if parameter.kind == "categorical":
        return str(sample)
    if parameter.values is not None:
        text = sorted(parameter.values, key=float)[int(sample)]
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if parameter.scale == "reverse-log":
        sample = float(parameter.min or 0) + float(parameter.max or 0) - sample
    return int(sample) if parameter.kind == "integer" else float(sample)


def measurements(path: Path, metric: str) -> list[tuple[int, float]]:
    """Return the steps and values of a metric in a file of cloudml-hypertune: JSON lines with the
    metric's name. A line that is torn or of another metric is passed over."""
    points = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(line)
            step, value = int(float(content.get("global_step") or 0)), float(content[metric])
            if math.isfinite(value) and step >= 0:
                points.append((step, value))
    return points


def shown(value: Value | None) -> str:
    """Return a value as it is passed: the shortest form that reads back the same."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)
