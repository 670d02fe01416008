"""What a person asks of a job: the steps from its description to a backend, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from builder.core import backends
from builder.core.backends import Flags
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.findings import DoctorFinding
from builder.core.settings import Settings
from builder.jobs import description, images, submission
from builder.jobs.backends import choose
from builder.jobs.backends.protocol import RemoteBackend
from builder.jobs.description.job import Job
from builder.jobs.ready import Ready
from builder.jobs.submission import Memory, Submitted
from builder.jobs.trials import SentStudy

OnNote = Callable[[str], object]
"""A callback that gets each sentence that a person should know of a job before it is sent."""


@dataclass(frozen=True)
class JobRequest:
    root: Path
    """The project's folder."""
    job: str
    """The name of a description, or its file."""
    flags: Flags
    """The options that name a backend and its settings, `backend` among them."""
    settings: Settings
    arguments: tuple[str, ...] = ()
    """For the trainer, after those of the description."""
    program: str | None = None
    """FOLDER:MODULE that becomes the job's image."""
    pushed: bool = True
    """Whether the image is taken from its registry, by digest, with its receipt."""


@dataclass(frozen=True)
class Prepared:
    backend: RemoteBackend
    ready: Ready

    @property
    def text(self) -> str:
        return backends.of(self.backend.name).text(self.backend.render(self.ready))


def prepare(request: JobRequest, on_note: OnNote = ignore, on_event: OnEvent = ignore) -> Prepared:
    """Return the job with its image and machines, after every check that the backend makes without
    asking anybody. Raises InputError, OutsideError, CheckFailed."""
    job = description.load(request.root, request.job)
    backend = choose.remote(request.root, job, request.flags)
    job = job.model_copy(update={"arguments": (*job.arguments, *request.arguments)})
    if request.program is not None:
        ready = _with_program(request, request.program, job, backend, on_event)
    else:
        asked = (request.root, job, request.settings)
        pushed = request.pushed
        image, notes = (
            images.pushed_image(*asked, on_event) if pushed else images.local_image(*asked)
        )
        ready = backend.check(job, image, images.targets(request.root))
        ready = replace(ready, notes=(*notes, *ready.notes))
    for note in ready.notes:
        on_note(note)
    return Prepared(backend, ready)


def _with_program(
    request: JobRequest, program: str, job: Job, backend: RemoteBackend, on_event: OnEvent
) -> Ready:
    """Return the job whose image is made of a program, which passes its folder, as AI Platform did.
    Making it takes minutes, so the job is checked before with what is known of the image."""
    root, settings, targets = request.root, request.settings, images.targets(request.root)
    job = job.model_copy(update={"pass_job_dir": True})
    backend.check(job, images.local_image(root, job, settings)[0], targets)
    image = images.packaged_image(root, job, settings, program, on_event)
    return backend.check(job, image, targets)


def check_step(
    request: JobRequest, prepared: Prepared, on_note: OnNote = ignore, on_event: OnEvent = ignore
) -> None:
    """Say what is known of the job's step (builder/jobs/step.py). Raises CheckFailed where it does
    not compile or fit."""
    from builder.jobs import step

    if said := step.check(request.root, prepared.ready, request.settings, on_event):
        on_note(said)


def taken(
    request: JobRequest,
    *,
    again: bool = False,
    on_note: OnNote = ignore,
    on_event: OnEvent = ignore,
) -> str:
    """Return what `submit` would send now, as a person reads it, after the backend itself has said
    that it would take it; nothing is created. Raises as `prepare` does."""
    prepared = prepare(request, on_note, on_event)
    backend, ready = prepared.backend, prepared.ready
    plan = submission.plan(backend, ready, Memory.of(request.root), again=again)
    values = backend.preflight(ready, plan.run, plan.attempt)
    check_step(request, prepared, on_note, on_event)
    return backends.of(backend.name).text(values)


def submit(
    request: JobRequest,
    *,
    again: bool = False,
    on_note: OnNote = ignore,
    on_event: OnEvent = ignore,
) -> tuple[RemoteBackend, Submitted | SentStudy]:
    """Send a job, unless it is there already, and return the backend that has it; or a study that
    is to run.

    again: run it a second time, in a folder of its own. Raises as `prepare` does.
    """
    prepared = prepare(request, on_note, on_event)
    backend, known = prepared.backend, Memory.of(request.root)
    study = prepared.ready.job.study is not None and backends.of(backend.name).trials
    if study and again:
        what = f"{request.job}: --again is for one job, and this is a study"
        raise InputError(what, "without --again it goes on; for another one, copy its file")
    backend.preflight(prepared.ready)
    check_step(request, prepared, on_note, on_event)
    if study:
        return backend, SentStudy(request.root, backend, prepared.ready)
    sent = submission.submit(backend, prepared.ready, known, again=again, on_event=on_event)
    return backend, sent


def examine(
    request: JobRequest | None, root: Path, flags: Flags, on_event: OnEvent = ignore
) -> tuple[DoctorFinding, ...]:
    """Return what `builder doctor` finds of a backend, and with a request of its job there.

    What a backend refuses is a finding. Raises InputError.
    """
    if request is None:
        backend, ready = choose.remote(root, None, flags), None
    else:
        prepared = prepare(request, on_event=on_event)
        backend, ready = prepared.backend, prepared.ready
    kind = backends.of(backend.name)
    try:
        return kind.examine(backend, ready)
    except OutsideError as error:
        return (DoctorFinding(kind.title, "error", error.message, error.fix),)
