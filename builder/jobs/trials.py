"""A study whose trials are jobs of a backend: each is submitted once, and followed to its end.

What a trial is stands in the labels of its job; what came of it in the study's folder on this
machine: Optuna's journal, and the table that `job status` shows. The metric is read from the lines
of its replicas. So jobs go on where this process ends, and the next one takes them up again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from builder import contract
from builder.core import files
from builder.core.events import ignore
from builder.jobs import studies
from builder.jobs.backends.protocol import (
    EXIT_CANCELLED,
    SERVICE,
    AlreadySubmitted,
    GoneError,
    JobStatus,
    LogLine,
    OnLine,
    RemoteBackend,
    TrialStatus,
    UnansweredError,
)
from builder.jobs.description.study import Study
from builder.jobs.ready import STUDY_LABEL, TRIAL_LABEL, Ready, key_of
from builder.jobs.stopping import Stop, only_run, signals
from builder.jobs.studies import StudyTrial, TrialEnd
from builder.jobs.submission import FOLDER, Memory
from builder.jobs.watch import follow

TABLE = "study.json"
_STATUS = TypeAdapter(JobStatus)
_STATES = ("running", "pending", "queued")
"""What a study is called with trials in several of them."""


def folder_of(root: Path, name: str, backend: str) -> Path:
    """Return the folder of what this machine knows of a study on a backend."""
    return root / FOLDER / name / backend


def kept(folder: Path) -> JobStatus | None:
    """Return a study as this machine's last run of it left it; None where nobody can read that."""
    try:
        return _STATUS.validate_json((folder / TABLE).read_bytes())
    except (OSError, ValueError):
        return None


def gathered(jobs: Sequence[JobStatus], known: JobStatus | None) -> JobStatus:
    """Return a study as one job with a row for each trial: what `known` has of it, and how the jobs
    of its trials are now, the newest first."""
    study = jobs[0].labels[STUDY_LABEL]
    here = known if known and known.labels.get(STUDY_LABEL) == study else None
    rows = {trial.id: trial for trial in here.trials} if here else {}
    for job in reversed(jobs):
        number = job.labels[TRIAL_LABEL]
        row = rows.get(number) or TrialStatus(number, "running", {}, None, job.seconds)
        rows[number] = replace(row, state=job.state) if row.state == "running" else row
    active = [job for job in jobs if job.active]
    done = sum(job.state == "succeeded" for job in jobs)
    error = f"{done} of {len(jobs)} trials succeeded; the machine that asks has the rest"
    state, error = (here.state, here.error) if here else ("succeeded" if done else "failed", error)
    if active:
        states = {job.state for job in active}
        state = next((each for each in _STATES if each in states), active[0].state)
        error = "; ".join(filter(None, (error, active[0].error)))
    elif here and here.active:
        state, error = "pending", f"{error}; no trial runs now: builder job submit goes on with it"
    return replace(
        here or jobs[0],
        name=f"{jobs[0].name.rpartition('/')[0]}/studies/{study}",
        state=state,
        error=error,
        created=jobs[-1].created,
        started=min((job.started for job in jobs if job.started), default=None),
        ended=None if active else max((job.ended for job in jobs if job.ended), default=None),
        trials=tuple(sorted(rows.values(), key=lambda row: int(row.id))),
        replicas=(),
        failed_code=None,
    )


@dataclass(frozen=True)
class SentStudy:
    """A study that this process asks for and a backend runs."""

    root: Path
    backend: RemoteBackend
    ready: Ready

    def run(self, on_line: OnLine = ignore, poll: float = 10.0) -> JobStatus:
        """Run the study, or go on with it, to its end or until a signal. Its jobs outlive a signal.

        on_line: gets the lines of the trials, and of the study itself. poll: seconds between two
        looks at a trial. Raises InputError, OutsideError.
        """
        job, stop = self.ready.job, Stop()
        assert job.study is not None
        folder = folder_of(self.root, job.id, self.backend.name)
        with only_run(folder, "wait for it"), signals(stop):
            common = studies.described(job.study, job=self.backend.key(self.ready))
            search = studies.opened(folder, job.id, common, job.study)
            place = _Jobs(self, job.study, key_of(common), folder, stop, on_line, poll)
            return studies.Loop(job.study, search, place, stop).run()


class _LeftError(Exception):
    """The study stops, and this trial goes on."""


@dataclass(frozen=True)
class _Jobs(studies.Place):
    sent: SentStudy
    study: Study
    id: str
    folder: Path
    stop: Stop
    on_line: OnLine
    poll: float
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set once somebody has cancelled a trial, which ends the study."""

    def run(self, trial: StudyTrial) -> TrialEnd | None:
        backend, values, job = self.sent.backend, list[float](), None

        def write(line: LogLine) -> None:
            value = contract.metric(line.fields, self.study.metric)
            values.extend([] if value is None else [value])
            self.on_line(replace(line, trial=str(trial.number)))

        try:
            job = self._job(trial)
            if job is None:
                return TrialEnd(None, "its job was deleted, and its result with it")
            ended = follow(backend, job, write, self._pause)
        except _LeftError:
            if job is not None and self.cancelled.is_set():
                backend.cancel(job)
            return None
        if ended.state == "cancelled":
            self.cancelled.set()
            self.stop.request()
            return TrialEnd(None, ended.error or "it was cancelled", ended.seconds)
        if ended.state != "succeeded":
            return TrialEnd(None, ended.error or ended.state, ended.seconds)
        error = f"no line of it tells {self.study.metric}"
        return TrialEnd(values[-1] if values else None, error, ended.seconds)

    def _job(self, trial: StudyTrial) -> JobStatus | None:
        """Return the job of a trial, created unless it was before; None for one that is gone. A
        service that does not answer is asked again."""
        backend, told = self.sent.backend, ""
        ready = _of_trial(self.sent.ready, self.id, trial)
        while True:
            try:
                job = backend.get(trial.job) if trial.job else backend.submit(ready)
            except GoneError:
                if trial.job:
                    return None
                raise
            except AlreadySubmitted as other:
                job = other.job
            except UnansweredError as error:
                if error.message != told:
                    self.note(f"trial {trial.number}: {error.message}; asking again")
                told = error.message
                self._pause()
                continue
            trial.keep(job.name)
            Memory.of(self.sent.root).add(self.sent.ready.job.id, self.id, backend.name, job)
            return job

    def _pause(self) -> None:
        until = time.monotonic() + self.poll
        while (left := until - time.monotonic()) > 0 and not self.stop.requests:
            time.sleep(min(left, 0.1))
        if self.stop.requests:
            raise _LeftError

    def note(self, text: str) -> None:
        self.on_line(LogLine(datetime.now(UTC), SERVICE, "INFO", text))

    def record(self, state: str, message: str, trials: tuple[TrialStatus, ...]) -> JobStatus:
        ready, code = self.sent.ready, None
        if state == "stopped" and self.cancelled.is_set():
            state, code = "cancelled", EXIT_CANCELLED
            message += "; a trial was cancelled; the same command goes on with the others"
        elif state == "stopped":
            state, code = "running", self.stop.code
            message += (
                f"; its trials go on in {self.sent.backend.title}, and the same command with them"
            )
        status = JobStatus(
            name=ready.job.id,
            display_name=ready.job.id,
            state=state,
            created=self.started,
            started=self.started,
            ended=None if state == "running" else datetime.now(UTC),
            error=message,
            image=ready.image.reference,
            output=ready.job.job_dir or "",
            pools=ready.job.pools,
            labels={STUDY_LABEL: self.id},
            trials=trials,
            failed_code=code,
        )
        files.write(self.folder / TABLE, _STATUS.dump_json(status, indent=1).decode() + "\n")
        return status


def _of_trial(ready: Ready, study: str, trial: StudyTrial) -> Ready:
    """Return the job of a trial: its arguments, its number, and a folder of its own."""
    job, number = ready.job, str(trial.number)
    changed: Mapping[str, object] = {
        "arguments": (*job.arguments, *trial.arguments),
        "environment": {**job.environment, studies.TRIAL_VARIABLE: number},
        "labels": {**job.labels, STUDY_LABEL: study, TRIAL_LABEL: number},
        "job_dir": job.job_dir
        if job.job_dir is None or "{job}" in job.job_dir
        else f"{job.job_dir.rstrip('/')}/{number}",
        "study": None,
    }
    return replace(ready, job=job.model_copy(update=changed))
