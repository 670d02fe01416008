"""The trials of a study as containers on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.engine.containers import ContainerEngine
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob, Trial
from builder.jobs.description import Study
from builder.jobs.running import OnJobEvent, Outcome, Stop
from builder.jobs.studies import loop
from builder.jobs.studies.results import StudyOutcome

METRICS_FILE = "output.metrics"
"""Where cloudml-hypertune writes, in the folder that a trial's replicas share."""


@dataclass(frozen=True)
class LocalTrials:
    """Each trial is the job with other arguments, in a folder of its own below the job's."""

    engine: ContainerEngine
    job: LocalJob

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def folder(self) -> Path:
        return self.job.folder

    @property
    def image(self) -> str:
        return self.job.image

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.job.arguments

    @property
    def several(self) -> bool:
        return sum(pool.count for pool in self.job.pools) > 1

    def run(
        self,
        number: int,
        arguments: tuple[str, ...],
        lane: tuple[int, int],
        stop: Stop,
        on_event: OnJobEvent,
    ) -> Outcome:
        """Run one trial to its end, in the thread of the caller."""
        metrics = self._metrics(number)
        metrics.mkdir(parents=True, exist_ok=True)
        trial = Trial(number, arguments, metrics, *lane)
        mine = replace(self.job, folder=self.folder / str(number), trial=trial)
        return local.run(self.engine, mine, stop=stop, on_event=on_event)

    def reported(self, number: int) -> str:
        """What the trial has reported so far."""
        try:
            path = self._metrics(number) / METRICS_FILE
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _metrics(self, number: int) -> Path:
        return self.folder / str(number) / folders.LOCAL / "metrics"


def run_study(engine: ContainerEngine, job: LocalJob, study: Study, **options: Any) -> StudyOutcome:
    """Run a study on this machine: `loop.run` with its options, in the job's folder.

    Raises InputError, OutsideError.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    folders.open_folder(job.folder)
    try:
        return loop.run(LocalTrials(engine, job), study, **options)
    finally:
        folders.give_back(job.folder)
