"""A study that the factory runs itself: a bounded number of trials at once, each one job.

It does what Vertex AI does with a HyperparameterTuningJob: each trial gets its parameters as
--name=value, its number in CLOUD_ML_TRIAL_ID and a folder of its own; its result is the last line
for the metric in the file that cloudml-hypertune writes. The search is a grid, random, or Bayesian
with Optuna's tree-structured Parzen estimator. Vertex AI's own Bayesian algorithm is not public, so
it proposes other values. Early stopping follows the service's median rule; its rule of curves is
not public.

<folder>/study.json holds what was asked for and every trial from its start on. The same command
continues an interrupted study: it keeps the trials that have ended, and runs the others again in
their folders, where a trainer finds its checkpoints.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from builder.core import files
from builder.jobs.description import Study
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
from builder.jobs.studies import record
from builder.jobs.studies.board import Board
from builder.jobs.studies.proposers import Grid, Proposer, Sampled
from builder.jobs.studies.record import Earlier
from builder.jobs.studies.results import (
    ENDED,
    Point,
    StudyOutcome,
    TrialResult,
    Value,
    best,
    dump,
    falls_behind,
    measurements,
    result,
    shown,
)

FAILED_IN_A_ROW = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
JUDGED_EVERY = 0.5
"""Seconds between two looks at what a trial has reported."""


class Trials(Protocol):
    """How one place runs the trials of one study.

    name: the job's. folder: a folder on this machine for study.json and TensorBoard's files, with
    a folder for each trial. image, arguments: those of every trial. several: whether a trial has
    more than one replica.
    """

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def image(self) -> str: ...

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def several(self) -> bool: ...

    def run(
        self,
        number: int,
        arguments: tuple[str, ...],
        lane: tuple[int, int],
        stop: Stop,
        on_event: OnJobEvent,
    ) -> Outcome:
        """Run one trial to its end; called from several threads.

        number: from 1. arguments: the trial's own, after those of the job. lane: which of how many
        trials that run at once this is, from 0: no two at once have the same. Raises InputError,
        OutsideError.
        """

    def reported(self, number: int) -> str:
        """The text of a trial's metric file so far, "" before there is one."""


def run(
    trials: Trials,
    study: Study,
    *,
    parallel: int | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    on_event: OnJobEvent = ignore,
) -> StudyOutcome:
    """Run a study to its end, or continue one that was interrupted.

    parallel: how many trials at once, by default the study's own number. The trials' table is in
    <folder>/study.json from the first trial on. Raises InputError, OutsideError.
    """
    with only_run(trials.folder, ".study.lock"):
        asked = record.asked_for(trials.image, trials.arguments, study, seed)
        before = record.earlier(trials.folder, asked)
        asked["seed"] = before.asked.get("seed", seed)
        if asked["seed"] != seed:
            on_event(Note("", f"it began with seed {asked['seed']}, and goes on with that"))
        at_once = max(1, min(parallel or study.parallel, study.trials))
        return _StudyRun(trials, study, asked, before, stop or Stop(), on_event).run(at_once)


class _StudyRun:
    """One run of a study. Only its own thread touches `done`; trials run in others."""

    def __init__(
        self,
        trials: Trials,
        study: Study,
        asked: Mapping[str, Any],
        before: Earlier,
        stop: Stop,
        on_event: OnJobEvent,
    ) -> None:
        self.trials, self.study, self.asked, self.stop = trials, study, asked, stop
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
        """Tell an event. A terminal that is gone ends the study in order."""
        with self.lock:
            try:
                self.on_event(event)
            except OSError:
                self.on_event = ignore
                self.stop.request(signal.SIGHUP)

    def run(self, at_once: int) -> StudyOutcome:
        with signals(self.stop), ThreadPoolExecutor(at_once) as pool:
            try:
                message = self._try_all(pool, at_once)
            except BaseException:  # a job that is refused, or an engine that is gone
                self.stop.request()  # otherwise the pool waits for the running trials
                raise
        return self._end(message)

    def _try_all(self, pool: ThreadPoolExecutor, at_once: int) -> str:
        """Run trials until none is left. Returns why the study was given up, or ""."""
        board = Board(self.trials.folder, self.study)
        pending: dict[Future[TrialResult], tuple[int, int, Any]] = {}
        lanes = deque(range(at_once))
        message = ""
        while True:
            while lanes and not (message or self.stop.requests):
                following = self._next()
                if following is None:
                    break
                number, key, values = following
                lane = lanes.popleft()
                begun = pool.submit(self._start(number, values, (lane, at_once)))
                pending[begun] = (lane, number, key)
            if not pending:
                return message
            finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                lane, number, key = pending.pop(future)
                lanes.append(lane)
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
        self, number: int, values: Mapping[str, Value], lane: tuple[int, int]
    ) -> Callable[[], TrialResult]:
        """Record a trial before it runs, so that no other trial gets its folder later."""
        words = ", ".join(f"{name} {shown(value)}" for name, value in values.items())
        self.tell(Note(f"trial {number}", f"starts: {words}"))
        self.done[number] = TrialResult(number, "running", values)
        self._record(self._outcome("running", ""))
        return lambda: self._run_trial(number, values, lane)

    def _run_trial(
        self, number: int, values: Mapping[str, Value], lane: tuple[int, int]
    ) -> TrialResult:
        """One trial from start to end, in a thread of its own."""
        metric, own, over = self.study.metric, Stop(self.stop), threading.Event()

        def tell(event: JobEvent) -> None:
            replica = f" {event.replica}" if event.replica and self.trials.several else ""
            self.tell(replace(event, replica=f"trial {number}{replica}"))

        def judge() -> None:
            while not over.wait(JUDGED_EVERY):
                curve = measurements(self.trials.reported(number), metric)
                if falls_behind(curve, self._curves(), self.study.goal):
                    tell(Note("", "falls behind the median of the others: it is stopped early"))
                    own.request()
                    return

        if self.study.early_stopping == "median":
            threading.Thread(target=judge, daemon=True).start()
        arguments = tuple(f"--{name}={shown(value)}" for name, value in values.items())
        try:
            outcome = self.trials.run(number, arguments, lane, own, tell)
        finally:
            over.set()
        early = own.requests > 0 and not self.stop.requests
        return result(number, values, outcome, self.trials.reported(number), metric, early)

    def _curves(self) -> list[tuple[Point, ...]]:
        """The reports of the trials that ran to their end. Called from other threads."""
        return [one.curve for one in list(self.done.values()) if one.state == "succeeded"]

    def _end(self, message: str) -> StudyOutcome:
        state: State = "succeeded"
        valued = sum(one.value is not None for one in self.done.values())
        if self.stop.requests:
            state, message = "cancelled", "stopped on request; the same command goes on"
        elif message or not valued:
            state, message = "failed", message or "no trial succeeded"
        else:
            message = f"{valued} of {len(self.done)} trials"
        ended = self._outcome(state, message)
        self._record(ended)
        return ended

    def _outcome(self, state: State, message: str) -> StudyOutcome:
        trials = tuple(self.done[number] for number in sorted(self.done))
        found = best(trials, self.study.goal)
        return StudyOutcome(
            self.trials.name,
            self.study.metric,
            self.study.goal,
            self.study.algorithm,
            state,
            message,
            round(time.monotonic() - self.began, 1),
            str(self.trials.folder),
            found.number if found else None,
            trials,
            self.stop.signal,
            self.asked,
        )

    def _record(self, outcome: StudyOutcome) -> None:
        files.write(self.trials.folder / record.FILE, dump(outcome))


def _given_up(study: Study, done: Mapping[int, TrialResult]) -> str:
    """Why no further trial starts; "" where the study continues."""
    failed = sum(one.state == "failed" for one in done.values())
    if study.max_failed and failed > study.max_failed:
        return f"{failed} trials failed, more than max_failed: {study.max_failed}"
    ended = [one for _, one in sorted(done.items()) if one.state != "running"]
    if not study.max_failed and len(ended) >= FAILED_IN_A_ROW and failed == len(ended):
        return f"the first {failed} trials all failed: {ended[0].message}"
    return ""
