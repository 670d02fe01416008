"""Which backend a command speaks to. A new backend is added here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.core import settings
from builder.core.errors import InputError
from builder.core.settings import KubernetesSettings
from builder.jobs import description
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.local import backend as local
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.protocol import Backend, RemoteBackend
from builder.jobs.backends.vertex import backend as vertex
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.description.job import Job
from builder.jobs.submission import Memory

LOCAL, VERTEX, KUBERNETES = "local", "vertex", "kubernetes"
BACKENDS = (LOCAL, VERTEX, KUBERNETES)
FLAGS: Mapping[str, tuple[str, ...]] = {
    VERTEX: ("project", "region"),
    KUBERNETES: tuple(KubernetesSettings.model_fields),
}
"""The options of the command line that belong to one backend."""
Flags = Mapping[str, str | None]
"""Options of the command line by their names, `backend` among them; None stands for not given."""


def remote(root: Path, job: Job | None, flags: Flags) -> RemoteBackend:
    """Return the backend that a job is sent to or rendered for: Vertex AI where none is named.

    Nothing is asked here. Raises InputError for an option of another backend, and for this machine.
    """
    name = _checked(flags.get("backend") or VERTEX, flags)
    if name == LOCAL:
        raise InputError("--on local: no job is sent to this machine", "builder job local JOB")
    if name == KUBERNETES:
        own = {flag: flags.get(flag) for flag in FLAGS[KUBERNETES]}
        return Kubernetes(settings.load(root, tables={"kubernetes": own}).kubernetes)
    return VertexAI(vertex.load(root, job, flags))


def backend_of(root: Path, flags: Flags, name: str | None = None) -> Backend:
    """Return the backend to ask about jobs. name: the job's; where no backend is named, it is the
    one that ran or got this job last, as far as this machine knows, else Vertex AI.

    Raises InputError where it cannot be asked.
    """
    chosen = _checked(flags.get("backend") or _last(root, flags, name), flags)
    if chosen == LOCAL:
        return ThisMachine(root)
    if chosen == KUBERNETES:
        return remote(root, None, {**flags, "backend": KUBERNETES})
    parts = (name or "").split("/")
    if len(parts) == 6:  # projects/P/locations/R/customJobs/N
        flags = {**flags, "project": flags.get("project") or parts[1], "region": parts[3]}
    job = description.load(root, str(name)) if name in description.names(root) else None
    try:
        return VertexAI(vertex.load(root, job, flags)).known()
    except InputError as error:
        if name is None or flags.get("backend"):
            raise
        raise InputError(
            f"{name} has not run on this machine, and Vertex AI cannot be asked: {error.message}",
            f"builder job local {name}; or {error.fix}",
        ) from None


def _last(root: Path, flags: Flags, name: str | None) -> str:
    """Return the backend that ran or got the job of this name last."""
    if name is None or any(flags.values()):
        return VERTEX
    ran = local.ran_at(local.folder_of(root, name))
    submitted = memory(root).newest_backend(name)
    if submitted is not None and (ran is None or submitted[1] > ran):
        return submitted[0]
    return VERTEX if ran is None else LOCAL


def memory(root: Path) -> Memory:
    """Return what this machine remembers of a project's submissions."""
    return Memory(root / local.FOLDER)


def _checked(name: str, flags: Flags) -> str:
    """Return the backend's name. Raises InputError for one that is not known, and for an option of
    another one."""
    if name not in BACKENDS:
        raise InputError(
            f"--on {name}: no backend has this name", f"write one of {', '.join(BACKENDS)}"
        )
    for owner, options in FLAGS.items():
        for flag in options:
            if owner != name and flags.get(flag) is not None:
                written = f"--{flag.replace('_', '-')}"
                raise InputError(
                    f"{written} is an option of --on {owner}",
                    f"remove {written}, or give --on {owner}",
                )
    return name
