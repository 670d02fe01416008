"""A described job as it is sent: its image found or made, and everything checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.jobs import images
from builder.jobs.backends.protocol import RemoteBackend
from builder.jobs.description import Job
from builder.jobs.images import ProgramFolder
from builder.jobs.ready import Ready


@dataclass(frozen=True)
class SendOptions:
    """What the command line adds to a job.

    arguments: for the trainer, after those of the job. program: a folder that becomes the job's
    image. pushed: take the image from its registry, by digest, with its receipt.
    """

    arguments: tuple[str, ...] = ()
    program: ProgramFolder | None = None
    pushed: bool = False


def prepare(
    root: Path,
    job: Job,
    settings: Settings,
    backend: RemoteBackend,
    options: SendOptions,
    on_event: OnEvent = ignore,
) -> Ready:
    """Return the job with its image and its machines, checked for a backend.

    Raises InputError, OutsideError, CheckFailed.
    """
    arguments = (*job.arguments, *options.arguments)
    targets = images.targets(root)
    if options.program is not None:  # it passes its folder, as AI Platform did
        job = job.model_copy(update={"arguments": arguments, "pass_job_dir": True})
        # making the image takes minutes, so the job is checked with what is known of it before
        backend.check(job, images.planned_image(root, job, settings), targets)
        image = images.packaged_image(root, job, settings, options.program, on_event)
        return backend.check(job, image, targets)
    job = job.model_copy(update={"arguments": arguments})
    if options.pushed:
        image, notes = images.pushed_image(root, job, settings, on_event)
    else:
        image, notes = images.local_image(root, job, settings)
    ready = backend.check(job, image, targets)
    return replace(ready, notes=(*notes, *ready.notes))
