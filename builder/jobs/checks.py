"""The checks of a job that every remote backend makes: machines, the image, the job's folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.core import confidential, filemodel
from builder.core.errors import InputError
from builder.core.yamlfile import Mistake
from builder.facts import accelerators, frameworks
from builder.jobs import description, machines
from builder.jobs.description.job import ROLE_FIELDS, Job
from builder.jobs.machines import Placement
from builder.jobs.ready import JobImage

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_KEY|PRIVATE_KEY|SECRET|SECRET_KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"|/\S*|gs://\S+|true|false|[0-9]{1,3}", re.IGNORECASE)

Field = tuple[str, ...]
"""The path of a field in a job's file."""


class Problems:
    """The refusals of several checks, each at the line of the job's file that causes it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._mistakes: list[Mistake] = []

    @contextlib.contextmanager
    def at(self, field: Field) -> Iterator[None]:
        """Note a refusal of the block at a field of the job's file."""
        try:
            yield
        except InputError as error:
            self._mistakes.append(description.mistake(self._job, error, *field))

    def stop(self) -> None:
        """Raise InputError with every refusal; do nothing where there is none."""
        if self._mistakes:
            raise filemodel.error(description.shown(self._job.source), self._mistakes)


def common(
    job: Job, image: JobImage, targets: Mapping[str, str], folders: tuple[str, ...] = ("gs://",)
) -> tuple[Problems, tuple[Placement, ...], list[str]]:
    """Make the checks of every remote backend: machines, the image, the job's folder.

    targets: the accelerator of each target of the project, so that a refusal names one. folders:
    how a job_dir may begin there. Returns the problems so far, what each pool runs on, and notes; a
    pool that has a problem has no placement.
    """
    problems, notes = Problems(job), list[str]()
    placements = place_pools(job, problems)
    with problems.at(("image",)):
        if len(placements) == len(job.pools):
            notes += check_image(image, placements, targets)
    with problems.at(("job_dir",)):
        if job.job_dir and not job.job_dir.startswith(folders):
            what = f"{job.job_dir}: the machines there do not mount it"
            raise InputError(what, "write gs://BUCKET/FOLDER")
    if job.job_dir is None:
        notes.append("no job_dir: AIP_MODEL_DIR and its like are not set, and outputs are lost")
    if job.scheduling.strategy == "spot" and job.scheduling.restarts == "never":
        notes.append("spot without restarts: the job ends when a machine is taken away")
    return problems, placements, notes


def place_pools(job: Job, problems: Problems) -> tuple[Placement, ...]:
    """Return what each pool runs on; a pool that asks for what is not on offer is a problem."""
    placements: list[Placement] = []
    for pool in job.pools:
        field: Field = ("accelerators",) if pool.accelerator else ("machine",)
        if pool.role != "chief":
            field = ("replicas", ROLE_FIELDS[pool.role])  # type: ignore[index]
        with problems.at(field):
            asked = (pool.machine, pool.accelerator, pool.accelerators, pool.topology)
            placements.append(machines.place(*asked))
    return tuple(placements)


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or its value."""
    by_name = _SECRET_NAME.search(name) and not _HARMLESS.fullmatch(value)
    return bool(by_name or confidential.secret_in(f"{name}={value}".encode(), configuration=True))


def check_no_plain_secrets(job: Job, fix: str) -> None:
    """Raise InputError for a variable that looks like a secret: anybody who may look at the job
    would read it. fix: what to do instead; {name} is the variable's."""
    for name, value in job.variables.items():
        if looks_secret(name, value):
            raise InputError(
                f"{name} looks like a secret, and its value would stand in the job",
                fix.format(name=name),
            )


def check_image(
    image: JobImage, placements: tuple[Placement, ...], targets: Mapping[str, str]
) -> list[str]:
    """Check that the image is made for the replicas' accelerators. Returns notes."""
    wanted = {item.device.name: item for item in placements if item.device is not None}
    called = image.target or image.reference
    if image.accelerator is None:
        return [f"{called} is not an image of ours: its accelerator is not known"]
    made_for = accelerators.find(image.accelerator)
    served = [name for name in wanted if accelerators.find(name).name in image.serves]
    for name, placement in wanted.items():
        carried = accelerators.find(name)
        if carried.name != made_for.name and name not in served:
            if len(wanted) > 1 and not carried.refused:
                known = ", ".join([made_for.name, *image.serves])
                raise InputError(
                    f"{called} has no kernels for {carried.name}; a role of the job runs on "
                    f"{placement}, and all roles have one image",
                    f"give each role an accelerator that the image serves: {known}",
                )
            _refuse_image(image, made_for.name, carried, placement, targets)
    for placement in placements:
        if placement.hosts > 1 and image.one_host:
            raise InputError(
                f"{placement} is a slice of several hosts, and the framework of {called} trains on "
                "one of them alone",
                f"write {machines.nearest(placement.machine, placement.device, 0).written}, or an "
                "image with another framework",
            )
    if served:
        others = ", ".join(served)
        text = (
            f"{called} is proven for {made_for.name}; its libraries have kernels for {others}, too"
        )
        return [text]
    if wanted or made_for.name == "CPU":
        return []
    if made_for.kind == "tpu":
        raise InputError(
            f"{called} is an image for {made_for.name}, and the job has no accelerator",
            "write image: cpu" if "cpu" in targets else "add accelerators",
        )
    return [f"an image for {made_for.name} on machines without one: it computes on the CPU"]


def _refuse_image(
    image: JobImage,
    made_for: str,
    carried: accelerators.Accelerator,
    placement: Placement,
    targets: Mapping[str, str],
) -> None:
    if carried.refused and image.target:
        titles = " or ".join(frameworks.of(name).title for name in carried.only)
        other = f", or an image with {titles}" if titles else ""
        fix = f"write an accelerator such as {carried.instead}{other}"
        raise InputError(f"{carried.name} {carried.refused}", fix)
    fitting = [name for name, accelerator in targets.items() if accelerator == carried.name]
    called = image.target or image.reference
    made = f"images/{carried.name.lower()}/image.yaml with accelerator: {carried.name}"
    raise InputError(
        f"{called} is an image for {made_for}; the job runs on {placement}",
        f"write image: {fitting[0]}" if fitting else f"make an image for it: {made}",
    )


def committed(root: Path) -> tuple[str, ...]:
    """Return what is wrong with the files in jobs/: each job, its machines, and their schema.

    A sentence each; none where everything fits together.
    """
    sentences = []
    for name in description.names(root):
        try:
            job = description.load(root, name)
            problems = Problems(job)
            placements = place_pools(job, problems)
            with problems.at(("region",)):
                for placement in placements if job.region else ():
                    machines.check_region(placement, str(job.region))
            problems.stop()
        except InputError as error:
            sentences.append(error.message)
    schema = root / description.JOBS / description.SCHEMA
    if schema.is_file() and schema.read_text() != description.schema_text():
        sentences.append("jobs/schema.json: not today's schema; write it with builder job schema")
    return tuple(sentences)
