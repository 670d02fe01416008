"""The engine of a Cloud Build worker on this machine, for the time of one build.

A worker does one build and is thrown away. Its engine is an old Docker without buildx
(private/programs.py). So is this one: a private engine in a folder of its own, empty at first,
which goes with all that is on it. Its containers together get the memory that a worker has for
them; the kernel kills a program that wants more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core.events import OnEvent, ignore
from builder.core.workers import DEFAULT_MACHINE, MACHINES, SYSTEM_GB
from builder.engine import containers, private
from builder.engine.discovery import of_private
from builder.engine.docker import Engine
from builder.engine.private.memory import PeakMemory, group
from builder.engine.private.place import data_home, load
from builder.engine.private.programs import WORKER

_FOLDER = "worker_"


@dataclass(frozen=True)
class HostedEngine:
    """memory: what all containers together use, and may use."""

    engine: Engine
    memory: PeakMemory


def memory_of(machine: str) -> int:
    """Bytes that a machine of the default pool has for containers. "": the default machine."""
    known = MACHINES.get(machine) or MACHINES[DEFAULT_MACHINE]
    return int((known.memory - SYSTEM_GB) * 1e9)


@contextlib.contextmanager
def worker(limit: int, on_event: OnEvent = ignore) -> Iterator[HostedEngine]:
    """A worker's engine, empty. limit: bytes that all containers together may use.

    Removes what a killed run left. Raises OutsideError where no private engine can be started.
    """
    home = data_home()
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    owner = containers.owner(os.getpid()).replace(":", "_")
    folder = Path(tempfile.mkdtemp(dir=home, prefix=f"{_FOLDER}{owner}_"))
    try:
        engine = of_private(private.start(folder, on_event, WORKER))
        together = group(load(folder))
        with PeakMemory(together, limit) as memory:
            yield HostedEngine(engine, memory)
    finally:
        _discard(folder)


def _sweep(home: Path) -> None:
    """Remove the engines of processes that were killed."""
    for folder in home.glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).split("_", 3)  # the last, random part may have _
        if len(owner) == 4 and containers.is_gone(":".join(owner[:3])):
            _discard(folder)


def _discard(folder: Path) -> None:
    private.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)
