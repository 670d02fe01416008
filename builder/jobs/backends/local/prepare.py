"""A described job (jobs/*.yaml) as a local job: its image, its folders, its data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import contract
from builder.config import image_yaml
from builder.core import filemodel
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import Engine
from builder.jobs import description
from builder.jobs.backends.local.folder import FOLDER
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.description.job import Job
from builder.jobs.description.study import Study
from builder.jobs.images import target_of
from builder.pipeline import records

PROJECT = "CLOUD_ML_PROJECT_ID"
"""The variable in which Vertex AI tells a replica the project that pays."""

BUCKETS = Path("build") / "buckets"
"""The folders in it stand for buckets: /gcs in a container."""


@dataclass(frozen=True)
class LocalOptions:
    """The options of the command line. None or empty: as the job's description says."""

    records: Path | None = None
    job_dir: Path | None = None
    env_file: Path | None = None
    arguments: tuple[str, ...] = ()
    program: str | None = None


def load(root: Path, name: str) -> Job:
    """Return a job by its name or file. A target of images/ stands for a job of one machine.

    Raises InputError.
    """
    if name not in description.names(root) and name in image_yaml.targets(root):
        text = f"image: {name}\nmachine: n1-standard-8\n"
        return description.parse(text, root / description.JOBS / f"{name}{description.SUFFIX}")
    return description.load(root, name)


def described(
    root: Path,
    name: str,
    options: LocalOptions,
    settings: Settings,
    connect: Callable[[], Engine],
    on_event: OnEvent = ignore,
) -> tuple[Engine, LocalJob, Study | None]:
    """Return the engine, the local form of a described job, and its study where it has one.

    A program of `options` becomes the job's image. connect: connects to the engine, after the
    checks that need none. Raises InputError, OutsideError, CheckFailed.
    """
    job = load(root, name)
    if options.program is None:
        engine = connect()
    else:
        from builder.jobs import package

        program, target = package.find(options.program), target_of(root, job.image)
        engine = connect()
        made = package.build(root, settings, engine, target, program, on_event)
        known = name in description.names(root)
        own = {"image": made.record.image_id, "pass_job_dir": True}
        job = job.model_copy(update=own if known else {**own, "name": program.slug})
    return engine, prepare(root, engine, job, options), job.study


def prepare(root: Path, engine: Engine, job: Job, options: LocalOptions) -> LocalJob:
    """Return the local form of a job. Raises InputError, OutsideError for a missing image."""
    arguments = (*job.arguments, *options.arguments)
    if options.records is not None and not options.records.is_dir():
        what = f"--records {options.records}: there is no such folder"
        raise InputError(what, "name one that is there")
    base = (job.job_dir or "").replace("{job}", job.id)
    return LocalJob(
        name=job.id,
        image=image_of(root, engine, job.image),
        folder=(options.job_dir or root / FOLDER / job.id).absolute(),
        pools=job.pools,
        command=job.command,
        arguments=arguments,
        environment=_environment(job, options.env_file),
        base=base if base.startswith("gs://") else "",
        pass_job_dir=job.pass_job_dir,
        records=options.records or _records_of_project(root, arguments),
        buckets=root / BUCKETS,
        restarts=job.scheduling.restarts,
        timeout=job.scheduling.timeout,
        shm=_half_of_memory(),
    )


def _environment(job: Job, env_file: Path | None) -> dict[str, str]:
    """Return the variables of a job; those that name a secret have the value of the file's line."""
    known = _variables(env_file) if env_file else {}
    missing = [name for name in job.secrets if name not in known]
    if missing:
        where = description.where(job, "environment", missing[0])
        raise InputError(
            f"{where}: {', '.join(missing)} names a secret, whose value this machine does not know",
            f"write {missing[0]}=VALUE into a file outside of git, and give --env-file FILE",
        )
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
    if name in image_yaml.targets(root):
        record = records.read(root, name)
        built = ((record.image_id,) if record else ()) + (f"{LOCAL_REPOSITORY}:{name}",)
        missing = f"{name}: no image of this target is built here", f"builder image {name}"
    else:
        built = (name,)
        missing = f"the engine has no image {name}", f"docker pull {name}, or name a target"
    image = next((image for image in built if engine.image(image) is not None), None)
    if image is None:
        raise OutsideError(*missing)
    return image


def _half_of_memory() -> int:
    """Return the bytes that a machine's own /dev/shm has by default."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
