"""Decoded pictures that are kept: each is decoded once, and later epochs read its pixels.

They lie in memory. What does not fit is decoded each time, and a restarted run decodes all once
more.
"""

import contextlib
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import psutil

from trainer.event_lines import say
from trainer.input import pictures

SHARE = 0.8
"""Most of the free memory that the pictures take."""
_CGROUP = Path("/sys/fs/cgroup")


def limit(root: Path = _CGROUP, total: int | None = None) -> int:
    """Return bytes of memory that this container may use: its limit, or all of the machine."""
    total = total or psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int((root / name).read_text()))
    return total


def free() -> int:
    """Return bytes that this process could still take without swapping: what the machine has left,
    but no more than the container's limit leaves."""
    left = limit() - psutil.Process().memory_info().rss
    return max(0, min(left, psutil.virtual_memory().available))


class Cache:
    """Pictures by their encoded bytes."""

    def __init__(self) -> None:
        self._left, self._full = int(SHARE * free()), False
        self._kept: dict[tuple[int, int], np.ndarray] = {}
        self._lock = threading.Lock()
        text = f"--cache memory: keeps up to {self._left / 1e6:,.1f} MB of decoded pictures"
        say("cache", text, bytes=self._left)

    def pixels(self, content: bytes, ratio: int = 1, name: bytes = b"") -> np.ndarray:
        """Return what pictures.pixels does. A picture at a smaller scale is not kept."""
        if ratio > 1:
            return pictures.pixels(content, ratio, name)
        key = len(content), hash(content)
        image = self._kept.get(key)
        if image is None:
            image = pictures.pixels(content, ratio, name)
            self._keep(key, image)
        return image

    def _keep(self, key: tuple[int, int], image: np.ndarray) -> None:
        with self._lock:
            if self._full or key in self._kept:
                return
            self._full = image.size > self._left
            if self._full:
                text = f"--cache memory: is full with {len(self._kept):,} pictures"
                say("cache", f"{text}; the others are decoded each time", "WARNING")
                return
            self._left -= image.size
            self._kept[key] = image


@lru_cache(maxsize=1)
def kept() -> Cache:
    """Return this process's cache."""
    return Cache()
