"""The checks before a job is sent to Vertex AI, or rendered for it.

Each check is a function of values. `ready` makes all of them and reports all problems at once, each
at the line of the job's file that causes it, with the nearest thing that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder import registry
from builder.core.errors import InputError, OutsideError
from builder.jobs import checks, description, machines
from builder.jobs.backends.vertex.service import Service
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Image, Ready


def ready(job: Job, image: Image, where: Service, targets: Mapping[str, str]) -> Ready:
    """Return the job, checked. targets: the accelerator of each target of the project.

    Raises InputError with every problem, each at its line.
    """
    problems, placements, notes = checks.common(job, image, targets)
    region, strategy = where.region, ("scheduling", "strategy")
    problems.attempt(("environment",), lambda: _check_environment(job, image, where.project))
    problems.attempt(strategy, lambda: _check_strategy(job, placements))
    problems.attempt(("region",), lambda: _check_region(placements, region))
    if region is not None and region not in machines.offer().regions:
        notes.append(f"{region} is not in the table of {machines.offer().as_of}; not checked")
    if where.endpoint is None and image.in_registry:  # Google's own service pulls it
        problems.attempt(("image",), lambda: _check_registry(image))
    problems.stop()
    devices = dict.fromkeys(placement.device for placement in placements if placement.device)
    notes += [device.warning for device in devices if device.warning]
    if job.service_account is None and checks.names_buckets(job):
        notes.append(
            "gs:// without service_account: the replicas read and write as the project's Vertex AI "
            "Custom Code Service Agent"
        )
    if job.secrets:
        account = job.service_account or "the project's Vertex AI Custom Code Service Agent"
        notes.append(f"secrets: {account} needs roles/secretmanager.secretAccessor")
    keyed = [name for name, secret in job.secrets.items() if secret.key]
    notes += [f"environment.{name}.key: a cluster's own, not rendered" for name in keyed]
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


def _check_region(placements: tuple[Placement, ...], region: str | None) -> None:
    if region is None:
        raise InputError(
            "no region is known",
            "add region: us-central1 to the job, or give --region, or set it in [job]",
        )
    checks.check_region(placements, region)


def _check_registry(image: Image) -> None:
    where = registry.parse(image.reference)
    if not (where.host == registry.DOCKER_HUB or where.host.endswith((".pkg.dev", "gcr.io"))):
        path = where.repository.rsplit("/", 1)[-1]
        raise InputError(
            f"Vertex AI cannot pull from {where.host}: it takes images from Artifact Registry and "
            "Docker Hub",
            f"push it to REGION-docker.pkg.dev/PROJECT/REPOSITORY/{path} and name that",
        )


def _check_environment(job: Job, image: Image, project: str | None) -> None:
    """Raise InputError for a secret that the job would hold, or that cannot be read from Secret
    Manager when it starts."""
    for name, secret in job.secrets.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", secret.secret):
            what = f"{name}: {secret.secret} is no name in Secret Manager"
            raise InputError(what, "use letters, digits, _ and -")
        if project is None:
            raise InputError(f"{name} names a secret, and no project is known", "give --project")
        if not (job.command or image.entrypoint):
            what = f"{name} is read before the program starts, and what the image starts is unknown"
            raise InputError(what, "write command: [python3, -m, MODULE]")
    checks.check_no_plain_secrets(
        job,
        "write {name}: {{secret: NAME}}, and make it: gcloud secrets create NAME --data-file=FILE",
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
