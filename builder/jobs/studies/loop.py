"""A hyperparameter study on this machine: a bounded number of trials at once, each a local job.

What Vertex AI does with a HyperparameterTuningJob: every trial gets its parameters as --name=value,
its number in CLOUD_ML_TRIAL_ID, a folder of its own, and its result is the last line for the metric
in the file that cloudml-hypertune writes. Grid and random search, and a Bayesian one by Optuna's
tree-structured Parzen estimator; Vertex AI's own Bayesian algorithm is not public, so it proposes
other values. Early stopping by the service's median rule; its rule of curves is not public.

<folder>/study.json holds what was asked for and every trial from its start on. The same command
goes on where an interrupted study was: trials that have ended are kept, others run again in their
folders, where a trainer finds its checkpoints.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from builder.core import files
from builder.core.errors import InputError
from builder.engine.containers import ContainerEngine
from builder.jobs import leftovers
from builder.jobs.description import Parameter, Study
from builder.jobs.places.local import run as local
from builder.jobs.places.local.replicas import LocalJob, Trial
from builder.jobs.places.local.run import (
    JobEvent,
    Note,
    OnJobEvent,
    Outcome,
    Stop,
    ignore,
)

FILE = "study.json"
FAILED_IN_A_ROW = 3
"""A study without max_failed ends when its first trials all failed, this many."""

MEDIAN_OF = 3
"""Completed trials that it takes to judge another one by their median. The service does not tell
its number."""
JUDGED_EVERY = 0.5
"""Seconds between two looks at what a trial has reported."""

Value = float | int | str
TrialState = Literal["running", "succeeded", "stopped", "failed", "cancelled"]
ENDED = ("succeeded", "stopped", "failed")
"""Of these a result is known; `stopped`: early, with its last value."""


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
    asked: Mapping[str, Any] = field(default_factory=dict)

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

    def recall(self, trial: TrialResult) -> Any:
        """The next trial of an earlier run, in their order; a key for one that runs again."""


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
        self._study.add_trial(
            create_trial(state=state, value=trial.value, params=samples, distributions=self._space)
        )
        return None


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


# --- going on -------------------------------------------------------------------------------------

_SAME = ("metric", "goal", "algorithm", "parameters", "arguments")


@dataclass(frozen=True)
class Earlier:
    """What an earlier run of the same study left: its trials by number, its seconds, and what it
    was asked for."""

    trials: tuple[TrialResult, ...] = ()
    seconds: float = 0.0
    asked: Mapping[str, Any] = field(default_factory=dict)


def asked_for(job: LocalJob, study: Study, seed: int) -> dict[str, Any]:
    """What stands in study.json for a later run to compare."""
    return {
        "metric": study.metric,
        "goal": study.goal,
        "algorithm": study.algorithm,
        "parameters": [
            [name, one.model_dump(mode="json")] for name, one in study.parameters.items()
        ],
        "arguments": list(job.arguments),
        "trials": study.trials,
        "seed": seed,
        "image": job.image,
    }


def earlier(folder: Path, asked: Mapping[str, Any]) -> Earlier:
    """What a run of this study left in its folder; empty where none has run.

    Raises InputError for a study that is over (unless more trials are asked for now), or that
    asked for something else: its results cannot be compared.
    """
    path = folder / FILE
    away = "remove its folder, or give --job-dir another one"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = Earlier(
            tuple(_trial_of(one) for one in content["trials"]),
            float(content["seconds"]),
            content["asked"],
        )
        before, state, message = found.asked, content["state"], content["message"]
        different = [name for name in _SAME if before[name] != asked[name]]
        more = asked["trials"] > before["trials"]
    except FileNotFoundError:
        return Earlier()
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: no study that could go on", away) from None
    if different:
        raise InputError(
            f"{path}: this study has begun with other {' and '.join(different)}: its results "
            "cannot be compared",
            f"write them back to go on; or {away}",
        )
    if state == "failed":
        raise InputError(f"{path}: this study failed: {message}", away)
    if state == "succeeded" and not more:
        raise InputError(
            f"{path}: this study has been run already",
            f"{away}; with more trials it goes on",
        )
    return found


def _trial_of(value: Mapping[str, Any]) -> TrialResult:
    """A TrialResult from the JSON of its fields."""
    curve = tuple(Point(**point) for point in value["curve"])
    return TrialResult(**{**value, "curve": curve})


# --- running --------------------------------------------------------------------------------------


def run(
    engine: ContainerEngine,
    job: LocalJob,
    study: Study,
    *,
    parallel: int | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> StudyOutcome:
    """Run a study to its end, or go on with one that was interrupted; its table is in
    <folder>/study.json from the first trial on.

    Raises InputError, OutsideError.
    """
    with local.only_run(job.folder, ".study.lock"):
        asked = asked_for(job, study, seed)
        before = earlier(job.folder, asked)
        asked["seed"] = before.asked.get("seed", seed)
        if asked["seed"] != seed:
            on_event(Note("", f"it began with seed {asked['seed']}, and goes on with that"))
        leftovers.open_folder(job.folder)
        at_once = max(1, min(parallel or study.parallel, study.trials))
        return _Run(engine, job, study, asked, before, stop or Stop(), on_event).run(at_once)


class _Run:
    """One run of a study. Only its own thread touches `done`; trials run in others."""

    def __init__(
        self,
        engine: ContainerEngine,
        job: LocalJob,
        study: Study,
        asked: Mapping[str, Any],
        before: Earlier,
        stop: Stop,
        on_event: OnJobEvent,
    ) -> None:
        self.engine, self.job, self.study, self.asked, self.stop = engine, job, study, asked, stop
        self.began = time.monotonic() - before.seconds
        self.done: dict[int, TrialResult] = {one.number: one for one in before.trials}
        self.again: deque[tuple[int, Any, Mapping[str, Value]]] = deque()
        self.lock = threading.Lock()
        self.on_event = on_event
        self.proposer: Proposer = (
            Grid(study)
            if study.algorithm == "grid"
            else Sampled(study, asked["seed"], len(before.trials))
        )
        for one in before.trials:
            key = self.proposer.recall(one)
            if one.state not in ENDED:
                self.again.append((one.number, key, one.parameters))
        self._say_what_was_before(before)

    def _say_what_was_before(self, before: Earlier) -> None:
        if before.trials:
            kept = len(before.trials) - len(self.again)
            self.tell(Note("", f"goes on: {kept} of {self.study.trials} trials are kept"))
            if before.asked["image"] != self.asked["image"]:
                self.tell(Note("", "the image is another one than that of the trials before"))
        if self.study.early_stopping == "curve":
            text = "early_stopping: curve is the service's own: here every trial runs to its end"
            self.tell(Note("", text))

    def tell(self, event: JobEvent) -> None:
        """A terminal that is gone ends the study in order."""
        with self.lock:
            try:
                self.on_event(event)
            except OSError:
                self.on_event = ignore
                self.stop.request(signal.SIGHUP)

    def run(self, at_once: int) -> StudyOutcome:
        with local.signals(self.stop), ThreadPoolExecutor(at_once) as pool:
            try:
                message = self._try_all(pool, at_once)
            except BaseException:  # what the job cannot be, or an engine that is gone
                self.stop.request()  # or the pool would wait for what still runs
                raise
        return self._end(message)

    def _try_all(self, pool: ThreadPoolExecutor, at_once: int) -> str:
        """Trial after trial until none is left to try, or it is enough: then why."""
        board = Board(self.job.folder, self.study)
        pending: dict[Future[TrialResult], tuple[int, int, Any]] = {}
        places = deque(range(at_once))
        message = ""
        while True:
            while places and not (message or self.stop.requests):
                following = self._next()
                if following is None:
                    break
                number, key, values = following
                place = places.popleft()
                begun = pool.submit(self._start(number, values, place, at_once))
                pending[begun] = (place, number, key)
            if not pending:
                return message
            finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                place, number, key = pending.pop(future)
                places.append(place)
                one = self.done[number] = future.result()
                self.proposer.tell(key, one.value)
                if one.state in ENDED:
                    board.write(one)
                what = shown(one.value) if one.value is not None else one.message
                self.tell(Note(f"trial {number}", f"{one.state}: {self.study.metric} {what}"))
                self._record(self._outcome("running", ""))
                message = message or _given_up(self.study, self.done)

    def _next(self) -> tuple[int, Any, Mapping[str, Value]] | None:
        """Number, key and parameters of the next trial; None where nothing is left to try."""
        if self.again:
            return self.again.popleft()
        if len(self.done) >= self.study.trials or (proposed := self.proposer.ask()) is None:
            return None
        return len(self.done) + 1, *proposed

    def _start(
        self, number: int, values: Mapping[str, Value], place: int, at_once: int
    ) -> Callable[[], TrialResult]:
        """On record before it runs: a trial's folder is never another trial's later."""
        words = ", ".join(f"{name} {shown(value)}" for name, value in values.items())
        self.tell(Note(f"trial {number}", f"starts: {words}"))
        self.done[number] = TrialResult(number, "running", values)
        self._record(self._outcome("running", ""))
        arguments = tuple(f"--{name}={shown(value)}" for name, value in values.items())
        metrics = self.job.folder / str(number) / local.LOCAL / "metrics"
        trial = Trial(number, arguments, metrics, place, at_once)
        return lambda: _trial(
            self.engine, self.job, self.study, trial, values, self.stop, self._curves, self.tell
        )

    def _curves(self) -> list[tuple[Point, ...]]:
        """What the trials that ran to their end have reported. Called in other threads."""
        return [one.curve for one in list(self.done.values()) if one.state == "succeeded"]

    def _end(self, message: str) -> StudyOutcome:
        state: local.State = "succeeded"
        valued = sum(one.value is not None for one in self.done.values())
        if self.stop.requests:
            state, message = "cancelled", "stopped on request; the same command goes on"
        elif message or not valued:
            state, message = "failed", message or "no trial succeeded"
        else:
            message = f"{valued} of {len(self.done)} trials"
        leftovers.give_back(self.job.folder)
        ended = self._outcome(state, message)
        self._record(ended)
        return ended

    def _outcome(self, state: local.State, message: str) -> StudyOutcome:
        trials = tuple(self.done[number] for number in sorted(self.done))
        found = best(trials, self.study.goal)
        return StudyOutcome(
            self.job.name,
            self.study.metric,
            self.study.goal,
            self.study.algorithm,
            state,
            message,
            round(time.monotonic() - self.began, 1),
            str(self.job.folder),
            found.number if found else None,
            trials,
            self.stop.signal,
            self.asked,
        )

    def _record(self, outcome: StudyOutcome) -> None:
        files.write(self.job.folder / FILE, dump(outcome))


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
    engine: ContainerEngine,
    job: LocalJob,
    study: Study,
    trial: Trial,
    values: Mapping[str, Value],
    stop: Stop,
    curves: Callable[[], Sequence[Sequence[Point]]],
    on_event: OnJobEvent,
) -> TrialResult:
    """One trial from start to end, in a thread. `curves`: of the trials that it is judged by."""
    trial.metrics.mkdir(parents=True, exist_ok=True)
    mine = replace(job, folder=job.folder / str(trial.number), trial=trial)

    def tell(event: JobEvent) -> None:
        on_event(replace(event, replica=f"trial {trial.number}" + _replica(event.replica, mine)))

    path = trial.metrics / "output.metrics"
    own, over = Stop(stop), threading.Event()

    def judge() -> None:
        while not over.wait(JUDGED_EVERY):
            if falls_behind(measurements(_text(path), study.metric), curves(), study.goal):
                tell(Note("", "falls behind the median of the others: it is stopped early"))
                own.request()
                return

    if study.early_stopping == "median":
        threading.Thread(target=judge, daemon=True).start()
    try:
        outcome = local.run(engine, mine, stop=own, on_event=tell)
    finally:
        over.set()
    early = own.requests > 0 and not stop.requests
    return result(trial.number, values, outcome, _text(path), study.metric, early)


def _text(path: Path) -> str:
    """What a trial has reported so far; "" where there is no file yet."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


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
