"""A described job (jobs/*.yaml) as a local job: its image, its folders, its data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import contract
from builder.config import image_yaml
from builder.core import filemodel
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent
from builder.core.settings import Settings
from builder.engine import Engine
from builder.engine.discovery import connect
from builder.jobs import description
from builder.jobs.backends.local import run as runs
from builder.jobs.backends.local import study as studies
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.protocol import JobStatus, OnLine
from builder.jobs.description.job import Job
from builder.jobs.description.study import Study
from builder.jobs.images import target_of
from builder.jobs.machines import Pool
from builder.jobs.submission import FOLDER
from builder.pipeline import records

PROJECT = "CLOUD_ML_PROJECT_ID"
"""The variable in which Vertex AI tells a replica the project that pays."""

BUCKETS = Path("build") / "buckets"
"""The folders in it stand for buckets: /gcs in a container."""


@dataclass(frozen=True)
class LocalRun:
    engine: Engine
    job: LocalJob
    study: Study | None

    def run(self, tell: Callable[[tuple[Pool, ...]], OnLine]) -> JobStatus:
        """Run it to the end, and return how it ended. tell: returns what gets the lines of pools.

        Raises InputError, OutsideError.
        """
        on_line = tell(self.job.pools)
        if self.study is None:
            return runs.run(self.engine, self.job, on_line=on_line)
        return studies.run_study(self.engine, self.job, self.study, on_line=on_line)


def start(
    root: Path,
    name: str,
    settings: Settings,
    program: str | None,
    on_event: OnEvent,
    **replaced: Any,
) -> LocalRun:
    """Return a job with its image on the engine. program: FOLDER:MODULE that becomes its image.
    replaced: what `prepare` takes. Raises InputError, OutsideError, CheckFailed."""
    job = load(root, name)
    if program is None:
        engine = connect(settings, on_event=on_event)
    else:
        from builder.pipeline import package

        python, target = package.find(program), target_of(root, job.image)
        engine = connect(settings, on_event=on_event)
        _, made = package.build(root, target, python, settings, engine, on_event)
        own = {"image": made.record.image_id, "pass_job_dir": True}
        of_file = job.source.is_file()  # else a target stands for a job
        job = job.model_copy(update=own if of_file else {**own, "name": python.slug})
    return LocalRun(engine, prepare(root, engine, job, **replaced), job.study)


def load(root: Path, name: str) -> Job:
    """Return a job by its name or file. A target of images/ stands for a job of one machine.

    Raises InputError.
    """
    if name not in description.names(root) and name in image_yaml.targets(root):
        text = f"image: {name}\nmachine: n1-standard-8\n"
        return description.parse(text, root / description.JOBS / f"{name}{description.SUFFIX}")
    return description.load(root, name)


def prepare(
    root: Path,
    engine: Engine,
    job: Job,
    *,
    arguments: Sequence[str] = (),
    records: Path | None = None,
    job_dir: Path | None = None,
    env_file: Path | None = None,
) -> LocalJob:
    """Return the local form of a job. arguments: after the job's own; the others replace what its
    description says. Raises InputError, OutsideError for a missing image."""
    arguments = (*job.arguments, *arguments)
    if records is not None and not records.is_dir():
        what = f"--records {records}: there is no such folder"
        raise InputError(what, "name one that is there")
    return LocalJob(
        name=job.id,
        image=image_of(root, engine, job.image),
        folder=(job_dir or root / FOLDER / job.id).absolute(),
        pools=job.pools,
        command=job.command,
        arguments=arguments,
        environment=_environment(job, env_file),
        base=job.output(job.id) or "",
        pass_job_dir=job.pass_job_dir,
        records=records or _records_of_project(root, arguments),
        buckets=root / BUCKETS,
        restarts=job.scheduling.restarts,
        timeout=job.scheduling.timeout,
        shm=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2,  # as a machine's own
    )


def _environment(job: Job, env_file: Path | None) -> dict[str, str]:
    """Return the variables of a job; those that name a secret have the value of the file's line."""
    known = _variables(env_file) if env_file else {}
    missing = [name for name in job.secrets if name not in known]
    if missing:
        unknown = InputError(
            f"{', '.join(missing)} names a secret, whose value this machine does not know",
            f"write {missing[0]}=VALUE into a file outside of git, and give --env-file FILE",
        )
        mistake = description.mistake(job, unknown, "environment", missing[0])
        raise filemodel.error(description.shown(job.source), [mistake])
    project = {PROJECT: job.project} if job.project else {}
    return {**job.variables, **{name: known[name] for name in job.secrets}, **project}


def _variables(path: Path) -> dict[str, str]:
    """Return the variables of a file of NAME=VALUE lines. Raises InputError."""
    lines = filemodel.read_text(path, f"--env-file {path}").splitlines()
    written = [line for line in lines if line.strip() and not line.startswith("#")]
    return {name.strip(): value for name, _, value in (line.partition("=") for line in written)}


def _records_of_project(root: Path, arguments: Sequence[str]) -> Path | None:
    """Return the folder of the project that `--records` names, such as `data/records`, or None."""
    named = contract.options(arguments).get(contract.RECORDS)
    if named and not named.startswith(("gs://", "/")) and (root / named).is_dir():
        return root / named
    return None


def image_of(root: Path, engine: Engine, name: str) -> str:
    """Return the image on the engine: the last build of a target, or any reference.

    Raises OutsideError where the engine does not hold it.
    """
    if name not in image_yaml.targets(root):
        if engine.image(name) is None:
            fix = f"docker pull {name}, or name a target"
            raise OutsideError(f"the engine has no image {name}", fix)
        return name
    # by its ID, because another project on this machine may have moved the tag
    record = records.read(root, name)
    if record is None or engine.image(record.image_id) is None:
        fix = f"builder image {name}"
        raise OutsideError(f"{name}: no image of this target is built here", fix)
    return record.image_id
