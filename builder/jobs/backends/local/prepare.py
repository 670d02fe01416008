"""A described job (jobs/*.yaml) as a local job: its image, its folders, its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import contract
from builder.config import image_yaml
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import Engine
from builder.jobs import description
from builder.jobs.backends.local import usage
from builder.jobs.backends.local.folder import FOLDER
from builder.jobs.backends.local.kills import Kill
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.checks import check_no_secrets
from builder.jobs.description import Job, Study
from builder.jobs.images import target_of
from builder.pipeline import records

PROJECT = "CLOUD_ML_PROJECT_ID"
"""The variable in which Vertex AI tells a replica the project that pays."""

BUCKETS = Path("build") / "buckets"
"""The default of --buckets: the folders in it stand for buckets."""


@dataclass(frozen=True)
class LocalOptions:
    """The options of the command line. None or empty: as the job's description says."""

    image: str | None = None
    records: Path | None = None
    job_dir: Path | None = None
    buckets: Path | None = None
    arguments: tuple[str, ...] = ()
    grace: float = 30.0
    shm: int | None = None
    pass_job_dir: bool = False
    name: str | None = None
    package: Path | None = None
    module: str | None = None
    kills: tuple[Kill, ...] = ()


def load(root: Path, name: str) -> Job:
    """A job by its name or file. A target of images/ stands for a job of one machine.

    Raises InputError.
    """
    known = description.names(root)
    if name not in known and name in image_yaml.targets(root):
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
    """The engine, the local form of a described job, and its study where it has one.

    A package of `options` becomes the job's image. connect: connects to the engine, after the
    checks that need none. Raises InputError, OutsideError, CheckFailed.
    """
    job = load(root, name)
    if job.study is not None and options.kills:
        raise InputError(
            f"{name} is a study: --kill and --preempt strike a replica of a single run",
            "leave them out, or take study: out of a copy of the job",
        )
    if options.package is None:
        engine = connect()
        return engine, prepare(root, engine, job, options), job.study
    from builder.jobs import package

    program = package.program(options.package, options.module)
    engine = connect()
    target = target_of(root, job.image)
    made = package.build(root, settings, engine, target, program, on_event)
    options = replace(
        options,
        image=made.record.image_id,
        pass_job_dir=True,
        name=None if name in description.names(root) else program.slug,
    )
    return engine, prepare(root, engine, job, options), job.study


def prepare(root: Path, engine: Engine, job: Job, options: LocalOptions) -> LocalJob:
    """The local form of a job. Raises InputError, OutsideError for an image that is not here."""
    name = options.name or job.id
    folder = options.job_dir or root / FOLDER / name
    records = options.records or _records_of_project(root, (*job.arguments, *options.arguments))
    if records is not None and not records.is_dir():
        raise InputError(f"--records {records}: there is no such folder", "name a folder with data")
    buckets = options.buckets
    if buckets is not None and not buckets.is_dir():
        raise InputError(f"--buckets {buckets}: there is no such folder", f"mkdir -p {buckets}")
    if buckets is None and (root / BUCKETS).is_dir():
        buckets = root / BUCKETS
    base = (job.job_dir or "").replace("{job}", job.id)
    return LocalJob(
        name=name,
        image=options.image or image_of(root, engine, job.image),
        folder=folder.absolute(),
        pools=job.pools,
        command=job.command,
        arguments=(*job.arguments, *options.arguments),
        environment=_environment(job),
        base=base if base.startswith("gs://") else "",
        pass_job_dir=job.pass_job_dir or options.pass_job_dir,
        records=records,
        buckets=buckets,
        restarts=job.scheduling.restarts,
        timeout=job.scheduling.timeout,
        grace=options.grace,
        shm=options.shm or usage.default_shm(),
    )


def _environment(job: Job) -> dict[str, str]:
    check_no_secrets(job, "this machine")
    return job.variables | ({PROJECT: job.project} if job.project else {})


def _records_of_project(root: Path, arguments: Sequence[str]) -> Path | None:
    """The folder of the project that `--records` names, such as `data/records`; None for others."""
    found = contract.options(arguments).get(contract.RECORDS)
    inside = found and not found.startswith(("gs://", "/")) and (root / found).is_dir()
    return root / found if found and inside else None


def image_of(root: Path, engine: Engine, name: str) -> str:
    """The image on the engine: the last build of a target, or any reference.

    Raises OutsideError where the engine does not hold it.
    """
    if name in image_yaml.targets(root):
        record = records.read(root, name)
        if record is not None and engine.image(record.image_id) is not None:
            return record.image_id
        tag = f"{LOCAL_REPOSITORY}:{name}"  # it was built, and its record removed
        if engine.image(tag) is not None:
            return tag
        raise OutsideError(
            f"{name}: no image of this target is built here", f"builder image {name}"
        )
    if engine.image(name) is None:
        raise OutsideError(
            f"the engine holds no image {name}", f"docker pull {name}, or name a target"
        )
    return name


def parse_size(text: str) -> int:
    """Bytes of `64m`, `1g`, `512MB`. Raises InputError."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.strip().lower())
    if match is None:
        raise InputError(f"--shm-size {text}: is not a size", "write 64m or 2g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]
