"""Which place a command speaks to. A new place is added here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.core.errors import InputError
from builder.jobs.places.local.place import ThisMachine, has_run
from builder.jobs.places.local.prepare import folder_of
from builder.jobs.places.protocol import JobStatus, Place
from builder.jobs.places.vertex import service
from builder.jobs.places.vertex.place import VertexAI


def watched(
    root: Path,
    name: str,
    remote: bool,
    project: str | None,
    region: str | None,
    poll: float,
) -> tuple[Place[Any], JobStatus, float]:
    """A place, its job to watch, and the seconds between two looks.

    The place is this machine where the job has run here, else Vertex AI. remote: Vertex AI in any
    case. poll: the seconds there. Raises InputError where the job has not run here and Vertex AI
    cannot be asked, OutsideError.
    """
    if not remote and has_run(folder_of(root, name)):
        here = ThisMachine(root)
        return here, here.find(name), 1.0
    try:
        where = service.of_job(root, name, project, region)
    except InputError as error:
        if remote:
            raise
        raise InputError(
            f"{name} has not run here, and Vertex AI cannot be asked: {error.message}",
            f"builder job local {name}; or {error.fix}",
        ) from None
    there = VertexAI(where)
    return there, there.find(name), poll
