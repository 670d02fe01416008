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
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files
from builder.core.errors import InputError
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.description import Parameter, Study
from builder.jobs.running import JobEvent, Note, OnJobEvent, State, Stop, ignore, only_run, signals

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
    job.folder.mkdir(parents=True, exist_ok=True)
    folders.open_folder(job.folder)
    try:
        with only_run(job.folder, ".study.lock"):
            search = _opened(job, study)
            return _Running(engine, job, study, search, stop or Stop(), on_event).to_the_end()
    finally:
        folders.give_back(job.folder)


def _opened(job: LocalJob, study: Study) -> optuna.Study:
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
    trials = _begun(search)
    search.sampler = optuna.samplers.RandomSampler(seed=len(trials))
    if study.algorithm == "bayesian":
        startup = min(10, max(4, study.trials // 3))
        search.sampler = optuna.samplers.TPESampler(seed=len(trials), n_startup_trials=startup)
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
    if len(trials) >= study.trials and all(trial.state.is_finished() for trial in trials):
        raise InputError(
            f"{path}: this study has been run already", f"{away}; with more trials it continues"
        )
    return search


@dataclass
class _Running:
    """One run of a study. Each lane is a thread that asks, runs a trial, and tells."""

    engine: ContainerEngine
    job: LocalJob
    study: Study
    search: optuna.Study
    stop: Stop
    on_event: OnJobEvent
    lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        from optuna.trial import TrialState

        self.again: deque[optuna.trial.FrozenTrial] = deque()
        trials = _begun(self.search)
        for trial in trials:
            if trial.state.name == "RUNNING" and len(trial.params) < len(self.study.parameters):
                self.search.tell(trial.number, state=TrialState.FAIL)  # killed within `ask`
            elif trial.state.name == "RUNNING":
                self.again.append(trial)
        if trials:
            kept = len(trials) - len(self.again)
            self.on_event(Note("", f"goes on: {kept} of {self.study.trials} trials are kept"))
        if self.study.early_stopping != "none":
            text = f"early_stopping: {self.study.early_stopping} is Vertex AI's; here every trial "
            self.on_event(Note("", f"{text}runs to its end"))

    def to_the_end(self) -> StudyOutcome:
        """Run all trials, `parallel` at once, and return how the study ended."""
        with signals(self.stop), ThreadPoolExecutor(self.study.parallel) as pool:
            for lane in [pool.submit(self._lane, index) for index in range(self.study.parallel)]:
                lane.result()
        return self._record(ended=True)

    def _lane(self, lane: int) -> None:
        """Run one trial after the other until none is left."""
        try:
            while (trial := self._next()) is not None:
                self._run(trial, lane)
        except BaseException:  # a job that is refused, or an engine that is gone
            self.stop.request()
            raise

    def _next(self) -> optuna.Trial | None:
        """Return the next trial, recorded as running; None where no further one starts."""
        import optuna

        with self.lock:
            if self.stop.requests or self._given_up():
                return None
            if self.again:
                return optuna.Trial(self.search, self.again.popleft()._trial_id)  # begun before
            space = {name: distribution(each) for name, each in self.study.parameters.items()}
            count = len(_begun(self.search))
            if count >= self.study.trials:
                return None
            if self.study.algorithm == "grid":
                point = next(itertools.islice(_grid(self.study), count, None), None)
                if point is None:
                    return None
                self.search.enqueue_trial(point, skip_if_exists=True)
            return self.search.ask(space)

    def _run(self, trial: optuna.Trial, lane: int) -> None:
        """Run one trial to its end, and tell Optuna its result."""
        number, parameters = trial.number + 1, _values(self.study, trial.params)
        words = ", ".join(f"{name} {value}" for name, value in parameters.items())
        with self.lock:
            self.on_event(Note(f"trial {number}", f"starts: {words}"))
            self._record()
        metrics = self.job.folder / str(number) / folders.LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        arguments = tuple(f"--{name}={value}" for name, value in parameters.items())
        own = replace(
            self.job,
            folder=self.job.folder / str(number),
            trial=Trial(number, arguments, metrics, lane, self.study.parallel),
        )
        outcome = local.run(self.engine, own, stop=Stop(self.stop), on_event=self._of_trial(number))
        if outcome.state == "cancelled" and self.stop.requests:
            return  # it stays as running in the journal, and runs again
        reported = measurements(metrics / METRICS_FILE, self.study.metric)
        value = reported[-1] if reported and outcome.state == "succeeded" else None
        message = "" if value is not None else f"it reported no {self.study.metric}"
        if outcome.state != "succeeded":
            message = outcome.message
        with self.lock:
            self._tell(trial, value, message, outcome.seconds)

    def _tell(self, trial: optuna.Trial, value: float | None, message: str, seconds: float) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr("message", message)
        trial.set_user_attr("seconds", seconds)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self.search.tell(trial, value, state)
        result = f"{self.study.metric} {message if value is None else value}"
        self.on_event(Note(f"trial {trial.number + 1}", f"{_STATES[state.name]}: {result}"))
        self._record()

    def _of_trial(self, number: int) -> OnJobEvent:
        """Return a callback that names the trial in each event."""
        several = sum(pool.count for pool in self.job.pools) > 1

        def tell(event: JobEvent) -> None:
            replica = f" {event.replica}" if event.replica and several else ""
            with self.lock:
                self.on_event(replace(event, replica=f"trial {number}{replica}"))

        return tell

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
        valued = [trial for trial in trials if trial.value is not None]
        sign = -1 if self.study.goal == "maximize" else 1
        best = min(valued, key=lambda trial: sign * (trial.value or 0.0), default=None)
        state: State = "running"
        code, message = 0, ""
        if ended and self.stop.requests:
            state, code = "cancelled", 128 + (self.stop.signal or signal.SIGTERM)
            message = "stopped on request; the same command continues it"
        elif ended and (not valued or self._given_up()):
            state, code, message = "failed", 1, self._given_up() or "no trial succeeded"
        elif ended:
            state, message = "succeeded", f"{len(valued)} of {len(trials)} trials"
        seconds = round(time.monotonic() - self.started, 1)
        number = best.number if best else None
        what = (self.job.name, self.study.metric, state, code, message, seconds)
        outcome = StudyOutcome(*what, str(self.job.folder), number, trials)
        files.write(self.job.folder / folders.STUDY, json.dumps(asdict(outcome), indent=1) + "\n")
        return outcome


# --- Optuna's form of a study ---------------------------------------------------------------------


def _begun(search: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that run or ran, in the order of their numbers."""
    trials = search.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "WAITING"]


def _result(study: Study, trial: optuna.trial.FrozenTrial) -> TrialResult:
    return TrialResult(
        trial.number + 1,
        _STATES[trial.state.name],
        _values(study, trial.params),
        trial.value,
        trial.user_attrs.get("message", ""),
        trial.user_attrs.get("seconds", 0.0),
    )


def distribution(parameter: Parameter) -> Any:
    """Return Optuna's form of a parameter; a reverse log scale is a log scale from the end."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.values is not None:
        return CategoricalDistribution(parameter.values)
    low, high = float(parameter.min or 0), float(parameter.max or 0)
    log = parameter.scale != "linear"
    if parameter.kind == "integer":
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _grid(study: Study) -> Iterator[dict[str, Any]]:
    """Yield every combination of a grid, in order."""
    choices = [
        parameter.values
        or range(int(float(str(parameter.min))), int(float(str(parameter.max))) + 1)
        for parameter in study.parameters.values()
    ]
    for point in itertools.product(*choices):
        yield dict(zip(study.parameters, point, strict=True))


def _values(study: Study, samples: Mapping[str, Any]) -> dict[str, str]:
    """Return a trial's parameters as they are passed, from Optuna's samples."""
    values = {}
    for name, sample in samples.items():
        parameter = study.parameters[name]
        if parameter.scale == "reverse-log" and parameter.values is None:
            sample = float(parameter.min or 0) + float(parameter.max or 0) - sample
            sample = int(sample) if parameter.kind == "integer" else sample
        values[name] = repr(sample) if isinstance(sample, float) else str(sample)
    return values


def measurements(path: Path, metric: str) -> list[float]:
    """Return the values of a metric in a file of cloudml-hypertune: JSON lines with the metric's
    name. A line that is torn or of another metric is passed over."""
    values = []
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                value = float(json.loads(line)[metric])
                values += [value] if math.isfinite(value) else []
    return values
