"""What GPUDirect needs on GKE, by machine: gpudirect.yaml, read once a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from builder.facts import DATA, read_table


@dataclass(frozen=True)
class Daemon:
    """What moves the data beside the program."""

    name: str
    image: str
    version: str
    """The tag that belongs to the plugin's version."""
    command: tuple[str, ...]
    capabilities: tuple[str, ...]
    devices: tuple[str, ...]
    """In /dev, besides the GPUs."""
    mounts: Mapping[str, str]


@dataclass(frozen=True)
class GpuDirect:
    """One kind of GPUDirect."""

    name: str
    machines: tuple[str, ...]
    plugin: str
    """The version of Google's plugin that the rest is written for."""
    nccl: str
    cuda: str
    """What the plugin is made for; "" where nobody says it."""
    networks: Mapping[str, str]
    """Networks of GKE by the pod's interface, as Google's guide names them."""
    mounts: Mapping[str, str]
    """Folders of the node, and where the program sees them."""
    environment: Mapping[str, str]
    source: str
    """A key of the table's sources."""
    profile: str = ""
    """A script that sets NCCL's variables, "" for none."""
    capabilities: tuple[str, ...] = ()
    daemon: Daemon | None = None


@cache
def _table() -> Mapping[str, Any]:
    return read_table(DATA / "gpudirect.yaml")


@cache
def kinds() -> tuple[GpuDirect, ...]:
    return TypeAdapter(tuple[GpuDirect, ...]).validate_python(_table()["gpudirect"])


def on(machine: str) -> GpuDirect | None:
    """Return the kind that a machine has, None for none."""
    return next((kind for kind in kinds() if machine in kind.machines), None)
