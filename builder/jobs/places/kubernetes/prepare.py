"""A described job as it is sent to a cluster: its image found or made, everything checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.jobs import description, images
from builder.jobs.description import Job
from builder.jobs.images import ProgramFolder
from builder.jobs.places.kubernetes import checks
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.ready import Image, Ready

_TO_COME = "sha256:" + 64 * "0"
"""Stands for the digest of an image that is not built yet."""


def prepare(
    root: Path,
    asked: str | Job,
    settings: Settings,
    cluster: Cluster,
    pushed: bool,
    package: ProgramFolder | None = None,
    arguments: tuple[str, ...] = (),
    known: Image | None = None,
    on_event: OnEvent = ignore,
) -> Ready:
    """A job with its image, checked. asked: the job, or its name. pushed: take the image from its
    registry. package: make it of a program's folder. arguments: those of the command line, after
    the job's own. known: the job's image, where it is known already.

    Raises InputError, OutsideError, CheckFailed.
    """
    job = asked if isinstance(asked, Job) else description.load(root, asked)
    job = job.model_copy(update={"arguments": (*job.arguments, *arguments)})
    if package is not None:
        job = package.job(job)
    job, registry = description.in_region(job, job.region), settings.registry is not None

    own, told = images.of_roles(root, job, settings, pushed=pushed, on_event=on_event)

    def checked(image: Image) -> Ready:
        return checks.ready(
            job, image, cluster, targets=images.targets(root), registry=registry, own=own
        )

    if known is not None:
        return checked(known)
    image, notes = images.find(
        root,
        job,
        settings,
        pushed=pushed,
        package=package,
        check=lambda planned: checked(replace(planned, digest=_TO_COME)),
        on_event=on_event,
    )
    found = checked(image)
    return replace(found, notes=(*notes, *told, *found.notes))


def planned(root: Path, asked: str | Job, settings: Settings, cluster: Cluster) -> Ready:
    """A job as it would be sent; its image need not be built yet. Raises InputError."""
    job = asked if isinstance(asked, Job) else description.load(root, asked)
    job = description.in_region(job, job.region)
    image, _ = images.local_image(root, job, settings)
    own, _ = images.of_roles(root, job, settings, pushed=False)
    image, *others = (replace(one, digest=one.digest or _TO_COME) for one in (image, *own.values()))
    return checks.ready(
        job,
        image,
        cluster,
        targets=images.targets(root),
        registry=True,
        own=dict(zip(own, others, strict=True)),
    )
