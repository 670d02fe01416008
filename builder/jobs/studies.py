"""A study: a loop of Optuna's ask and tell. Where its trials run is the loop's parameter.

Optuna's samplers propose; Vertex AI's own are not public. A trial gets its parameters as
--name=value, and its number in CLOUD_ML_TRIAL_ID. Optuna's journal in the study's folder holds
every trial from its start on. So the same command continues an interrupted study.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from builder.core.errors import InputError
from builder.core.events import ignore
from builder.jobs.backends.protocol import JobStatus, TrialStatus
from builder.jobs.description.study import Parameter, Study
from builder.jobs.stopping import Stop

if TYPE_CHECKING:
    import optuna

FAILED_FIRST = 3
"""Where max_failed is 0, a study ends when this many first trials all failed."""
JOURNAL = "study.journal"
TRIAL_VARIABLE = "CLOUD_ML_TRIAL_ID"
"""The variable with a trial's number. Source: Vertex AI, hyperparameter tuning."""
AWAKE = 0.5
"""Seconds: a signal that another thread got is handled when this one, which waits, goes on."""
_STATES = {"COMPLETE": "succeeded", "FAIL": "failed", "RUNNING": "running"}


@dataclass(frozen=True)
class StudyTrial:
    """A trial that is to run."""

    number: int
    """From 1."""
    parameters: Mapping[str, str]
    place: int = 0
    """A number from 0 among the trials that run side by side; no two share it."""
    job: str = ""
    """The whole name of the job that an earlier run has made of it, as it was kept."""
    keep: Callable[[str], object] = ignore
    """Keeps that name in the journal."""

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(f"--{name}={value}" for name, value in self.parameters.items())


@dataclass(frozen=True)
class TrialEnd:
    value: float | None
    """The metric; None for a trial that failed."""
    error: str = ""
    seconds: float | None = None


class Place(Protocol):
    """Where the trials of a study run."""

    def run(self, trial: StudyTrial) -> TrialEnd | None:
        """Run a trial, in a thread of its own, and return how it ended; None where it was left, and
        is the next run's to end."""

    def note(self, text: str) -> object:
        """Say what the study does."""

    def record(self, state: str, message: str, trials: tuple[TrialStatus, ...]) -> JobStatus:
        """Keep how the study stands. state: running, succeeded, failed, or stopped by a request."""


def opened(folder: Path, name: str, description: Mapping[str, Any], study: Study) -> optuna.Study:
    """Return Optuna's study of a folder, a new one or that of an earlier run.

    description: what its trials have in common. Raises InputError for one that was begun with
    something else: its results cannot be compared.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path, away = folder / JOURNAL, f"remove {folder} to begin another one"
    Path(f"{path}.lock").unlink(missing_ok=True)  # of a run that was killed; only_run holds ours
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        search = optuna.create_study(
            study_name=name, storage=storage, direction=study.goal, load_if_exists=True
        )
    except (ValueError, KeyError, AssertionError) as error:  # torn, or of another Optuna
        raise InputError(f"{path}: no study that can be continued: {error}", away) from None
    seed = len(_begun(search))
    if search.user_attrs.get("study", description) != description:
        state_now = "this study has begun with another description: its results cannot be compared"
        raise InputError(f"{path}: {state_now}", f"write it back to continue it; or {away}")
    search.set_user_attr("study", description)
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


def described(study: Study, **more: Any) -> dict[str, Any]:
    """Return what the trials of a study have in common. more: beside the study's own fields."""
    fields = {"metric", "goal", "algorithm", "parameters"}
    return {**study.model_dump(mode="json", include=fields), **more}


@dataclass(frozen=True)
class Loop:
    """One run of a study. Its own thread asks and tells; the trials run in others."""

    study: Study
    search: optuna.Study
    place: Place
    stop: Stop

    def run(self) -> JobStatus:
        """Run the study to its end, or until a request stops it. Raises what a trial raises."""
        known = _begun(self.search)
        interrupted = [trial for trial in known if trial.state.name == "RUNNING"]
        if known:
            kept = len(known) - len(interrupted)
            self.place.note(f"goes on: {kept} of {self.study.trials} trials are kept")
        if self.study.early_stopping != "none":
            self.place.note("early_stopping is Vertex AI's; here every trial runs to its end")
        trials: dict[Future[TrialEnd | None], tuple[optuna.Trial, StudyTrial]] = {}
        with ThreadPoolExecutor(self.study.parallel) as pool:
            try:
                while True:
                    while len(trials) < self.study.parallel and (asked := self._ask(interrupted)):
                        taken = {trial.place for _, trial in trials.values()}
                        trial = self._begin(asked, min({*range(self.study.parallel)} - taken))
                        trials[pool.submit(self.place.run, trial)] = (asked, trial)
                    if not trials:
                        return self._record(ended=True)
                    for future in wait(trials, AWAKE, FIRST_COMPLETED).done:
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

    def _begin(self, asked: optuna.Trial, place: int) -> StudyTrial:
        for name, parameter in self.study.parameters.items():
            _suggest(asked, name, parameter)
        number, parameters = asked.number + 1, _passed(asked.params)
        words = ", ".join(f"{name} {value}" for name, value in parameters.items())
        known = str(asked.user_attrs.get("job", ""))
        self.place.note(f"trial {number} {'goes on' if known else 'starts'}: {words}")
        self._record()
        keep = functools.partial(asked.set_user_attr, "job")
        return StudyTrial(number, parameters, place, known, keep)

    def _tell(self, asked: optuna.Trial, trial: StudyTrial, end: TrialEnd | None) -> None:
        """Tell Optuna how a trial ended. One that was left stays running, and runs again."""
        from optuna.trial import TrialState

        if end is None:
            return
        asked.set_user_attr("message", end.error)
        asked.set_user_attr("seconds", end.seconds)
        state = TrialState.FAIL if end.value is None else TrialState.COMPLETE
        self.search.tell(asked, end.value, state)
        metric = self.study.metric
        how = f"failed: {end.error}" if end.value is None else f"ended: {metric} {end.value}"
        self.place.note(f"trial {trial.number} {how}")
        self._record()

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
            state = "stopped"
        elif ended and (not count or self._given_up()):
            state, message = "failed", self._given_up() or "no trial succeeded"
        elif ended:
            state = "succeeded"
        return self.place.record(state, message, trials)


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
