"""A described job as it is rendered for Kubernetes: its image found, everything checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.jobs import description, images
from builder.jobs.places.kubernetes import checks
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.ready import Ready


def prepare(
    root: Path,
    name: str,
    settings: Settings,
    cluster: Cluster,
    pushed: bool,
    on_event: OnEvent = ignore,
) -> Ready:
    """A job with its image, checked. pushed: take the image from its registry.

    Raises InputError, OutsideError, CheckFailed.
    """
    job = description.load(root, name)
    if pushed:
        image, notes = images.pushed_image(root, job, settings, on_event)
    else:
        image, notes = images.local_image(root, job, settings)
    known = settings.registry is not None
    found = checks.ready(job, image, cluster, targets=images.targets(root), registry=known)
    return replace(found, notes=(*notes, *found.notes))
