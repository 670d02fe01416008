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
from builder.jobs import description, machines
from builder.jobs.checks import (
    Problems,
    advice,
    check_image,
    check_job_dir,
    fields_of,
    image_field,
    images_of,
    place,
    refusal,
)
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Image, Ready


def ready(
    job: Job,
    image: Image,
    region: str | None,
    *,
    project: str | None = None,
    targets: Mapping[str, str] | None = None,
    cloud: bool = True,
    own: Mapping[str, Image] | None = None,
) -> Ready:
    """The job, checked. Raises InputError with every problem, each at its line.

    targets: the accelerator of each target of the project, to suggest one. cloud: the job goes to
    Google's own service, which pulls from Artifact Registry and Docker Hub. own: the images of the
    roles that have one of their own.
    """
    own = own or {}
    problems, notes = Problems(job), list[str]()
    attempt = problems.attempt
    placements: list[Placement] = []
    for pool in job.pools:
        attempt(fields_of(job, pool), lambda pool=pool: placements.append(place(pool)))  # type: ignore[misc]
    whole = len(placements) == len(job.pools)
    if region is None:
        attempt(("region",), _refuse_no_region)
    else:
        for one in dict.fromkeys(placements):
            attempt(("region",), lambda one=one: machines.check_region(one, region))  # type: ignore[misc]
        if region not in machines.offer().regions:
            notes.append(f"{region} is not in the table of {machines.offer().as_of}; not checked")
        if job.job_dir:
            attempt(("job_dir",), lambda: check_job_dir(job))
        attempt(("tensorboard",), lambda: _check_tensorboard(job, region))
    attempt(("replicas",), lambda: _check_tpu(job, placements))
    attempt(("network",), lambda: _check_network(job))
    attempt(("scheduling", "strategy"), lambda: _check_strategy(job, placements))
    attempt(("scheduling", "timeout"), lambda: _check_timeout(job))
    attempt(("disk", "type"), lambda: _check_disk(job, placements))
    for field, check in vertex_checks(job, region, project).items():
        attempt(("vertex", field), check)
    if whole:
        draft = Ready(job, image, region or "", tuple(placements), project, images=own)
        for fields, sent, on in images_of(draft):
            attempt(fields, lambda a=sent, b=on: notes.extend(check_image(a, b, targets or {})))  # type: ignore[misc]
    named = {("image",): image, **{image_field(role): own[role] for role in own}}
    for fields, sent in named.items():
        if cloud and sent.reference:
            attempt(fields, lambda sent=sent: _check_registry(sent))  # type: ignore[misc]
    problems.stop()
    notes += [*_warnings(job, placements), *advice(job)]
    return Ready(job, image, region or "", tuple(placements), project, tuple(notes), own)


def _warnings(job: Job, placements: list[Placement]) -> list[str]:
    found = [one.device.warning for one in dict.fromkeys(placements) if one.device is not None]
    if job.replicas.reduction_servers:
        found.append(
            "reduction_servers: the workers' image needs Google's NCCL plug-in, the package "
            "google-reduction-server; ours does not have it"
        )
    return [one for one in found if one]


def vertex_checks(
    job: Job, region: str | None, project: str | None
) -> dict[str, Callable[[], None]]:
    """The checks of the table `vertex`, by its fields. Source: aiplatform v1, CustomJobSpec."""
    own = job.vertex

    def nfs() -> None:
        if own.nfs and not job.network:
            raise InputError(
                "an NFS server is reached through a network, and the job names none",
                "add network: projects/NUMBER/global/networks/NAME",
            )

    def reservation() -> None:
        zone = re.search(r"/zones/(.+)-[a-z]/", own.reservation or "")
        if zone and region and zone[1] != region:
            raise InputError(
                f"the reservation is in {zone[1]}, the job in {region}", f"write region: {zone[1]}"
            )
        if own.reservation and own.persistent_resource:
            raise InputError("a persistent resource has its machines already", "remove reservation")
        if own.reservation not in (None, "none") and job.scheduling.strategy != "standard":
            raise InputError(
                f"{job.scheduling.strategy} takes no reserved machines",
                "write strategy: standard, or remove reservation",
            )

    def key() -> None:
        where = re.search(r"/locations/([^/]+)/", own.encryption_key or "")
        if where and region and where[1] != region:
            raise InputError(
                f"the key is in {where[1]}, and the service takes one of the job's region",
                f"name a key in {region}",
            )

    def experiment() -> None:
        if own.experiment and project is None:
            raise InputError(
                "an experiment belongs to a project, and none is known",
                "give --project, or add project: to the job",
            )

    def persistent() -> None:
        if own.persistent_resource and job.scheduling.strategy != "standard":
            raise InputError(
                f"a persistent resource has no {job.scheduling.strategy} machines",
                "write strategy: standard",
            )

    return {
        "nfs": nfs,
        "reservation": reservation,
        "encryption_key": key,
        "experiment": experiment,
        "persistent_resource": persistent,
    }


def machines_of(job: Job) -> tuple[Placement, ...]:
    """The machines of each pool, checked in the job's region where it names one.

    Raises InputError at the line that asks for what is not on offer.
    """
    found = []
    for pool in job.pools:
        fields = fields_of(job, pool)
        try:
            found.append(place(pool))
            if job.region:
                fields = ("region",)
                machines.check_region(found[-1], job.region)
        except InputError as error:
            raise refusal([(description.where(job, *fields), error)]) from None
    return tuple(found)


def _refuse_no_region() -> None:
    raise InputError(
        "no region is known",
        "add region: us-central1 to the job, or give --region, or set it in [job]",
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
    """What spot and flex-start cannot do.

    Sources: "Use Spot VMs" of Google Cloud's training documentation (no TPU pods, verified);
    builder/facts/machines.yaml, `flex_start`.
    """
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
