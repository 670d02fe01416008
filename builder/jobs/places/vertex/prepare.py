"""A described job as it is sent to Vertex AI: its image found or made, everything checked."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.jobs import description, images
from builder.jobs.description import Job
from builder.jobs.images import ProgramFolder
from builder.jobs.places.vertex import bucket, checks, service
from builder.jobs.places.vertex.service import Service
from builder.jobs.ready import Image, Ready


@dataclass(frozen=True)
class VertexOptions:
    """What the command line says beside the job's name. None or empty: as the job says.

    pushed: take the image from its registry, as `submit` does. bucket: check the bucket, too.
    image: the job's, where it is known already.
    """

    project: str | None = None
    region: str | None = None
    pushed: bool = False
    package: ProgramFolder | None = None
    arguments: tuple[str, ...] = ()
    bucket: bool = False
    image: Image | None = None


def prepare(
    root: Path,
    asked: str | Job,
    settings: Settings,
    wanted: VertexOptions,
    on_event: OnEvent = ignore,
) -> tuple[Ready, Service]:
    """A job with its image, checked, and where it goes. asked: the job, or its name.

    Raises InputError, OutsideError, CheckFailed.
    """
    job = asked if isinstance(asked, Job) else description.load(root, asked)
    job = job.model_copy(update={"arguments": (*job.arguments, *wanted.arguments)})
    if wanted.package:
        job = wanted.package.job(job)
    where = service.load(root, job, project=wanted.project, region=wanted.region)
    if wanted.pushed:
        where = where.known()
    job = description.in_region(job, where.region)

    own, told = images.of_roles(root, job, settings, pushed=wanted.pushed, on_event=on_event)

    def checked(image: Image) -> Ready:
        found = checks.ready(
            job,
            image,
            where.region,
            project=where.project,
            targets=images.targets(root),
            cloud=where.endpoint is None and (wanted.pushed or settings.registry is not None),
            own=own,
        )
        return _with_bucket(found, where) if wanted.bucket else found

    if wanted.image is not None:
        return checked(wanted.image), where
    image, notes = images.find(
        root,
        job,
        settings,
        pushed=wanted.pushed,
        package=wanted.package,
        check=checked,
        on_event=on_event,
    )
    ready = checked(image)
    return replace(ready, notes=(*notes, *told, *ready.notes)), where


def _with_bucket(ready: Ready, where: Service) -> Ready:
    """Check the bucket, where it is Google's own or an emulator's."""
    emulated = bool(os.environ.get(service.STORAGE))
    if not ready.job.job_dir or not (where.endpoint is None or emulated):
        return ready
    notes = bucket.check(ready, service.storage_client(where))
    return replace(ready, notes=(*ready.notes, *notes))
