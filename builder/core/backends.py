"""Which backends for jobs there are, and what each brings.

A backend is a value: `BackendKind`. Ours lie in the folders of builder/jobs/backends/. One that
lives in another distribution is registered there, as an entry point of the group GROUP; its name is
what --on calls it. Settings, descriptions of jobs, the command line and the doctor ask this table,
and name no backend. The module of a value is imported by every command about jobs, so it imports
nothing slow: what the value does stands in other modules (`later` in builder/core/plugins.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.core import plugins
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.core.findings import DoctorFinding

GROUP: Final = "training_image_factory.backends"
DEFAULT: Final = "vertex"
"""The backend of a command that names none."""
OWN: Final = ("local", "vertex", "kubernetes")

Flags = Mapping[str, str | None]
"""Options of the command line by their names; None stands for not given."""


@dataclass(frozen=True)
class Flag:
    """An option of the command line that one backend has."""

    name: str
    """As a setting has it: `pull_secret` for --pull-secret."""
    help: str
    """Behind the backend's name, on the page of a command."""
    sends: bool = False
    """Whether only commands that send a job have it, and those that ask about one do not."""


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


@dataclass(frozen=True)
class BackendKind:
    """A backend: what has to be known of it before it is connected."""

    name: str
    """What --on calls it; its section of a job's file, and by default its table of builder.toml."""
    title: str
    open: Callable[..., Any]
    """Connects it: takes the project's folder, the Job that is sent (None: none is), its Flags, and
    the name of the job that is asked about (None: of none). Returns a Backend, or for one that jobs
    are sent to a RemoteBackend (builder/jobs/backends/protocol.py). Raises InputError. The jobs
    themselves are asked later."""
    flags: tuple[Flag, ...] = ()
    """Its options. Each replaces the setting of its name."""
    settings: Callable[[], Any] | None = None
    """Returns its table of builder.toml as it is where nothing is written: a FileModel
    (builder/core/filemodel.py), or its class. None: it has no table."""
    own_table: str = ""
    section: Callable[[], Any] | None = None
    """Returns its section of a job's file as it is where nothing is written: a WrittenModel
    (builder/jobs/description/values.py), or its class. None: it has none."""
    examine: Callable[[Any, Any], tuple[DoctorFinding, ...]] = lambda _backend, _ready: ()
    """Returns what `builder doctor` finds of a backend and of a Ready job (None: of none)."""
    text: Callable[[Mapping[str, Any]], str] = _as_json
    """Returns what `render` of the backend says as a person reads it."""
    prepare: Callable[..., Any] | None = None
    """Of a backend that no job is sent to: returns a job that this process runs."""
    ran_at: Callable[[Path, str], float | None] = lambda _root, _name: None
    """Returns when a job of this name ran there, as far as the project's folder says: seconds since
    1970, None for never."""
    trials: bool = False
    """Whether each trial of a study is a job there, for which this machine asks, and of which
    `submit` refuses a second. Else a study is one job there, or refused."""
    poll: float = math.inf
    """The most seconds between two looks at a job that is watched."""

    @property
    def table(self) -> str:
        return self.own_table or self.name


@cache
def names() -> tuple[str, ...]:
    return plugins.names(GROUP, OWN)


@cache
def of(name: str) -> BackendKind:
    """Return a backend by what --on calls it. Raises InputError for another name."""
    try:
        kind: BackendKind = plugins.load(GROUP, name, OWN, "builder.jobs.backends.{}:BACKEND")
    except KeyError:
        what = f"--on {name}: no backend has this name"
        raise InputError(what, f"write one of {', '.join(names())}") from None
    return kind


@cache
def every() -> tuple[BackendKind, ...]:
    return tuple(map(of, names()))


def ours() -> tuple[BackendKind, ...]:
    return tuple(map(of, OWN))
