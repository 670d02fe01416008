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
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.errors import InputError
from builder.core.events import ignore
from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import backend
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.backends.local.run import Stop, only_run, signals
from builder.jobs.backends.protocol import JobStatus, OnLine, TrialStatus
from builder.jobs.description.study import Parameter, Study

if TYPE_CHECKING:
    import optuna

FAILED_FIRST = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
METRICS_FILE = "output.metrics"
"""The name of the file of cloudml-hypertune, in the folder that a trial's replicas share."""
JOURNAL = "study.journal"
_STATES = {"COMPLETE": "succeeded", "FAIL": "failed", "RUNNING": "running"}


def run_study(
    engine: ContainerEngine,
    job: LocalJob,
    study: Study,
    *,
    stop: Stop | None = None,
    on_line: OnLine = ignore,
) -> JobStatus:
    """Run a study to its end, or continue one that was interrupted, and return how it ended.

    The status in the job's folder has the results from the first trial on. on_line: gets each line
    of a trial, and of the study itself. Raises InputError, OutsideError.
    """
    stop = stop or Stop()
    with only_run(job.folder), signals(stop):
        return _Loop(engine, job, study, _opened(job, study), stop, on_line).run()


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
    seed = len(_begun(search))
    described = study.model_dump(mode="json", include={"metric", "goal", "algorithm", "parameters"})
    described["arguments"] = list(job.arguments)
    if search.user_attrs.get("study", described) != described:
        state_now = "this study has begun with another description: its results cannot be compared"
        raise InputError(f"{path}: {state_now}", f"write it back to continue it; or {away}")
    search.set_user_attr("study", described)
    search.sampler = optuna.samplers.RandomSampler(seed=seed)
    if study.algorithm == "bayesian":
        first = study.trials // 3
        search.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=first)
    if study.algorithm == "grid":
        axes = [
            each.values or range(int(each.min or 0), int(each.max or 0) + 1)
            for each in study.parameters.values()
        ]
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
    on_line: OnLine
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def run(self) -> JobStatus:
        known = _begun(self.search)
        interrupted = [trial for trial in known if trial.state.name == "RUNNING"]
        if known:
            kept = len(known) - len(interrupted)
            self._note(f"goes on: {kept} of {self.study.trials} trials are kept")
        if self.study.early_stopping != "none":
            self._note("early_stopping is Vertex AI's; here every trial runs to its end")
        trials: dict[Future[JobStatus], tuple[optuna.Trial, Trial]] = {}
        with ThreadPoolExecutor(self.study.parallel) as pool:
            try:
                while True:
                    while len(trials) < self.study.parallel and (asked := self._ask(interrupted)):
                        taken = {trial.place for _, trial in trials.values()}
                        trial = self._begin(asked, min({*range(self.study.parallel)} - taken))
                        trials[pool.submit(self._run, trial)] = (asked, trial)
                    if not trials:
                        return self._record(ended=True)
                    for future in wait(trials, return_when=FIRST_COMPLETED).done:
                        self._tell(*trials.pop(future), future.result())
            except BaseException:  # a job that is refused, or an engine that is gone
                self.stop.request()
                raise

    def _ask(self, interrupted: list[optuna.trial.FrozenTrial]) -> optuna.Trial | None:
        """Return the next trial, recorded as running; None where no further one starts."""
        import optuna

        if self.stop.requests or self._given_up():
            return None
        if interrupted:
            return optuna.Trial(self.search, interrupted.pop(0)._trial_id)
        trials, begun = self.search.get_trials(deepcopy=False), len(_begun(self.search))
        if begun >= self.study.trials or (self.study.algorithm == "grid" and begun == len(trials)):
            return None
        return self.search.ask()

    def _begin(self, asked: optuna.Trial, place: int) -> Trial:
        for name, parameter in self.study.parameters.items():
            _suggest(asked, name, parameter)
        number, parameters = asked.number + 1, _passed(asked.params)
        words = ", ".join(f"{name} {value}" for name, value in parameters.items())
        self._note(f"trial {number} starts: {words}")
        self._record()
        metrics = self.job.folder / str(number) / backend.LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        arguments = tuple(f"--{name}={value}" for name, value in parameters.items())
        return Trial(number, arguments, metrics, place, self.study.parallel)

    def _run(self, trial: Trial) -> JobStatus:
        own = replace(self.job, folder=self.job.folder / str(trial.number), trial=trial)
        return local.run(
            self.engine,
            own,
            stop=self.stop,
            on_line=lambda line: self.on_line(replace(line, trial=str(trial.number))),
        )

    def _tell(self, asked: optuna.Trial, trial: Trial, ended: JobStatus) -> None:
        """Tell Optuna how a trial ended. One that was stopped stays running, and runs again."""
        from optuna.trial import TrialState

        if ended.state == "cancelled" and self.stop.requests:
            return
        value, message = None, ended.error
        if ended.state == "succeeded":
            value = last_value(trial.metrics / METRICS_FILE, self.study.metric)
            message = f"it reported no {self.study.metric}"
        asked.set_user_attr("message", message)
        asked.set_user_attr("seconds", ended.seconds)
        self.search.tell(asked, value, TrialState.FAIL if value is None else TrialState.COMPLETE)
        how = f"failed: {message}" if value is None else f"ended: {self.study.metric} {value}"
        self._note(f"trial {trial.number} {how}")
        self._record()

    def _note(self, text: str) -> None:
        self.on_line(backend.note(self.job.folder, text))

    def _given_up(self) -> str:
        """Return why no further trial starts, "" where the study continues."""
        ended = [trial for trial in _begun(self.search) if trial.state.is_finished()]
        failed = [trial for trial in ended if trial.state.name == "FAIL"]
        all_failed = len(failed) == len(ended) >= FAILED_FIRST
        if len(failed) > self.study.max_failed if self.study.max_failed else all_failed:
            return f"{len(failed)} trials failed, the first: {failed[0].user_attrs.get('message')}"
        return ""

    def _record(self, ended: bool = False) -> JobStatus:
        trials = tuple(map(_status, _begun(self.search)))
        count = sum(trial.value is not None for trial in trials)
        state, message = "running", f"{count} of {len(trials)} trials"
        if count:
            best = self.search.best_trial
            message += f"; the best is trial {best.number + 1}: {self.study.metric} {best.value}"
        if ended and self.stop.requests:
            state, message = "cancelled", "stopped on request; the same command continues it"
        elif ended and (not count or self._given_up()):
            state, message = "failed", self._given_up() or "no trial succeeded"
        elif ended:
            state = "succeeded"
        code = self.stop.code if state == "cancelled" else None
        state_now = (self.job, state, self.started, message)
        return backend.write(*state_now, trials=trials, failed_code=code)


# --- Optuna's form of a study ---------------------------------------------------------------------


def _begun(search: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that run or ran, in the order of their numbers."""
    trials = search.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "WAITING"]


def _status(trial: optuna.trial.FrozenTrial) -> TrialStatus:
    state, seconds = _STATES[trial.state.name], trial.user_attrs.get("seconds")
    return TrialStatus(str(trial.number + 1), state, _passed(trial.params), trial.value, seconds)


def _suggest(trial: optuna.Trial, name: str, parameter: Parameter) -> None:
    """Let a trial choose a parameter; one that an earlier run has chosen stays."""
    low, high, log = parameter.min or "0", parameter.max or "0", parameter.scale == "log"
    if parameter.values is not None:
        trial.suggest_categorical(name, parameter.values)
    elif parameter.kind == "integer":
        trial.suggest_int(name, int(low), int(high), log=log)
    else:
        trial.suggest_float(name, float(low), float(high), log=log)


def _passed(samples: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(sample) for name, sample in samples.items()}


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
