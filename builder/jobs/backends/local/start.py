"""`builder job local`: a job from its description to its end, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.core.events import OnEvent
from builder.core.settings import Settings
from builder.engine import Engine
from builder.engine.discovery import connect
from builder.jobs.backends.local import prepare as prepares
from builder.jobs.backends.local import run as runs
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.local.study import run_study
from builder.jobs.backends.protocol import JobStatus, OnLine
from builder.jobs.description.study import Study
from builder.jobs.machines import Pool


@dataclass(frozen=True)
class Prepared:
    """A job that this machine can run."""

    engine: Engine
    job: LocalJob
    study: Study | None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return what it runs."""
        return self.job.pools

    def run(self, on_line: OnLine) -> JobStatus:
        """Run it, or its study, to the end, and return how it ended. on_line: gets each line.

        Raises InputError, OutsideError.
        """
        if self.study is None:
            return runs.run(self.engine, self.job, on_line=on_line)
        return run_study(self.engine, self.job, self.study, on_line=on_line)


def prepare(
    root: Path,
    name: str,
    settings: Settings,
    *,
    program: str | None = None,
    arguments: Sequence[str] = (),
    records: Path | None = None,
    job_dir: Path | None = None,
    env_file: Path | None = None,
    on_event: OnEvent,
) -> Prepared:
    """Return a job with its image on the engine. program: FOLDER:MODULE that becomes its image.

    Raises InputError, OutsideError, CheckFailed.
    """
    job = prepares.load(root, name)
    reached = partial(connect, settings, on_event=on_event)
    if program is None:
        engine = reached()
    else:
        engine, job = prepares.packaged(root, job, program, settings, reached, on_event)
    own = {"records": records, "job_dir": job_dir, "env_file": env_file}
    local = prepares.prepare(root, engine, job, arguments=arguments, **own)
    return Prepared(engine, local, job.study)
