"""The checks before a job is sent to Vertex AI, or rendered for it.

Each check is a function of values. `ready` makes all of them and reports all problems at once, each
at the line of the job's file that causes it, with the nearest thing that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder import registry
from builder.core.errors import InputError
from builder.jobs import checks
from builder.jobs.backends.vertex.service import Service
from builder.jobs.description.job import Job
from builder.jobs.ready import Image, Ready


def ready(job: Job, image: Image, where: Service, targets: Mapping[str, str]) -> Ready:
    """Return the job, checked. targets: the accelerator of each target of the project.

    Raises InputError with every problem, each at its line.
    """
    problems, placements, notes = checks.common(job, image, targets)
    with problems.at(("environment",)):
        _check_environment(job, image, where.project)
    with problems.at(("region",)):
        if where.region is None:
            raise InputError(
                "no region is known",
                "add region: us-central1 to the job, or give --region, or set it in [job]",
            )
        checks.check_region(placements, where.region)
    with problems.at(("image",)):
        if where.endpoint is None and image.in_registry:  # Google's own service pulls it
            _check_registry(image)
    problems.stop()
    devices = dict.fromkeys(placement.device for placement in placements if placement.device)
    notes += [device.warning for device in devices if device.warning]
    notes += [
        f"kubernetes.{name}: a cluster's own, not rendered" for name in job.kubernetes.written
    ]
    return Ready(job, image, where.region or "", placements, where.project, tuple(notes))


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
