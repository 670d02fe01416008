"""The checks before a job is sent to Vertex AI, or rendered for it.

Each check is a function of values. `ready` runs all of them and reports all problems at
once, each at the line of the job's file that causes it, with the nearest thing that works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from builder import registry
from builder.core.errors import InputError
from builder.facts import accelerators
from builder.jobs import description, machines
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool
from builder.jobs.ready import Image, Ready


def ready(
    job: Job,
    image: Image,
    region: str | None,
    *,
    project: str | None = None,
    targets: Mapping[str, str] | None = None,
    cloud: bool = True,
) -> Ready:
    """The job, checked. Raises InputError with every problem, each at its line.

    targets: the accelerator of each target of the project, to suggest one. cloud: the job goes to
    Google's own service, which pulls from Artifact Registry and Docker Hub.
    """
    problems: list[tuple[str, InputError]] = []
    notes: list[str] = []

    def attempt(fields: tuple[str, ...], check: Callable[[], None]) -> None:
        try:
            check()
        except InputError as error:
            problems.append((description.where(job, *fields), error))

    placements: list[Placement] = []
    for pool in job.pools:
        attempt(_fields(job, pool), lambda pool=pool: placements.append(_place(pool)))  # type: ignore[misc]
    if region is None:
        attempt(("region",), _refuse_no_region)
    else:
        for one in dict.fromkeys(placements):
            attempt(("region",), lambda one=one: machines.check_region(one, region))  # type: ignore[misc]
        if region not in machines.offer().regions:
            notes.append(f"{region} is not in the table of {machines.offer().as_of}; not checked")
        if job.job_dir:
            attempt(("job_dir",), lambda: _check_job_dir(job))
        attempt(("tensorboard",), lambda: _check_tensorboard(job, region))
    attempt(("replicas",), lambda: _check_tpu(job, placements))
    attempt(("network",), lambda: _check_network(job))
    attempt(("scheduling", "strategy"), lambda: _check_strategy(job, placements))
    attempt(("scheduling", "timeout"), lambda: _check_timeout(job))
    attempt(("disk", "type"), lambda: _check_disk(job, placements))
    if placements:
        attempt(("image",), lambda: notes.extend(_check_image(image, placements, targets or {})))
    if cloud and image.reference:
        attempt(("image",), lambda: _check_registry(image))
    if problems:
        raise _error(problems)
    notes += [
        one.device.warning
        for one in dict.fromkeys(placements)
        if one.device is not None and one.device.warning
    ]
    notes += _advice(job)
    return Ready(job, image, region or "", tuple(placements), project, tuple(notes))


def machines_of(job: Job) -> tuple[Placement, ...]:
    """The machines of each pool, checked in the job's region where it names one.

    Raises InputError at the line that asks for what is not on offer.
    """
    found = []
    for pool in job.pools:
        fields = _fields(job, pool)
        try:
            found.append(_place(pool))
            if job.region:
                fields = ("region",)
                machines.check_region(found[-1], job.region)
        except InputError as error:
            raise _error([(description.where(job, *fields), error)]) from None
    return tuple(found)


def _refuse_no_region() -> None:
    raise InputError(
        "no region is known",
        "add region: us-central1 to the job, or give --region, or set it in [job]",
    )


def _error(problems: list[tuple[str, InputError]]) -> InputError:
    if len(problems) == 1:
        where, error = problems[0]
        return InputError(f"{where}: {error.message}", error.fix)
    problems = sorted(problems, key=lambda one: _line_number(one[0]))
    lines = [f"{where}: {error.message} -> {error.fix}" for where, error in problems]
    return InputError("\n".join(lines), f"correct these {len(lines)} lines, then try again")


def _line_number(where: str) -> int:
    found = re.search(r":(\d+): ", where)
    return int(found[1]) if found else 0


_ROLE_FIELDS = {"worker": "workers", "ps": "parameter_servers", "evaluator": "evaluator"}


def _fields(job: Job, pool: Pool) -> tuple[str, ...]:
    if job.preset != "CUSTOM":
        return ("preset",)
    if pool.role == "chief":
        return ("accelerators",) if pool.accelerator else ("machine",)
    return ("replicas", _ROLE_FIELDS[pool.role])


def _place(pool: Pool) -> Placement:
    return machines.place(pool.machine, pool.accelerator, pool.accelerators, pool.topology)


def _check_job_dir(job: Job) -> None:
    if job.job_dir and not job.job_dir.startswith("gs://"):
        raise InputError(
            f"{job.job_dir!r} is on this machine, and the job is not",
            "write gs://BUCKET/FOLDER; `builder job local` takes a folder",
        )


def _check_tpu(job: Job, placements: list[Placement]) -> None:
    tpu = next((one for one in placements if one.device and one.device.kind == "tpu"), None)
    if tpu is not None and job.distributed:
        raise InputError(
            f"{tpu.machine} is one replica in one pool, whatever its size",
            "remove replicas; a larger topology or number of cores is a pod",
        )


def _check_network(job: Job) -> None:
    if job.network and not re.fullmatch(
        r"projects/[0-9]+/global/networks/[a-z]([a-z0-9-]{0,61}[a-z0-9])?", job.network
    ):
        named = re.fullmatch(r"projects/([^/]+)/global/networks/([^/]+)", job.network)
        raise InputError(
            f"{job.network!r} does not name the project by its number"
            if named
            else f"{job.network!r} is not the name of a network",
            f"write projects/NUMBER/global/networks/{named[2] if named else 'NAME'}; `gcloud "
            f"projects describe {named[1] if named else 'PROJECT'}` says the number",
        )


def _check_tensorboard(job: Job, region: str) -> None:
    if not job.tensorboard:
        return
    match = re.fullmatch(r"projects/[^/]+/locations/([^/]+)/tensorboards/[0-9]+", job.tensorboard)
    if match is None:
        raise InputError(
            f"{job.tensorboard!r} is not the name of a TensorBoard",
            "write projects/PROJECT/locations/REGION/tensorboards/NUMBER",
        )
    if match[1] != region:
        raise InputError(
            f"the TensorBoard is in {match[1]}, the job in {region}",
            f"write region: {match[1]}, or a TensorBoard of {region}",
        )


def _check_disk(job: Job, placements: list[Placement]) -> None:
    only = machines.offer().hyperdisk_only
    for one in placements:
        if one.machine in only and job.disk.type not in (None, "hyperdisk-balanced"):
            raise InputError(
                f"{one.machine} takes hyperdisk-balanced only", "write type: hyperdisk-balanced"
            )


def _check_strategy(job: Job, placements: list[Placement]) -> None:
    """What spot and flex-start cannot do. Sources: builder/facts/machines.yaml, spot and dws."""
    strategy = job.scheduling.strategy
    if strategy == "spot" and (pod := next((one for one in placements if one.pod), None)):
        raise InputError(
            f"{pod} is a TPU pod, and spot has none", "write strategy: standard, or a smaller TPU"
        )
    if strategy != "flex-start":
        return
    known = machines.offer().flex_start
    for one in placements:
        if one.device is None or one.device.name not in known:
            raise InputError(
                f"flex-start takes machines with {', '.join(known)}, not {one}",
                "write strategy: standard, or another accelerator",
            )
    if len(set(placements)) > 1:
        raise InputError(
            "flex-start needs the same machine in every pool, not "
            + " and ".join(str(one) for one in dict.fromkeys(placements)),
            "write strategy: standard, or the chief's machine for each role",
        )


def _check_timeout(job: Job) -> None:
    days = machines.offer().flex_start_days
    if job.scheduling.strategy == "flex-start" and job.scheduling.timeout > days * 86_400:
        raise InputError(
            f"a flex-start job runs for {days} days at most", f"write timeout: {days}d"
        )


def _check_image(
    image: Image, placements: list[Placement], targets: Mapping[str, str]
) -> list[str]:
    """Check that the image is made for the replicas' accelerators. Returns notes."""
    wanted = {_base_name(one): one for one in placements if one.device is not None}
    if image.accelerator is None:
        return [f"{image.reference} is not an image of ours: its accelerator is not known"]
    made_for = accelerators.find(image.accelerator).name
    for name, placement in wanted.items():
        known = accelerators.find(name)
        if known.name == made_for:
            continue
        if known.refused and image.target:
            raise InputError(
                f"{known.name} {known.refused}", f"write accelerators: 1 x {known.instead}"
            )
        fitting = [one for one, accelerator in targets.items() if accelerator == known.name]
        pruned = ", and its device code for other GPUs is taken out" if image.pruned else ""
        called = image.target or image.reference
        raise InputError(
            f"{called} is an image for {made_for}{pruned}; the job runs on {placement}",
            f"write image: {fitting[0]}"
            if fitting
            else f"make an image for it: images/{known.name.lower()}/image.yaml with accelerator: "
            f"{known.name}",
        )
    if not wanted and made_for != "CPU":
        kind = accelerators.find(made_for).kind
        if kind == "tpu":
            raise InputError(
                f"{image.target or image.reference} is an image for {made_for}, and the job has "
                "no accelerator",
                "write image: cpu" if "cpu" in targets else "add accelerators",
            )
        return [f"an image for {made_for} on machines without one: it computes on the CPU"]
    return []


def _base_name(placement: Placement) -> str:
    assert placement.device is not None
    return placement.device.name


def _check_registry(image: Image) -> None:
    where = registry.parse(image.reference)
    host = where.host
    if not (host == registry.DOCKER_HUB or host.endswith((".pkg.dev", "gcr.io"))):
        path = where.repository.rsplit("/", 1)[-1]
        raise InputError(
            f"Vertex AI cannot pull from {host}: it takes images from Artifact Registry and "
            "Docker Hub",
            f"push it to REGION-docker.pkg.dev/PROJECT/REPOSITORY/{path} and name that",
        )


def _advice(job: Job) -> list[str]:
    notes = []
    if job.job_dir is None:
        notes.append("no job_dir: AIP_MODEL_DIR and its like are not set, and outputs are lost")
    if job.scheduling.strategy == "spot" and job.scheduling.restarts == "never":
        notes.append("spot without restarts: the job ends when a machine is taken away")
    synchronous = sum(pool.count for pool in job.pools if pool.role in ("chief", "worker")) > 1
    if synchronous and job.scheduling.restarts == "worker":
        notes.append(
            "several workers: if they train in step, a single one cannot come back alone; then "
            "write scheduling: {restarts: job}"
        )
    return notes


def committed(root: Path) -> tuple[str, ...]:
    """What is wrong with the files in jobs/: each job, its machines, and the schema beside them.

    A sentence each; none where everything fits together.
    """
    found = []
    for name in description.names(root):
        try:
            machines_of(description.load(root, name))
        except InputError as error:
            found.append(error.message)
    schema = root / description.JOBS / description.SCHEMA
    if schema.parent.is_dir() and (
        not schema.is_file() or schema.read_text() != description.schema_text()
    ):
        found.append("jobs/schema.json: not today's schema; write it with builder job schema")
    return tuple(found)
