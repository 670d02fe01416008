"""The engine of a Cloud Build worker on this machine, for the time of one build.

A worker does one build and is thrown away. Its engine is an old Docker without buildx
(private/programs.py). So is this one: a private engine in a folder of its own, empty at first and
removed at the end. Its containers together get the memory that a worker has for them. The kernel
kills a program that needs more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.files import data_home
from builder.engine import containers, private
from builder.engine.docker import Engine
from builder.engine.private.instance import EngineInstance, load
from builder.engine.private.programs import WORKER
from builder.facts.workers import DEFAULT_MACHINE, MACHINES, SYSTEM_GB

_FOLDER: Final = "worker_"


_CONTROLLERS: Final = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""Where the kernel's control groups of memory are mounted, in version 1 and 2, and the name of the
limit there (the kernel's Documentation/admin-guide: cgroup-v1/memory.rst, cgroup-v2.rst)."""


def memory_of(machine: str) -> int:
    """Return the bytes that a machine of the default pool has for containers. "": the default."""
    memory = MACHINES.get(machine) or MACHINES[DEFAULT_MACHINE]
    return int((memory - SYSTEM_GB) * 1e9)


@contextlib.contextmanager
def worker(limit: int, on_event: OnEvent = ignore) -> Iterator[Engine]:
    """Yield a worker's engine, empty. limit: bytes that all containers together may use.

    Removes what a killed run left. Raises OutsideError if no private engine can be started.
    """
    home = data_home()
    home.mkdir(parents=True, exist_ok=True)
    for folder in home.glob(f"{_FOLDER}*"):
        parts = folder.name.removeprefix(_FOLDER).split("_", 3)  # the last, random one may have _
        if len(parts) == 4 and containers.is_gone(":".join(parts[:3])):
            _discard(folder)
    owner = containers.owner(os.getpid()).replace(":", "_")
    folder = Path(tempfile.mkdtemp(dir=home, prefix=f"{_FOLDER}{owner}_"))
    try:
        engine = private.start(folder, on_event, WORKER)
        limit_memory(load(folder), limit)
        yield engine
    finally:
        _discard(folder)


def limit_memory(
    instance: EngineInstance, limit: int, controllers: Sequence[tuple[Path, str]] = _CONTROLLERS
) -> None:
    """Limit the bytes that all containers of an engine together use. Raises OutsideError."""
    for folder, name in controllers:
        if (folder / "cgroup.procs").exists():
            group = folder / instance.cgroup.lstrip("/")
            try:
                group.mkdir(exist_ok=True)
                (group / name).write_text(str(limit))
            except OSError as error:
                raise OutsideError(
                    f"{group}: the memory of containers cannot be limited: {error.strerror}",
                    "this needs the rights of a real root, and the kernel's memory controller",
                ) from None
            return
    raise OutsideError("this kernel has no control groups mounted", "mount them at /sys/fs/cgroup")


def _discard(folder: Path) -> None:
    private.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)
