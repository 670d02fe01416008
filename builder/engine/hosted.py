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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core.events import OnEvent, ignore
from builder.engine import containers, memory, private
from builder.engine.docker import Engine
from builder.engine.private.instance import data_home, load
from builder.engine.private.programs import WORKER
from builder.facts.workers import DEFAULT_MACHINE, MACHINES, SYSTEM_GB

_FOLDER: Final = "worker_"


@dataclass(frozen=True)
class HostedEngine:
    """An engine of a worker. memory: what all containers together use, and may use."""

    engine: Engine
    memory: memory.Usage


def memory_of(machine: str) -> int:
    """Return the bytes that a machine of the default pool has for containers. "": the default."""
    worker = MACHINES.get(machine) or MACHINES[DEFAULT_MACHINE]
    return int((worker.memory - SYSTEM_GB) * 1e9)


@contextlib.contextmanager
def worker(limit: int, on_event: OnEvent = ignore) -> Iterator[HostedEngine]:
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
        with memory.limited(memory.group(load(folder)), limit) as usage:
            yield HostedEngine(engine, usage)
    finally:
        _discard(folder)


def _discard(folder: Path) -> None:
    private.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)
