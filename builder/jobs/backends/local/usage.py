"""What containers use of this machine's processors, memory and GPUs."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import docker

_CPUS_MISSING = 1


def usage(sample: Any) -> dict[str, Any] | None:
    """`{"cpu": cores, "memory": bytes}` in one of the engine's samples, None where it has neither.

    As `docker stats` computes it: memory without the page cache.
    """
    try:
        now, before = sample["cpu_stats"], sample["precpu_stats"]
        used = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
        passed = now["system_cpu_usage"] - before["system_cpu_usage"]
        memory = sample["memory_stats"]["usage"]
        cache = sample["memory_stats"].get("stats") or {}
        cached = cache.get("inactive_file", cache.get("total_inactive_file", 0))
        cores = now.get("online_cpus") or _CPUS_MISSING
    except (KeyError, TypeError):
        return None
    if passed <= 0:
        return None
    return {"cpu": round(used / passed * cores, 3), "memory": max(0, memory - cached)}


def machine_gpus(client: docker.DockerClient) -> tuple[str, ...]:
    """The ids of the GPUs that the engine can give to containers; () without a runtime for them."""
    if "nvidia" not in (client.info().get("Runtimes") or {}):
        return ()
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return tuple(str(index) for index in range(len(found)))


def gpu_usage(text: str, ids: Sequence[str]) -> dict[str, float]:
    """`{"gpu": share of time busy, "gpu_memory": bytes}` over these GPUs, of nvidia-smi's lines of
    index, utilization.gpu in percent, memory.used in MiB."""
    found = []
    for line in text.splitlines():
        index, *values = (part.strip() for part in line.split(","))
        if index in ids and len(values) == 2 and all(value.isdigit() for value in values):
            found.append((float(values[0]) / 100, float(values[1]) * 2**20))
    if not found:
        return {}
    busy, memory = zip(*found, strict=True)
    return {"gpu": round(sum(busy) / len(busy), 3), "gpu_memory": sum(memory)}


def nvidia_smi() -> str:
    """A line for each GPU: index, utilization, memory. "" where nvidia-smi gives no answer."""
    command = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used"]
    command.append("--format=csv,noheader,nounits")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    return ""


def default_shm() -> int:
    """Half of this machine's memory, in bytes: the default size of a machine's own /dev/shm."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
