"""Use of the machine: processors, memory, GPUs, by psutil and NVML (nvidia-ml-py).

Without a driver, or without nvidia-ml-py, there are no figures of GPUs.
"""

import contextlib
import os
import time
from typing import Any

import numpy as np
import psutil

from trainer import guard
from trainer.observe.observer import Observer, Run

SECONDS = 5.0
"""From one sample to the next."""


class Utilization(Observer):
    """Keeps the speed of this attempt, and samples of how this machine is used."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._nvml, self._gpus = gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._examples = self._calls = 0
        self._seconds = 0.0
        self._last = time.monotonic()
        self._samples: dict[str, list[float]] = {}
        self._new: dict[str, float] = {}
        self._gpu: dict[str, float] = {}

    def begin(self, run: Run) -> None:
        self._process.cpu_percent()  # The next call measures from here on.

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._calls += 1
        if self._calls > 1:  # the first one traces and compiles
            self._examples += len(metrics["loss"]) * run.config.batch_size
            self._seconds += float(np.sum(metrics["seconds"]))
        if time.monotonic() - self._last >= SECONDS:
            self._measure()

    def end(self, run: Run, outcome: str) -> None:
        if not self._samples:
            self._measure()  # so that a short run has one

    def sample(self) -> dict[str, float]:
        """Return a new sample by TensorBoard's tags, once; {}: there is none since the last."""
        new, self._new = self._new, {}
        return {f"utilisation/{name}": value for name, value in new.items()}

    @property
    def of_gpus(self) -> dict[str, float]:
        """Return the newest sample of the GPUs as an event has it: gpu_percent, the mean of the
        share of time, and gpu_memory_bytes, their sum; {} where nobody measures it, or not yet."""
        return self._gpu

    def summary(self) -> dict[str, Any]:
        """Return examples a second; mean and most of each figure."""
        speed = self._examples / self._seconds if self._seconds else 0.0
        machine = {
            name: {"mean": float(np.mean(values)), "most": max(values)}
            for name, values in self._samples.items()
        }
        return {"examples_per_second": speed, "machine": machine}

    def _measure(self) -> None:
        self._last, self._gpu = time.monotonic(), {}
        used = use_of(self._nvml, self._gpus)
        self._new = {
            "cpu_cores": self._process.cpu_percent() / 100,
            "memory_bytes": float(self._process.memory_info().rss),
            **used,
        }
        if "gpu_busy" in used:
            self._gpu["gpu_percent"] = round(100 * used["gpu_busy"], 1)
        if "gpu_memory_bytes" in used:
            self._gpu["gpu_memory_bytes"] = int(used["gpu_memory_bytes"])
        for name, value in self._new.items():
            self._samples.setdefault(name, []).append(value)


def gpus(visible: str | None) -> tuple[Any, list[Any]]:
    """Return the module pynvml and its handles of the GPUs that CUDA_VISIBLE_DEVICES leaves to this
    process; no handles if there is no driver or no nvidia-ml-py.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        entries = range(pynvml.nvmlDeviceGetCount()) if visible is None else guard.entries(visible)
        return pynvml, [
            pynvml.nvmlDeviceGetHandleByUUID(entry)
            if isinstance(entry, str)
            else pynvml.nvmlDeviceGetHandleByIndex(entry)
            for entry in entries
        ]
    except Exception:  # no library, no driver, no permission: no figures
        return None, []


def use_of(nvml: Any, handles: list[Any]) -> dict[str, float]:
    """Return the means over the GPUs: the share of time in which anything ran, which is not how
    well it was used, and the share of memory; and the bytes of memory in use on all of them.
    Figures that a GPU does not give are left out.
    """
    busy, memory, used = [], [], []
    for handle in handles:
        with contextlib.suppress(nvml.NVMLError):
            busy.append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        with contextlib.suppress(nvml.NVMLError):
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            memory.append(info.used / info.total)
            used.append(info.used)
    figures = {"gpu_busy": busy, "gpu_memory": memory}
    means = {name: float(np.mean(values)) for name, values in figures.items() if values}
    return {**means, "gpu_memory_bytes": float(sum(used))} if used else means
