"""A study on this machine: a loop of Optuna's ask and tell, in which each trial is a local job.

A trial does what it does on Vertex AI: it gets its parameters as --name=value, its number in
CLOUD_ML_TRIAL_ID and a folder of its own, and its result is the last line for the metric in the
file that cloudml-hypertune writes. Optuna's samplers propose; the service's own are not public.

Optuna's journal in the job's folder holds every trial from its start on. So the same command
continues an interrupted study; a trial that was interrupted runs again in its own folder.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files
from builder.core.errors import InputError
from builder.engine.containers import ContainerEngine
from builder.jobs import running
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.description import Parameter, Study
from builder.jobs.running import Note, OnJobEvent, Outcome, State, Stop, ignore

if TYPE_CHECKING:
    import optuna

FAILED_FIRST = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
METRICS_FILE = "output.metrics"
"""The name of the file of cloudml-hypertune, in the folder that a trial's replicas share."""
JOURNAL = "study.journal"
_STATES = {"COMPLETE": "succeeded", "FAIL": "failed", "RUNNING": "running"}


@dataclass(frozen=True)
class TrialResult:
    """One trial. state: running, succeeded or failed."""

    number: int
    state: str
    parameters: Mapping[str, str]
    value: float | None
    message: str
    seconds: float


@dataclass(frozen=True)
class StudyOutcome:
    """How a study ended. best: the number of the best trial."""

    job: str
    metric: str
    state: State
    exit_code: int
    message: str
    seconds: float
    folder: str
    best: int | None
    trials: tuple[TrialResult, ...]


def run_study(
    engine: ContainerEngine,
    job: LocalJob,
    study: Study,
    *,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> StudyOutcome:
    """Run a study to its end, or continue one that was interrupted, and return how it ended.

    The results are in study.json of the job's folder from the first trial on. Raises InputError,
    OutsideError.
    """
    folders.open_up(job.folder, whole=False)
    stop = stop or Stop()
    try:
        with running.only_run(job.folder, ".study.lock"), running.signals(stop):
            search = _opened(job, study)
            return _Loop(engine, job, study, search, stop, on_event, time.monotonic()).run()
    finally:
        folders.give_back(job.folder)


def _opened(job: LocalJob, study: Study) -> optuna.Study:
    """Return Optuna's study of a job's folder, a new one or that of an earlier run.

    Raises InputError for one that was begun with something else: its results cannot be compared.
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
    trials = _begun(search)
    described = study.model_dump(mode="json", include={"metric", "goal", "algorithm", "parameters"})
    described["arguments"] = list(job.arguments)
    before = search.user_attrs.get("study", described)
    if different := [name for name in described if before.get(name) != described[name]]:
        raise InputError(
            f"{path}: this study has begun with other {' and '.join(different)}: its results "
            "cannot be compared",
            f"write them back to continue it; or {away}",
        )
    search.set_user_attr("study", described)
    search.sampler = optuna.samplers.RandomSampler(seed=len(trials))
    if study.algorithm == "bayesian":
        startup = min(10, max(4, study.trials // 3))
        search.sampler = optuna.samplers.TPESampler(seed=len(trials), n_startup_trials=startup)
    elif study.algorithm == "grid":
        axes = [_values(parameter) for parameter in study.parameters.values()]
        for point in itertools.islice(itertools.product(*axes), study.trials):
            named = dict(zip(study.parameters, point, strict=True))
            search.enqueue_trial(named, skip_if_exists=True)
    return search


@dataclass(frozen=True)
class _Loop:
    """One run of a study. Its own thread asks and tells; the trials run in others."""

    engine: ContainerEngine
    job: LocalJob
    study: Study
    search: optuna.Study
    stop: Stop
    on_event: OnJobEvent
    started: float

    def run(self) -> StudyOutcome:
        """Run all trials, `parallel` at once, and return how the study ended."""
        interrupted = self._interrupted()
        if self.study.early_stopping != "none":
            rule = f"early_stopping: {self.study.early_stopping} is Vertex AI's"
            self.on_event(Note("", f"{rule}; here every trial runs to its end"))
        trials: dict[Future[Outcome], tuple[optuna.Trial, Trial]] = {}
        with ThreadPoolExecutor(self.study.parallel) as pool:
            try:
                while True:
                    while len(trials) < self.study.parallel and (next_ := self._next(interrupted)):
                        taken = {trial.place for _, trial in trials.values()}
                        place = min(set(range(self.study.parallel)) - taken)
                        trial = self._begin(next_, place)
                        trials[pool.submit(self._run, trial)] = (next_, trial)
                    if not trials:
                        return self._record(ended=True)
                    for future in wait(trials, return_when=FIRST_COMPLETED).done:
                        self._tell(*trials.pop(future), future.result())
            except BaseException:  # a job that is refused, or an engine that is gone
                self.stop.request()
                raise

    def _interrupted(self) -> list[optuna.Trial]:
        """Return the trials that an earlier run has begun and not ended."""
        import optuna

        trials = _begun(self.search)
        begun = [trial for trial in trials if trial.state.name == "RUNNING"]
        whole = [trial for trial in begun if len(trial.params) == len(self.study.parameters)]
        for trial in begun:
            if trial not in whole:  # killed within `ask`
                self.search.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trials:
            kept = len(trials) - len(whole)
            self.on_event(Note("", f"goes on: {kept} of {self.study.trials} trials are kept"))
        return [optuna.Trial(self.search, trial._trial_id) for trial in whole]

    def _next(self, interrupted: list[optuna.Trial]) -> optuna.Trial | None:
        """Return the next trial, recorded as running; None where no further one starts."""
        if self.stop.requests or self._given_up():
            return None
        if interrupted:
            return interrupted.pop(0)
        trials = self.search.get_trials(deepcopy=False)
        begun = len(_begun(self.search))
        if begun >= self.study.trials or (self.study.algorithm == "grid" and begun == len(trials)):
            return None
        return self.search.ask({n: distribution(each) for n, each in self.study.parameters.items()})

    def _begin(self, trial: optuna.Trial, place: int) -> Trial:
        number, parameters = trial.number + 1, _passed(self.study, trial.params)
        words = ", ".join(f"{name} {value}" for name, value in parameters.items())
        self.on_event(Note(f"trial {number}", f"starts: {words}"))
        self._record()
        metrics = self.job.folder / str(number) / folders.LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        arguments = tuple(f"--{name}={value}" for name, value in parameters.items())
        return Trial(number, arguments, metrics, place, self.study.parallel)

    def _run(self, trial: Trial) -> Outcome:
        """Run one trial to its end, its number in each of its events."""
        several = sum(pool.count for pool in self.job.pools) > 1

        def tell(event: running.JobEvent) -> None:
            replica = f" {event.replica}" if event.replica and several else ""
            self.on_event(replace(event, replica=f"trial {trial.number}{replica}"))

        own = replace(self.job, folder=self.job.folder / str(trial.number), trial=trial)
        return local.run(self.engine, own, stop=Stop(self.stop), on_event=tell)

    def _tell(self, asked: optuna.Trial, trial: Trial, outcome: Outcome) -> None:
        """Tell Optuna how a trial ended. One that was stopped stays running, and runs again."""
        from optuna.trial import TrialState

        if outcome.state == "cancelled" and self.stop.requests:
            return
        value, message = None, outcome.message
        if outcome.state == "succeeded":
            value = last_value(trial.metrics / METRICS_FILE, self.study.metric)
            message = "" if value is not None else f"it reported no {self.study.metric}"
        asked.set_user_attr("message", message)
        asked.set_user_attr("seconds", outcome.seconds)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self.search.tell(asked, value, state)
        result = f"{self.study.metric} {message if value is None else value}"
        self.on_event(Note(f"trial {trial.number}", f"{_STATES[state.name]}: {result}"))
        self._record()

    def _given_up(self) -> str:
        """Return why no further trial starts, "" where the study continues."""
        ended = [trial for trial in _begun(self.search) if trial.state.is_finished()]
        failed = [trial for trial in ended if trial.state.name == "FAIL"]
        if self.study.max_failed and len(failed) > self.study.max_failed:
            return f"{len(failed)} trials failed, more than max_failed: {self.study.max_failed}"
        if not self.study.max_failed and len(failed) == len(ended) >= FAILED_FIRST:
            why = failed[0].user_attrs.get("message")
            return f"the first {len(failed)} trials all failed: {why}"
        return ""

    def _record(self, ended: bool = False) -> StudyOutcome:
        """Write study.json and return what it holds."""
        trials = tuple(_result(self.study, trial) for trial in _begun(self.search))
        count = sum(trial.value is not None for trial in trials)
        state: State = "running"
        code, message = 0, ""
        if ended and self.stop.requests:
            state, code = "cancelled", 128 + (self.stop.signal or signal.SIGTERM)
            message = "stopped on request; the same command continues it"
        elif ended and (not count or self._given_up()):
            state, code, message = "failed", 1, self._given_up() or "no trial succeeded"
        elif ended:
            state, message = "succeeded", f"{count} of {len(trials)} trials"
        seconds = round(time.monotonic() - self.started, 1)
        best = self.search.best_trial.number + 1 if count else None
        what = (self.job.name, self.study.metric, state, code, message, seconds)
        outcome = StudyOutcome(*what, str(self.job.folder), best, trials)
        files.write(self.job.folder / folders.STUDY, json.dumps(asdict(outcome), indent=1) + "\n")
        return outcome


# --- Optuna's form of a study ---------------------------------------------------------------------


def _begun(search: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that run or ran, in the order of their numbers."""
    trials = search.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "WAITING"]


def _result(study: Study, trial: optuna.trial.FrozenTrial) -> TrialResult:
    told = trial.user_attrs
    what = (_STATES[trial.state.name], _passed(study, trial.params), trial.value)
    return TrialResult(trial.number + 1, *what, told.get("message", ""), told.get("seconds", 0.0))


def distribution(parameter: Parameter) -> Any:
    """Return Optuna's form of a parameter; a reverse log scale is a log scale from the end."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.values is not None:
        return CategoricalDistribution(parameter.values)
    low, high, log = *_bounds(parameter), parameter.scale != "linear"
    if parameter.kind == "integer":
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _bounds(parameter: Parameter) -> tuple[float, float]:
    return float(parameter.min or 0), float(parameter.max or 0)


def _values(parameter: Parameter) -> Sequence[Any]:
    """Return the points of a parameter in a grid."""
    low, high = _bounds(parameter)
    return parameter.values or range(int(low), int(high) + 1)


def _passed(study: Study, samples: Mapping[str, Any]) -> dict[str, str]:
    """Return a trial's parameters as they are passed, from Optuna's samples."""
    values = {}
    for name, sample in samples.items():
        parameter = study.parameters[name]
        if parameter.scale == "reverse-log" and parameter.values is None:
            sample = type(sample)(sum(_bounds(parameter)) - sample)
        values[name] = repr(sample) if isinstance(sample, float) else str(sample)
    return values


def last_value(path: Path, metric: str) -> float | None:
    """Return the last value of a metric in a file of cloudml-hypertune: lines of JSON with the
    metric's name. A line that is torn, of another metric or not finite is passed over."""
    value = None
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                number = float(json.loads(line)[metric])
                value = number if math.isfinite(number) else value
    return value
