"""Which backend a command speaks to: the one that is named, that a job ran on last, or DEFAULT."""

from __future__ import annotations

from pathlib import Path

from builder.core import backends
from builder.core.backends import BackendKind, Flags
from builder.core.errors import InputError
from builder.jobs.backends.protocol import Backend, RemoteBackend
from builder.jobs.description.job import Job
from builder.jobs.submission import Memory


def remote(root: Path, job: Job | None, flags: Flags) -> RemoteBackend:
    """Return the backend that a job is sent to or rendered for.

    flags: options of the command line, `backend` among them. Nothing is asked here. Raises
    InputError for an option of another backend, and for one that no job is sent to.
    """
    kind = _checked(flags.get("backend") or backends.DEFAULT, flags)
    if kind.prepare is not None:
        what = f"--on {kind.name}: no job is sent to {kind.title}"
        raise InputError(what, f"builder job {kind.name} JOB")
    backend: RemoteBackend = kind.open(root, job, _own(kind, flags), None)
    return backend


def asked(root: Path, flags: Flags, name: str | None = None) -> Backend:
    """Return the backend to ask about jobs. name: the job's; where no backend is named, it is the
    one that ran or got this job last, as far as this machine knows, else DEFAULT.

    Raises InputError where it cannot be asked.
    """
    named = flags.get("backend")
    last = None if name is None or any(flags.values()) else _last(root, name)
    kind = _checked(named or last or backends.DEFAULT, flags)
    try:
        backend: Backend = kind.open(root, None, _own(kind, flags), name)
    except InputError as error:
        if name is None or named or last:
            raise
        raise InputError(
            f"{name} has not run on this machine, and {kind.title} cannot be asked: "
            f"{error.message}",
            f"builder job local {name}; or {error.fix}",
        ) from None
    return backend


def _last(root: Path, name: str) -> str | None:
    """Return the backend that ran or got the job of this name last, None for none that is known."""
    ran = {kind.name: at for kind in backends.every() if (at := kind.ran_at(root, name))}
    if (submitted := Memory.of(root).newest_backend(name)) is not None:
        ran[submitted[0]] = max(submitted[1], ran.get(submitted[0], 0.0))
    return max(ran, key=lambda each: ran[each], default=None)


def _own(kind: BackendKind, flags: Flags) -> Flags:
    return {flag.name: flags.get(flag.name) for flag in kind.flags}


def _checked(name: str, flags: Flags) -> BackendKind:
    """Return a backend by its name. Raises InputError for none, and for another one's option."""
    chosen = backends.of(name)
    for kind in backends.every():
        for flag in kind.flags:
            if flags.get(flag.name) is not None and flag.name not in _own(chosen, {}):
                written = f"--{flag.name.replace('_', '-')}"
                raise InputError(
                    f"{written} is an option of --on {kind.name}",
                    f"remove {written}, or give --on {kind.name}",
                )
    return chosen
