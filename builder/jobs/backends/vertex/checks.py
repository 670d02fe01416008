"""The checks before a job is sent to Vertex AI, or rendered for it.

Each check is a function of values. `ready` makes all of them and reports all problems at once, each
at the line of the job's file that causes it, with the nearest thing that works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from builder import registry
from builder.core.errors import InputError, OutsideError
from builder.jobs import checks, description, machines
from builder.jobs.backends.vertex.service import Service
from builder.jobs.checks import Field, Problems
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Image, Ready


def ready(job: Job, image: Image, where: Service, targets: Mapping[str, str]) -> Ready:
    """Return the job, checked. targets: the accelerator of each target of the project.

    Raises InputError with every problem, each at its line.
    """
    problems, notes, region = Problems(job), list[str](), where.region
    placements = checks.place_pools(job, problems)
    attempts: dict[Field, Callable[[], None]] = {
        ("replicas",): lambda: checks.check_tpu(job, placements),
        ("environment",): lambda: _check_environment(job),
        ("network",): lambda: _check_network(job),
        ("scheduling", "strategy"): lambda: _check_strategy(job, placements),
        ("scheduling", "timeout"): lambda: _check_timeout(job),
        ("disk", "type"): lambda: _check_disk(job, placements),
        ("vertex", "nfs"): lambda: _check_nfs(job),
        ("vertex", "experiment"): lambda: _check_experiment(job, where.project),
        ("vertex", "persistent_resource"): lambda: _check_persistent_resource(job),
    }
    if region is None:
        attempts["region",] = _refuse_no_region
    else:
        attempts |= {
            ("region",): lambda: checks.check_region(placements, region),
            ("job_dir",): lambda: checks.check_job_dir(job),
            ("tensorboard",): lambda: _check_tensorboard(job, region),
            ("vertex", "reservation"): lambda: _check_reservation(job, region),
            ("vertex", "encryption_key"): lambda: _check_key(job, region),
        }
        if region not in machines.offer().regions:
            notes.append(f"{region} is not in the table of {machines.offer().as_of}; not checked")
    if len(placements) == len(job.pools):
        attempts["image",] = lambda: notes.extend(checks.check_image(image, placements, targets))
    for field, attempt in attempts.items():
        problems.attempt(field, attempt)
    if where.endpoint is None and image.in_registry:  # Google's own service pulls it
        problems.attempt(("image",), lambda: _check_registry(image))
    problems.stop()
    devices = dict.fromkeys(placement.device for placement in placements if placement.device)
    notes += [device.warning for device in devices if device.warning]
    notes += checks.advice(job)
    if job.service_account is None and checks.names_buckets(job):
        notes.append(
            "gs:// without service_account: the replicas read and write as the project's Vertex AI "
            "Custom Code Service Agent"
        )
    notes += [
        f"kubernetes.{name}: a cluster's own, not rendered" for name in job.kubernetes.written
    ]
    return Ready(job, image, region or "", placements, where.project, tuple(notes))


def check_bucket(ready: Ready, storage: Any) -> tuple[str, ...]:
    """Check that the job directory's bucket exists, in the job's region alone. Returns notes.

    storage: a google.cloud.storage.Client. Raises InputError for a bucket in another or in several
    regions, OutsideError for a missing one.
    """
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    name = str(ready.job.job_dir).removeprefix("gs://").split("/")[0]
    where = f"{description.where(ready.job, 'job_dir')}: "
    create = "gcloud storage buckets create gs://{} --location=" + ready.region
    try:
        bucket = storage.get_bucket(name)
    except exceptions.NotFound:
        raise OutsideError(f"{where}there is no bucket gs://{name}", create.format(name)) from None
    except (exceptions.Forbidden, exceptions.Unauthorized, GoogleAuthError):
        return (f"gs://{name}: its location cannot be read with these credentials; not checked",)
    except exceptions.GoogleAPICallError as error:
        return (f"gs://{name}: its location cannot be read ({error.message}); not checked",)
    location, kind = str(bucket.location or "").lower(), str(bucket.location_type or "region")
    if kind != "region":
        raise InputError(
            f"{where}gs://{name} is a {kind} bucket ({location}), and training needs one of a "
            "single region",
            create.format(f"{name}-{ready.region}"),
        )
    if location != ready.region:
        raise InputError(
            f"{where}gs://{name} is in {location}, the job in {ready.region}",
            f"write region: {location}, or take a bucket in {ready.region}",
        )
    return ()


def _refuse_no_region() -> None:
    raise InputError(
        "no region is known",
        "add region: us-central1 to the job, or give --region, or set it in [job]",
    )


def _check_registry(image: Image) -> None:
    where = registry.parse(image.reference)
    if not (where.host == registry.DOCKER_HUB or where.host.endswith((".pkg.dev", "gcr.io"))):
        path = where.repository.rsplit("/", 1)[-1]
        raise InputError(
            f"Vertex AI cannot pull from {where.host}: it takes images from Artifact Registry and "
            "Docker Hub",
            f"push it to REGION-docker.pkg.dev/PROJECT/REPOSITORY/{path} and name that",
        )


def _check_environment(job: Job) -> None:
    """Raise InputError for a secret: a CustomJob holds the values of variables as they are.

    Source: aiplatform v1, ContainerSpec.env, an EnvVar of name and value.
    """
    fix = "let the program read it from Secret Manager, as the job's service_account"
    for name in job.secrets:
        raise InputError(f"{name} names a secret, and a job of Vertex AI can name none", fix)
    checks.check_no_plain_secrets(job, fix)


def _check_network(job: Job) -> None:
    network = job.network or ""
    if not job.network or re.fullmatch(
        r"projects/[0-9]+/global/networks/[a-z]([a-z0-9-]{0,61}[a-z0-9])?", network
    ):
        return
    named = re.fullmatch(r"projects/([^/]+)/global/networks/([^/]+)", network)
    project, name = (named[1], named[2]) if named else ("PROJECT", "NAME")
    raise InputError(
        f"{network!r} does not name the project by its number"
        if named
        else f"{network!r} is not the name of a network",
        f"write projects/NUMBER/global/networks/{name}; `gcloud projects describe {project}` says "
        "the number",
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


def _check_disk(job: Job, placements: tuple[Placement, ...]) -> None:
    only = machines.offer().hyperdisk_only
    for placement in placements:
        if placement.machine in only and job.disk.type not in (None, "hyperdisk-balanced"):
            raise InputError(
                f"{placement.machine} takes hyperdisk-balanced only",
                "write type: hyperdisk-balanced",
            )


def _check_strategy(job: Job, placements: tuple[Placement, ...]) -> None:
    """Raise InputError for what spot and flex-start cannot do.

    Sources: "Use Spot VMs" of Google Cloud's training documentation (no TPU pods, verified);
    builder/facts/machines.yaml, `flex_start`.
    """
    strategy, known = job.scheduling.strategy, machines.offer().flex_start
    for placement in placements:
        if strategy == "spot" and placement.pod:
            raise InputError(
                f"{placement} is a TPU pod, and spot has none",
                "write strategy: standard, or a smaller TPU",
            )
        if strategy == "flex-start" and not (placement.device and placement.device.name in known):
            raise InputError(
                f"flex-start takes machines with {', '.join(known)}, not {placement}",
                "write strategy: standard, or another accelerator",
            )
    if strategy == "flex-start" and len(set(placements)) > 1:
        raise InputError(
            "flex-start needs the same machine in every pool, not "
            + " and ".join(str(placement) for placement in dict.fromkeys(placements)),
            "write strategy: standard, or the chief's machine for each role",
        )


def _check_timeout(job: Job) -> None:
    days = machines.offer().flex_start_days
    if job.scheduling.strategy == "flex-start" and job.scheduling.timeout > days * 86_400:
        raise InputError(
            f"a flex-start job runs for {days} days at most", f"write timeout: {days}d"
        )


# --- the table `vertex`. Source: aiplatform v1, CustomJobSpec -------------------------------------


def _check_nfs(job: Job) -> None:
    if job.vertex.nfs and not job.network:
        raise InputError(
            "an NFS server is reached through a network, and the job names none",
            "add network: projects/NUMBER/global/networks/NAME",
        )


def _check_reservation(job: Job, region: str) -> None:
    reservation = job.vertex.reservation
    zone = re.search(r"/zones/(.+)-[a-z]/", reservation or "")
    if zone and zone[1] != region:
        raise InputError(
            f"the reservation is in {zone[1]}, the job in {region}", f"write region: {zone[1]}"
        )
    if reservation and job.vertex.persistent_resource:
        raise InputError("a persistent resource has its machines already", "remove reservation")
    if reservation not in (None, "none") and job.scheduling.strategy != "standard":
        raise InputError(
            f"{job.scheduling.strategy} takes no reserved machines",
            "write strategy: standard, or remove reservation",
        )


def _check_key(job: Job, region: str) -> None:
    location = re.search(r"/locations/([^/]+)/", job.vertex.encryption_key or "")
    if location and location[1] != region:
        raise InputError(
            f"the key is in {location[1]}, and the service takes one of the job's region",
            f"name a key in {region}",
        )


def _check_experiment(job: Job, project: str | None) -> None:
    if job.vertex.experiment and project is None:
        raise InputError(
            "an experiment belongs to a project, and none is known",
            "give --project, or add project: to the job",
        )


def _check_persistent_resource(job: Job) -> None:
    if job.vertex.persistent_resource and job.scheduling.strategy != "standard":
        raise InputError(
            f"a persistent resource has no {job.scheduling.strategy} machines",
            "write strategy: standard",
        )
