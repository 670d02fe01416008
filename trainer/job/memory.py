"""The memory that this process may use, and what it could still take."""

import contextlib
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def limit(root: Path = CGROUP, total: int | None = None) -> int:
    """Return bytes of memory that this container may use: its limit, or all of the machine."""
    total = total or psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int((root / name).read_text()))
    return total


def free(root: Path = CGROUP) -> int:
    """Return bytes that this process could still take without swapping: what the machine has left,
    but no more than the container's limit leaves."""
    left = limit(root) - psutil.Process().memory_info().rss
    return max(0, min(left, psutil.virtual_memory().available))
