"""A study on this machine: a loop of Optuna's ask and tell, in which each trial is a local job.

A trial does what it does on Vertex AI: it gets its parameters as --name=value, its number in
CLOUD_ML_TRIAL_ID and a folder of its own, and its result is the last line for the metric in the
file that cloudml-hypertune writes. Optuna searches and judges: TPE, random or a list of all
combinations, and the median rule. The service's own algorithms are not public.

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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files
from builder.core.errors import InputError
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.description import Parameter, Study
from builder.jobs.eventfiles import write_trial
from builder.jobs.running import (
    JobEvent,
    Note,
    OnJobEvent,
    Outcome,
    State,
    Stop,
    ignore,
    only_run,
    signals,
)

if TYPE_CHECKING:
    import optuna

Value = float | int | str
METRICS_FILE = "output.metrics"
"""The name of the file of cloudml-hypertune, in the folder that a trial's replicas share."""
JOURNAL = "study.journal"
FAILED_FIRST = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
MEDIAN_OF = 3
"""How many completed trials it takes to judge another one by their median."""
JUDGED_EVERY = 0.5
"""Seconds between two looks at what a trial has reported."""
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
    parallel: int | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> StudyOutcome:
    """Run a study to its end, or continue one that was interrupted, and return how it ended.

    parallel: how many trials run at once, by default the study's own number. The results are in
    study.json of the job's folder from the first trial on. Raises InputError, OutsideError.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    folders.open_folder(job.folder)
    try:
        with only_run(job.folder, ".study.lock"):
            at_once = max(1, min(parallel or study.parallel, study.trials))
            running = _Running(engine, job, study, at_once, seed, stop or Stop(), on_event)
            return running.to_the_end()
    finally:
        folders.give_back(job.folder)


class _Running:
    """One run of a study. Each lane is a thread that asks, runs a trial, and tells."""

    def __init__(
        self,
        engine: ContainerEngine,
        job: LocalJob,
        study: Study,
        at_once: int,
        seed: int,
        stop: Stop,
        on_event: OnJobEvent,
    ) -> None:
        self.engine, self.job, self.study, self.at_once = engine, job, study, at_once
        self.stop, self.on_event = stop, on_event
        self.lock, self.began = threading.Lock(), time.monotonic()
        self.optuna = _open(job, study, seed)
        trials = _begun(self.optuna)
        self.again = deque(trial for trial in trials if trial.state.name == "RUNNING")
        if trials:
            kept = len(trials) - len(self.again)
            self.tell(Note("", f"goes on: {kept} of {study.trials} trials are kept"))
        if study.early_stopping == "curve":
            text = "early_stopping: curve is the service's own: here every trial runs to its end"
            self.tell(Note("", text))

    def tell(self, event: JobEvent) -> None:
        """Pass on an event. A terminal that is gone ends the study in order."""
        try:
            self.on_event(event)
        except OSError:
            self.on_event = ignore
            self.stop.request(signal.SIGHUP)

    def to_the_end(self) -> StudyOutcome:
        with signals(self.stop), ThreadPoolExecutor(self.at_once) as pool:
            for lane in [pool.submit(self._lane, index) for index in range(self.at_once)]:
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
                return optuna.Trial(self.optuna, self.again.popleft()._trial_id)  # begun before
            begun = len(_begun(self.optuna))
            if begun >= self.study.trials:
                return None
            if self.study.algorithm == "grid":
                point = next(itertools.islice(combinations(self.study), begun, None), None)
                if point is None:
                    return None
                self.optuna.enqueue_trial(point, skip_if_exists=True)
            space = {name: distribution(each) for name, each in self.study.parameters.items()}
            return self.optuna.ask(space)

    def _run(self, trial: optuna.Trial, lane: int) -> None:
        """Run one trial to its end, and tell Optuna its result."""
        number, values = trial.number + 1, _values(self.study, trial.params)
        words = ", ".join(f"{name} {shown(value)}" for name, value in values.items())
        with self.lock:
            self.tell(Note(f"trial {number}", f"starts: {words}"))
            self._record()
        metrics = self.job.folder / str(number) / folders.LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        arguments = tuple(f"--{name}={shown(value)}" for name, value in values.items())
        mine = replace(
            self.job,
            folder=self.job.folder / str(number),
            trial=Trial(number, arguments, metrics, lane, self.at_once),
        )
        with self._judged(trial, metrics) as own:
            outcome = local.run(self.engine, mine, stop=own, on_event=self._of_trial(number))
        if outcome.state == "cancelled" and self.stop.requests:
            return  # it stays as running in the journal, and runs again
        reported = measurements(metrics / METRICS_FILE, self.study.metric)
        with self.lock:
            self._end(trial, outcome, reported)
            write_trial(mine.folder / "logs", number, values, self.study.metric, reported)

    def _end(
        self, trial: optuna.Trial, outcome: Outcome, reported: list[tuple[int, float]]
    ) -> None:
        from optuna.trial import TrialState

        state, value, message = TrialState.FAIL, None, outcome.message
        if reported and outcome.state in ("succeeded", "cancelled"):
            early = outcome.state == "cancelled"
            state, value = TrialState.PRUNED if early else TrialState.COMPLETE, reported[-1][1]
            message = "stopped early" if early else ""
        elif outcome.state == "succeeded":
            message = f"it reported no {self.study.metric}"
        self._report(trial, reported)
        trial.set_user_attr("message", message)
        trial.set_user_attr("seconds", outcome.seconds)
        self.optuna.tell(trial, value if state == TrialState.COMPLETE else None, state)
        text = f"{STATES[state.name]}: {self.study.metric} {message if value is None else value}"
        self.tell(Note(f"trial {trial.number + 1}", text))
        self._record()

    def _report(self, trial: optuna.Trial, reported: list[tuple[int, float]]) -> None:
        """Tell Optuna what a trial has reported since the last look."""
        known = self.optuna.get_trials(deepcopy=False)[trial.number].intermediate_values
        for step, value in dict(reported).items():
            if step not in known:
                trial.report(value, step)

    def _of_trial(self, number: int) -> OnJobEvent:
        """Return a callback that names the trial in each event."""
        several = sum(pool.count for pool in self.job.pools) > 1

        def tell(event: JobEvent) -> None:
            replica = f" {event.replica}" if event.replica and several else ""
            with self.lock:
                self.tell(replace(event, replica=f"trial {number}{replica}"))

        return tell

    @contextlib.contextmanager
    def _judged(self, trial: optuna.Trial, metrics: Path) -> Iterator[Stop]:
        """Within the block, end a trial that falls behind the median of the completed ones."""
        own, over = Stop(self.stop), threading.Event()

        def judge() -> None:
            while not over.wait(JUDGED_EVERY) and not own.requests:
                with self.lock:
                    self._report(trial, measurements(metrics / METRICS_FILE, self.study.metric))
                    behind = trial.should_prune()
                if behind:
                    text = "falls behind the median of the others: it is stopped early"
                    self._of_trial(trial.number + 1)(Note("", text))
                    own.request()

        if self.study.early_stopping == "median":
            threading.Thread(target=judge, daemon=True).start()
        try:
            yield own
        finally:
            over.set()

    def _given_up(self) -> str:
        """Return why no further trial starts, "" where the study continues."""
        ended = [trial for trial in _begun(self.optuna) if trial.state.is_finished()]
        failed = [trial for trial in ended if trial.state.name == "FAIL"]
        if self.study.max_failed and len(failed) > self.study.max_failed:
            return f"{len(failed)} trials failed, more than max_failed: {self.study.max_failed}"
        if not self.study.max_failed and len(failed) == len(ended) >= FAILED_FIRST:
            why = failed[0].user_attrs.get("message")
            return f"the first {len(failed)} trials all failed: {why}"
        return ""

    def _record(self, ended: bool = False) -> StudyOutcome:
        """Write study.json and return what it holds."""
        trials = tuple(_result(self.study, trial) for trial in _begun(self.optuna))
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
        seconds = round(time.monotonic() - self.began, 1)
        outcome = StudyOutcome(
            self.job.name,
            self.study.metric,
            state,
            code,
            message,
            seconds,
            str(self.job.folder),
            best.number if best else None,
            trials,
        )
        files.write(self.job.folder / folders.STUDY, json.dumps(asdict(outcome), indent=1) + "\n")
        return outcome


# --- Optuna's side --------------------------------------------------------------------------------


def _open(job: LocalJob, study: Study, seed: int) -> optuna.Study:
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
        opened = optuna.create_study(
            study_name=job.name, storage=storage, direction=study.goal, load_if_exists=True
        )
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: no study that can be continued: {error}", away) from None
    begun = len(_begun(opened))
    opened.pruner = optuna.pruners.MedianPruner(n_startup_trials=MEDIAN_OF)
    opened.sampler = optuna.samplers.RandomSampler(seed=seed + begun)
    if study.algorithm == "bayesian":
        startup = min(10, max(4, study.trials // 3))
        opened.sampler = optuna.samplers.TPESampler(seed=seed + begun, n_startup_trials=startup)
    asked = json.loads(study.model_dump_json(include={"metric", "goal", "algorithm", "parameters"}))
    asked["arguments"] = list(job.arguments)
    before = opened.user_attrs.get("study", asked)
    if different := [name for name in asked if before.get(name) != asked[name]]:
        raise InputError(
            f"{path}: this study has begun with other {' and '.join(different)}: its results "
            "cannot be compared",
            f"write them back to continue it; or {away}",
        )
    opened.set_user_attr("study", asked)
    if begun >= study.trials and all(trial.state.is_finished() for trial in _begun(opened)):
        raise InputError(
            f"{path}: this study has been run already", f"{away}; with more trials it continues"
        )
    return opened


def _begun(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that run or ran, in the order of their numbers."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "WAITING"]


def _result(study: Study, trial: optuna.trial.FrozenTrial) -> TrialResult:
    return TrialResult(
        trial.number + 1,
        STATES[trial.state.name],
        _values(study, trial.params),
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


def _values(study: Study, samples: Mapping[str, Any]) -> dict[str, Value]:
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
