"""Which place a command speaks to. A new place is added here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import InputError
from builder.jobs.places.kubernetes import cluster
from builder.jobs.places.kubernetes.place import connect
from builder.jobs.places.local.place import ThisMachine, has_run
from builder.jobs.places.local.prepare import folder_of
from builder.jobs.places.protocol import JobStatus, Place
from builder.jobs.places.vertex import service
from builder.jobs.places.vertex.place import VertexAI
from builder.jobs.room import record

SENT = Path("build") / "jobs"
"""In a project: what this machine's commands know of the jobs that they sent."""
HERE, VERTEX, KUBERNETES = "here", "vertex", "kubernetes"


@dataclass(frozen=True)
class Asked:
    """What the command line says about the place; None: nothing.

    on: HERE, VERTEX or KUBERNETES. project, region: of Vertex AI. context, namespace: of a cluster,
    and other options of one by their names.
    """

    on: str | None = None
    project: str | None = None
    region: str | None = None
    context: str | None = None
    namespace: str | None = None
    cluster: Mapping[str, str | None] = field(default_factory=dict)

    def known(self) -> Asked:
        """Itself. Raises InputError for a place that there is not, or an option of another one."""
        if self.on not in (None, HERE, VERTEX, KUBERNETES):
            raise InputError(
                f"--on {self.on}: no place is called so", f"write {VERTEX} or {KUBERNETES}"
            )
        others: Mapping[str, str | None] = {"project": self.project, "region": self.region}
        if self.on != KUBERNETES:
            others = {"context": self.context, "namespace": self.namespace, **self.cluster}
        for name, value in others.items():
            if value is not None:
                there = VERTEX if self.on == KUBERNETES else KUBERNETES
                flag = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"{flag} is an option of --on {there}", f"remove it, or give --on {there}"
                )
        return self


def remote(root: Path, asked: Asked, name: str | None = None) -> Place[Any]:
    """The place that jobs are sent to. name: the job's; where no place is named, it is the one in
    which a search for room found its machines, else Vertex AI.

    Raises InputError for a place that cannot be asked.
    """
    asked = _where_it_went(root, asked.known(), name)
    if asked.on == HERE:
        raise InputError(
            f"--on {HERE}: no job is sent to this machine", "builder job local, watch and why"
        )
    if asked.on == KUBERNETES:
        flags = {"context": asked.context, "namespace": asked.namespace}
        return connect(cluster.load(root, flags))
    return VertexAI(service.of_job(root, name, asked.project, asked.region))


def _where_it_went(root: Path, asked: Asked, name: str | None) -> Asked:
    """The place of a job that was sent to the first of several with room."""
    if name is None or asked != Asked(project=asked.project):
        return asked
    found = record.read(root / SENT, name)
    if found is None or not found.job:
        return asked
    return Asked(found.on, asked.project, found.region or None)


def watched(
    root: Path, name: str, asked: Asked, poll: float
) -> tuple[Place[Any], JobStatus, float]:
    """A place, its job to watch, and the seconds between two looks.

    Where no place is named, it is this machine if the job has run here, else Vertex AI. poll: the
    seconds elsewhere. Raises InputError where the place cannot be asked, OutsideError.
    """
    asked = asked.known()
    if asked.on == HERE or (asked.on is None and has_run(folder_of(root, name))):
        here = ThisMachine(root)
        return here, here.find(name), 1.0
    try:
        there = remote(root, asked, name)
    except InputError as error:
        if asked.on is not None:
            raise
        raise InputError(
            f"{name} has not run here, and Vertex AI cannot be asked: {error.message}",
            f"builder job local {name}; or {error.fix}",
        ) from None
    return there, there.find(name), poll
