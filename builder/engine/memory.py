"""The memory of all containers of a private engine together: a limit, and what they used.

They have one control group above them (EngineInstance.cgroup). Memory that the kernel only keeps as
a copy of files on disk is left out, because it gives that back when somebody needs it. Source of
the files' names: the kernel's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError
from builder.engine.private.instance import EngineInstance

SECONDS: Final = 0.5
"""Between two looks at what is used."""
_MOUNTS: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class MemoryGroup:
    """A control group. limit_file: its name for the limit. fields: those of memory.stat that count
    what cannot be given back: of processes, and of files that lie in memory alone."""

    folder: Path
    limit_file: str
    fields: tuple[str, ...]

    def limit(self, size: int) -> None:
        """Make the group, and let its processes use so many bytes. Raises OutsideError."""
        try:
            self.folder.mkdir(exist_ok=True)
            (self.folder / self.limit_file).write_text(str(size))
        except OSError as error:
            raise OutsideError(
                f"{self.folder}: the memory of containers cannot be limited: {error.strerror}",
                "this needs the rights of a real root, and the kernel's memory controller",
            ) from None

    def used(self) -> int:
        """Return the bytes that the group's processes use, 0 where there is none."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "memory.stat").read_text().splitlines()
            values = dict(line.split() for line in lines)
            return sum(int(values.get(name, 0)) for name in self.fields)
        return 0


def group(instance: EngineInstance, mounts: Path = _MOUNTS) -> MemoryGroup:
    """Return the control group of an engine's containers. Raises OutsideError without a controller.

    mounts: the kernel's table of mounts.
    """
    name = instance.cgroup.lstrip("/")
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        folder = Path(left.split()[4])
        kind, _, options = right.split()[:3]
        if kind == "cgroup" and "memory" in options.split(","):
            return MemoryGroup(folder / name, "memory.limit_in_bytes", ("total_rss", "total_shmem"))
        controllers = folder / "cgroup.controllers"
        if kind == "cgroup2" and controllers.exists() and "memory" in controllers.read_text():
            return MemoryGroup(folder / name, "memory.max", ("anon", "shmem"))
    raise OutsideError(
        "this kernel has no memory controller mounted", "mount it below /sys/fs/cgroup"
    )


@dataclass
class Usage:
    """limit: what a group may use; peak: the most that was seen. Both in bytes."""

    limit: int
    peak: int = 0


@contextlib.contextmanager
def limited(watched: MemoryGroup, limit: int) -> Iterator[Usage]:
    """Limit what a group may use, and watch it. Raises OutsideError if the kernel sets no limit."""
    usage, over = Usage(limit), threading.Event()

    def watch() -> None:
        while not over.wait(SECONDS):
            usage.peak = max(usage.peak, watched.used())

    watched.limit(limit)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()
