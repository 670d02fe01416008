"""The memory that this process may use, has and could still take."""

import contextlib
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def limit(root: Path = CGROUP, total: int | None = None) -> int:
    """Return bytes of memory that this container may use: its limit, but no more than the machine
    has.
    """
    total = total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int((root / name).read_text()))
    return total


def resident() -> int:
    """Return bytes of memory that this process holds (proc_pid_statm(5), second field)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free(root: Path = CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return bytes that this process could still take without swapping: what the machine has left
    (MemAvailable in proc_meminfo(5)), but no more than the container's limit leaves."""
    left = limit(root) - resident()
    with contextlib.suppress(OSError, IndexError, ValueError):
        available = meminfo.read_text().partition("MemAvailable:")[2]
        left = min(left, int(available.split()[0]) * 1024)
    return max(0, left)
