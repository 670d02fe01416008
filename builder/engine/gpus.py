"""The GPUs of this machine that its engine gives to containers, as the driver lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.core.errors import OutsideError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import docker

DRIVER: Final = Path("/proc/driver/nvidia")
"""Where the kernel module of NVIDIA's driver says its version, and which GPUs it has."""


@dataclass(frozen=True)
class MachineGpu:
    id: str
    """As the engine calls it."""
    name: str
    """As the driver calls it: "Tesla V100-SXM2-16GB"; "" where it does not say."""


def of_machine(client: docker.DockerClient) -> tuple[MachineGpu, ...]:
    """Return the GPUs that the engine gives to containers; () without their runtime."""
    if "nvidia" not in (client.info().get("Runtimes") or {}):
        return ()
    places = sorted((DRIVER / "gpus").glob("*"))
    return tuple(MachineGpu(str(index), _name(place)) for index, place in enumerate(places))


def require(client: docker.DockerClient) -> tuple[MachineGpu, ...]:
    """Return them; there is one at least. Raises OutsideError that says what the machine lacks."""
    if found := of_machine(client):
        return found
    if not (DRIVER / "version").is_file():
        what = f"this machine has no driver of NVIDIA's ({DRIVER}/version)"
        raise OutsideError(what, "take a machine with a GPU and its driver")
    if not any((DRIVER / "gpus").glob("*")):
        what = f"driver {driver()} is here, and no GPU ({DRIVER}/gpus)"
        raise OutsideError(what, "take a machine with a GPU: nvidia-smi lists them")
    raise OutsideError(
        "the engine gives no GPU to containers: it has no runtime called nvidia",
        "install NVIDIA's container toolkit, then: nvidia-ctk runtime configure --runtime=docker",
    )


def driver() -> str:
    """Return the driver's version, "550.54.15"; "" where it does not say."""
    match = re.search(r"\s(\d+\.\d[\d.]*)\s", _text(DRIVER / "version").partition("\n")[0])
    return match[1] if match else ""


def requested(ids: Sequence[str]) -> dict[str, Any]:
    """Return the options of a container that gets these GPUs, by their ids."""
    from docker.types import DeviceRequest

    request = DeviceRequest(device_ids=list(ids), capabilities=[["gpu"]])
    return {"device_requests": [request]} if ids else {}


def _name(place: Path) -> str:
    match = re.search(r"^Model:\s*(.*\S)", _text(place / "information"), re.MULTILINE)
    return match[1] if match else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
