"""A hyperparameter study on this machine: a bounded number of trials at once, each a local job.

What Vertex AI does with a HyperparameterTuningJob: every trial gets its parameters as --name=value,
its number in CLOUD_ML_TRIAL_ID, a folder of its own, and its result is the last line for the metric
in the file that cloudml-hypertune writes. Grid and random search, and a Bayesian one by Optuna's
tree-structured Parzen estimator; Vertex AI's own Bayesian algorithm is not public, so it proposes
other values. Early stopping is left out here: every trial runs to its end.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from builder import project
from builder.errors import InputError
from builder.jobs import leftovers, local
from builder.jobs.description import Parameter, Study
from builder.jobs.local import HasClient, JobEvent, Note, OnJobEvent, Outcome, Stop, ignore
from builder.jobs.replicas import LocalJob, Trial

FILE = "study.json"
FAILED_IN_A_ROW = 3
"""A study without max_failed ends when its first trials all failed, this many."""

Value = float | int | str
TrialState = Literal["running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Point:
    """One line of a metric file: the metric's value at a step."""

    step: int
    value: float


@dataclass(frozen=True)
class TrialResult:
    """One trial. `value` is None where it failed; `curve`: what it reported, in order."""

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
    state: local.State
    message: str
    seconds: float
    folder: str
    best: int | None
    trials: tuple[TrialResult, ...]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        if self.state == "cancelled":
            return 128 + (self.signal or 15)
        return 0 if self.state == "succeeded" else 1


# --- what is tried --------------------------------------------------------------------------------


class Proposer(Protocol):
    """Where the next parameters come from."""

    def ask(self) -> tuple[Any, dict[str, Value]] | None:
        """A key and parameters; None where nothing is left to try."""

    def tell(self, key: Any, value: float | None) -> None:
        """What came of it; None: it failed."""


class Grid:
    """Every combination, in order."""

    def __init__(self, study: Study) -> None:
        names = list(study.parameters)
        values = [grid_values(one) for one in study.parameters.values()]
        self._left: Iterator[dict[str, Value]] = (
            dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)
        )

    def ask(self) -> tuple[Any, dict[str, Value]] | None:
        found = next(self._left, None)
        return None if found is None else (0, found)

    def tell(self, key: Any, value: float | None) -> None:
        pass


class Sampled:
    """Optuna's random or Bayesian sampler, by ask and tell."""

    def __init__(self, study: Study, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        startup = min(10, max(4, study.trials // 3))
        sampler: Any = (
            optuna.samplers.RandomSampler(seed=seed)
            if study.algorithm == "random"
            else optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        )
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


def number(text: str) -> Value:
    """'16' -> 16, '0.1' -> 0.1."""
    value = float(text)
    return int(value) if value == int(value) and "." not in text and "e" not in text else value


# --- what came of it ------------------------------------------------------------------------------


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


def result(
    number: int, parameters: Mapping[str, Value], outcome: Outcome, text: str, metric: str
) -> TrialResult:
    """A trial's result from how its job ended and what it reported."""
    curve = measurements(text, metric)
    state: TrialState = "failed"
    value, message = None, outcome.message
    if outcome.state == "cancelled":
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


# --- running --------------------------------------------------------------------------------------


def run(
    engine: HasClient,
    job: LocalJob,
    study: Study,
    *,
    parallel: int | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> StudyOutcome:
    """Run a study to its end; its table is in <folder>/study.json after every trial.

    Raises InputError, OutsideError.
    """
    at_once = max(1, min(parallel or study.parallel, study.trials))
    proposer: Proposer = Grid(study) if study.algorithm == "grid" else Sampled(study, seed)
    stop = stop or Stop()
    began = time.monotonic()
    done: dict[int, TrialResult] = {}
    (job.folder).mkdir(parents=True, exist_ok=True)
    if (old := job.folder / FILE).exists():
        raise InputError(
            f"{old}: this study has been run already",
            "remove its folder, or give --job-dir another one",
        )
    leftovers.open_folder(job.folder)
    lock = threading.Lock()

    def tell(event: JobEvent) -> None:
        with lock:
            on_event(event)

    def outcome(state: local.State, message: str) -> StudyOutcome:
        trials = tuple(done[number] for number in sorted(done))
        found = best(trials, study.goal)
        return StudyOutcome(
            job.name,
            study.metric,
            study.goal,
            study.algorithm,
            state,
            message,
            round(time.monotonic() - began, 1),
            str(job.folder),
            found.number if found else None,
            trials,
            stop.signal,
        )

    board = Board(job.folder, study)
    pending: dict[Future[TrialResult], tuple[int, Any]] = {}
    asked, exhausted, state, message = 0, False, "succeeded", ""
    with local.signals(stop), ThreadPoolExecutor(at_once) as pool:
        while True:
            while len(pending) < at_once and asked < study.trials and not exhausted and not message:
                if stop.requests:
                    break
                proposed = proposer.ask()
                if proposed is None:
                    exhausted = True
                    break
                asked += 1
                key, values = proposed
                words = ", ".join(f"{name} {shown(value)}" for name, value in values.items())
                tell(Note(f"trial {asked}", f"starts: {words}"))
                done[asked] = TrialResult(asked, "running", values)
                future = pool.submit(_trial, engine, job, study, asked, values, stop, tell)
                pending[future] = (asked, key)
            if not pending:
                break
            finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                number, key = pending.pop(future)
                try:
                    one = future.result()
                except BaseException:  # what the job cannot be, or an engine that is gone
                    stop.request()
                    raise
                done[number] = one
                proposer.tell(key, one.value)
                board.write(one)
                what = shown(one.value) if one.value is not None else one.message
                tell(Note(f"trial {number}", f"{one.state}: {study.metric} {what}"))
                project.write(job.folder / FILE, dump(outcome("running", "")))
                message = message or _given_up(study, done)
    if stop.requests:
        state, message = "cancelled", "stopped on request"
    elif message or not any(one.value is not None for one in done.values()):
        state, message = "failed", message or "no trial succeeded"
    else:
        message = f"{sum(one.value is not None for one in done.values())} of {len(done)} trials"
    leftovers.give_back(job.folder)
    ended = outcome(state, message)  # type: ignore[arg-type]
    project.write(job.folder / FILE, dump(ended))
    return ended


def _given_up(study: Study, done: Mapping[int, TrialResult]) -> str:
    """Why no further trial is started; "" where the study goes on."""
    failed = sum(one.state == "failed" for one in done.values())
    if study.max_failed and failed > study.max_failed:
        return f"{failed} trials failed, more than max_failed: {study.max_failed}"
    ended = [one for _, one in sorted(done.items()) if one.state != "running"]
    if not study.max_failed and len(ended) >= FAILED_IN_A_ROW and failed == len(ended):
        return f"the first {failed} trials all failed: {ended[0].message}"
    return ""


def _trial(
    engine: HasClient,
    job: LocalJob,
    study: Study,
    number: int,
    values: Mapping[str, Value],
    stop: Stop,
    on_event: OnJobEvent,
) -> TrialResult:
    """One trial from start to end, in a thread."""
    folder = job.folder / str(number)
    metrics = folder / local.LOCAL / "metrics"
    metrics.mkdir(parents=True, exist_ok=True)
    arguments = tuple(f"--{name}={shown(value)}" for name, value in values.items())
    mine = replace(job, folder=folder, trial=Trial(number, arguments, metrics))

    def tell(event: JobEvent) -> None:
        on_event(replace(event, replica=f"trial {number}" + _replica(event.replica, mine)))

    outcome = local.run(engine, mine, stop=stop, on_event=tell)
    path = metrics / "output.metrics"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return result(number, values, outcome, text, study.metric)


def _replica(name: str, job: LocalJob) -> str:
    several = sum(pool.count for pool in job.pools) > 1
    return f" {name}" if name and several else ""


def shown(value: Value | None) -> str:
    """A value as it is passed: the shortest form that reads back the same."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def dump(outcome: StudyOutcome) -> str:
    """The text of study.json."""
    return json.dumps({**asdict(outcome), "exit_code": outcome.exit_code}, indent=1) + "\n"


# --- TensorBoard ----------------------------------------------------------------------------------


class Board:
    """TensorBoard's HParams: the study at the folder's root, a session for each trial.

    The messages are made here: TensorBoard's own makers of them import TensorFlow.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]

        self.folder = folder
        self.study = study
        api, data = _messages()
        experiment = api.Experiment(
            time_created_secs=time.time(),
            hparam_infos=[_hparam(api, name, one) for name, one in study.parameters.items()],
            metric_infos=[api.MetricInfo(name=api.MetricName(tag=study.metric))],
        )
        content = data.HParamsPluginData(experiment=experiment)
        _write(folder / "logs", [(0, _hparams_summary(metadata.EXPERIMENT_TAG, content))])

    def write(self, trial: TrialResult) -> None:
        """The trial's parameters and the curve of its metric."""
        from tensorboard.plugins.hparams import metadata

        api, data = _messages()
        start = data.SessionStartInfo(
            group_name=str(trial.number), start_time_secs=time.time() - trial.seconds
        )
        for name, value in trial.parameters.items():
            if isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        status = api.STATUS_SUCCESS if trial.value is not None else api.STATUS_FAILURE
        end = data.SessionEndInfo(status=status, end_time_secs=time.time())
        begun = data.HParamsPluginData(session_start_info=start)
        ended = data.HParamsPluginData(session_end_info=end)
        events = [(0, _hparams_summary(metadata.SESSION_START_INFO_TAG, begun))]
        events += [(at.step, _scalar(self.study.metric, at.value)) for at in trial.curve]
        events.append((0, _hparams_summary(metadata.SESSION_END_INFO_TAG, ended)))
        _write(self.folder / str(trial.number) / "logs", events)


def _messages() -> tuple[Any, Any]:
    without_tensorflow()
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    return api_pb2, plugin_data_pb2


def _hparam(api: Any, name: str, one: Parameter) -> Any:
    """A parameter and its domain."""
    info = api.HParamInfo(name=name, type=api.DATA_TYPE_FLOAT64)
    if one.kind == "categorical":
        info.type = api.DATA_TYPE_STRING
    if one.values is not None:
        for text in one.values:
            value = info.domain_discrete.values.add()
            if one.kind == "categorical":
                value.string_value = text
            else:
                value.number_value = float(text)
    else:
        info.domain_interval.min_value = float(one.min or 0)
        info.domain_interval.max_value = float(one.max or 0)
    return info


def _hparams_summary(tag: str, content: Any) -> Any:
    from tensorboard.compat.proto import summary_pb2  # type: ignore[import-untyped]
    from tensorboard.plugins.hparams import metadata

    described = metadata.create_summary_metadata(content)
    value = {"tag": tag, "metadata": described, "tensor": metadata.NULL_TENSOR}
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(**value)])


def _scalar(tag: str, value: float) -> Any:
    without_tensorflow()
    from tensorboard.compat.proto import summary_pb2

    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])


def _write(folder: Path, summaries: list[tuple[int, Any]]) -> None:
    without_tensorflow()
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.summary.writer import event_file_writer  # type: ignore[import-untyped]

    folder.mkdir(parents=True, exist_ok=True)
    writer = event_file_writer.EventFileWriter(str(folder), filename_suffix=f".{os.getpid()}.study")
    for step, one in summaries:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=one))
    writer.close()


def without_tensorflow() -> None:
    """TensorBoard's writers need no TensorFlow; where it is installed, its import takes seconds."""
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
