"""Use of the machine: processors, memory, GPUs.

A sample is taken every few seconds, with psutil and NVML (nvidia-ml-py).
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from trainer import guard
from trainer.job import memory

SECONDS = 5.0
"""Between two looks."""


def quota(root: Path = memory.CGROUP, cores: int | None = None) -> float:
    """CPU cores that this container may use: its quota, but no more than it may run on."""
    cores = cores or len(os.sched_getaffinity(0))
    limit = math.inf
    with contextlib.suppress(OSError, ValueError):  # cgroup v2: "max 100000" or "150000 100000"
        most, period = (root / "cpu.max").read_text().split()
        limit = math.inf if most == "max" else int(most) / int(period)
    with contextlib.suppress(OSError, ValueError):  # cgroup v1: -1 is none
        most = (root / "cpu/cpu.cfs_quota_us").read_text()
        if int(most) > 0:
            limit = int(most) / int((root / "cpu/cpu.cfs_period_us").read_text())
    return min(float(cores), limit)


class Machine:
    """Samples the processor and memory of this process, relative to what it may use."""

    def __init__(self) -> None:
        self.cores, self.memory = quota(), memory.limit()
        self._process = psutil.Process()
        self._process.cpu_percent()  # The next call measures from here on.

    def look(self) -> dict[str, float]:
        """Figures since the last look: shares of what may be used, and bytes."""
        used = self._process.memory_info().rss
        busy = self._process.cpu_percent() / 100
        return {"cpu": busy / self.cores, "memory_bytes": used, "memory": used / self.memory}


class Gpus:
    """Samples GPUs through NVML; no GPUs if there is no driver or no nvidia-ml-py.

    Only GPUs that CUDA_VISIBLE_DEVICES leaves to this process count; other processes may use the
    others.
    """

    def __init__(self, nvml: Any = None, visible: str | None = None) -> None:
        """`nvml` is the module pynvml, or a stand-in for it in a test; `visible` is the value of
        CUDA_VISIBLE_DEVICES, or None if it is not set."""
        self._nvml: Any = None
        self._handles: list[Any] = []
        self.names: list[str] = []
        try:
            if nvml is None:
                import pynvml

                nvml = pynvml
            nvml.nvmlInit()
            self._handles = _handles(nvml, visible)
            names = [nvml.nvmlDeviceGetName(handle) for handle in self._handles]
            self.names = [n.decode() if isinstance(n, bytes) else n for n in names]
            self._nvml = nvml
        except Exception:  # no library, no driver, no permission: no figures
            self._handles = []

    def look(self) -> dict[str, float]:
        """Mean and least over the GPUs, without figures that a GPU does not give."""
        each = [self._one(handle) for handle in self._handles]
        means = {}
        for key in dict.fromkeys(key for reading in each for key in reading):
            values = [reading[key] for reading in each if key in reading]
            means[key] = sum(values) / len(values)
        if len(each) > 1 and all("gpu_busy" in reading for reading in each):
            means["gpu_busy_least"] = min(reading["gpu_busy"] for reading in each)
        return means

    def _one(self, handle: Any) -> dict[str, float]:
        """Figures of one GPU, without those that it does not give."""
        nvml, figures = self._nvml, dict[str, float]()

        def used() -> dict[str, float]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return {"gpu_memory": info.used / info.total, "gpu_memory_bytes": info.used}

        for take in (
            # The share of time in which anything ran on the GPU, which is not how well it was used.
            lambda: {"gpu_busy": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
            used,
            lambda: {"gpu_power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
        ):
            with contextlib.suppress(nvml.NVMLError):
                figures.update(take())
        return figures


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    """Handles of the GPUs that CUDA shows: by number or UUID, up to the first that is neither."""
    count = nvml.nvmlDeviceGetCount()
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
    handles = []
    for entry in guard.entries(visible):
        if isinstance(entry, str):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(entry))
        elif entry < count:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(entry))
        else:
            break
    return handles


class Sampler:
    """Takes a sample with the first call after `seconds`; 0 seconds: none."""

    def __init__(self, seconds: float, looks: Iterable[Callable[[], Mapping[str, float]]]) -> None:
        self._seconds = seconds
        self._looks = tuple(looks)
        self._last = time.monotonic()
        self._sums: dict[str, tuple[int, float, float]] = {}

    def fresh(self, now: bool = False) -> dict[str, float]:
        """Return a sample where it is time for one, or `now`; otherwise {}."""
        passed = time.monotonic() - self._last
        if not self._seconds or (passed < self._seconds and not now):
            return {}
        self._last += passed
        sample = {key: value for look in self._looks for key, value in look().items()}
        for key, value in sample.items():
            count, total, most = self._sums.get(key, (0, 0.0, -math.inf))
            self._sums[key] = count + 1, total + value, max(most, value)
        return sample

    def report(self) -> dict[str, dict[str, float]]:
        """Mean and most of each figure over the attempt."""
        return {
            key: {"mean": total / count, "most": most}
            for key, (count, total, most) in self._sums.items()
        }
