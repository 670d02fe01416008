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
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import files
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.backends.local.trials import (
    METRICS_FILE,
    STATES,
    TrialResult,
    begun,
    combinations,
    distribution,
    measurements,
    opened,
    result,
    shown,
    values,
)
from builder.jobs.description import Study
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

FAILED_FIRST = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
JUDGED_EVERY = 0.5
"""Seconds between two looks at what a trial has reported."""


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
            search = opened(job, study, seed)
            running = _Running(engine, job, study, at_once, search, stop or Stop(), on_event)
            return running.to_the_end()
    finally:
        folders.give_back(job.folder)


@dataclass
class _Running:
    """One run of a study. Each lane is a thread that asks, runs a trial, and tells."""

    engine: ContainerEngine
    job: LocalJob
    study: Study
    at_once: int
    search: optuna.Study
    stop: Stop
    on_event: OnJobEvent
    lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        from optuna.trial import TrialState

        self.again: deque[optuna.trial.FrozenTrial] = deque()
        trials = begun(self.search)
        for trial in trials:
            if trial.state.name == "RUNNING" and len(trial.params) < len(self.study.parameters):
                self.search.tell(trial.number, state=TrialState.FAIL)  # killed while it was asked
            elif trial.state.name == "RUNNING":
                self.again.append(trial)
        if trials:
            kept = len(trials) - len(self.again)
            self.tell(Note("", f"goes on: {kept} of {self.study.trials} trials are kept"))
        if self.study.early_stopping == "curve":
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
                return optuna.Trial(self.search, self.again.popleft()._trial_id)  # begun before
            count = len(begun(self.search))
            if count >= self.study.trials:
                return None
            if self.study.algorithm == "grid":
                point = next(itertools.islice(combinations(self.study), count, None), None)
                if point is None:
                    return None
                self.search.enqueue_trial(point, skip_if_exists=True)
            space = {name: distribution(each) for name, each in self.study.parameters.items()}
            return self.search.ask(space)

    def _run(self, trial: optuna.Trial, lane: int) -> None:
        """Run one trial to its end, and tell Optuna its result."""
        number, parameters = trial.number + 1, values(self.study, trial.params)
        words = ", ".join(f"{name} {shown(value)}" for name, value in parameters.items())
        with self.lock:
            self.tell(Note(f"trial {number}", f"starts: {words}"))
            self._record()
        metrics = self.job.folder / str(number) / folders.LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        arguments = tuple(f"--{name}={shown(value)}" for name, value in parameters.items())
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
            write_trial(mine.folder / "logs", number, parameters, self.study.metric, reported)

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
        self.search.tell(trial, value if state == TrialState.COMPLETE else None, state)
        text = f"{STATES[state.name]}: {self.study.metric} {message if value is None else value}"
        self.tell(Note(f"trial {trial.number + 1}", text))
        self._record()

    def _report(self, trial: optuna.Trial, reported: list[tuple[int, float]]) -> None:
        """Tell Optuna what a trial has reported since the last look."""
        known = self.search.get_trials(deepcopy=False)[trial.number].intermediate_values
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
        ended = [trial for trial in begun(self.search) if trial.state.is_finished()]
        failed = [trial for trial in ended if trial.state.name == "FAIL"]
        if self.study.max_failed and len(failed) > self.study.max_failed:
            return f"{len(failed)} trials failed, more than max_failed: {self.study.max_failed}"
        if not self.study.max_failed and len(failed) == len(ended) >= FAILED_FIRST:
            why = failed[0].user_attrs.get("message")
            return f"the first {len(failed)} trials all failed: {why}"
        return ""

    def _record(self, ended: bool = False) -> StudyOutcome:
        """Write study.json and return what it holds."""
        trials = tuple(result(self.study, trial) for trial in begun(self.search))
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
