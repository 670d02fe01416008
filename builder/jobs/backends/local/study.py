"""A study on this machine, in which each trial is a local job.

A trial does what it does on Vertex AI: it has a folder of its own, and its result is the last line
for the metric in the file that cloudml-hypertune writes. One that was interrupted runs again in its
folder.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from builder.core.events import ignore
from builder.engine.containers import ContainerEngine
from builder.jobs import studies
from builder.jobs.backends.local import backend
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.backend import LOCAL
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.backends.protocol import JobStatus, OnLine, TrialStatus
from builder.jobs.description.study import Study
from builder.jobs.stopping import Stop, only_run, signals
from builder.jobs.studies import StudyTrial, TrialEnd

METRICS_FILE = "output.metrics"
"""The name of the file of cloudml-hypertune, in the folder that a trial's replicas share."""


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
    with only_run(job.folder / LOCAL, local.ANOTHER), signals(stop):
        common = studies.described(study, arguments=list(job.arguments))
        search = studies.opened(job.folder, job.name, common, study)
        here = _Here(engine, job, study, stop, on_line)
        return studies.Loop(study, search, here, stop).run()


@dataclass(frozen=True)
class _Here(studies.Place):
    engine: ContainerEngine
    job: LocalJob
    study: Study
    stop: Stop
    on_line: OnLine
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def run(self, trial: StudyTrial) -> TrialEnd | None:
        folder = self.job.folder / str(trial.number)
        metrics = folder / LOCAL / "metrics"
        metrics.mkdir(parents=True, exist_ok=True)
        own = Trial(trial.number, trial.arguments, metrics, trial.place, self.study.parallel)
        ended = local.run(
            self.engine,
            replace(self.job, folder=folder, trial=own),
            stop=self.stop,
            on_line=lambda line: self.on_line(replace(line, trial=str(trial.number))),
        )
        if ended.state == "cancelled" and self.stop.requests:
            return None
        if ended.state != "succeeded":
            return TrialEnd(None, ended.error, ended.seconds)
        value = last_value(metrics / METRICS_FILE, self.study.metric)
        return TrialEnd(value, f"it reported no {self.study.metric}", ended.seconds)

    def note(self, text: str) -> None:
        self.on_line(backend.note(self.job.folder, text))

    def record(self, state: str, message: str, trials: tuple[TrialStatus, ...]) -> JobStatus:
        code = None
        if state == "stopped":
            state, code = "cancelled", self.stop.code
            message = "stopped on request; the same command continues it"
        now = (self.job, state, self.started, message)
        return backend.write(*now, trials=trials, failed_code=code)


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
