"""A private engine on disk: its data folder, its sockets, its names, its address range."""

from __future__ import annotations

import ipaddress
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core import files

ENVIRONMENT: Final = "BUILDER_ENGINE_DIR"
BRIDGE_PREFIX: Final = "tif-"
NAME_PREFIX: Final = "training-image-factory-"


@dataclass(frozen=True)
class EngineInstance:
    data: Path
    identity: str
    """Random, made once for a data folder and kept in it."""
    network: ipaddress.IPv4Network | None = None
    """The engine's address range, None before the first start."""
    software: Path | None = None
    """The folder of its programs, None likewise."""

    @property
    def run(self) -> Path:
        """Sockets, and state that ends with the machine. A socket's path has at most 107 bytes."""
        return Path("/run/training-image-factory") / self.identity

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def log(self) -> Path:
        return self.data / "dockerd.log"

    @property
    def bridge(self) -> str:
        return BRIDGE_PREFIX + self.identity

    @property
    def name(self) -> str:
        """Of an abstract socket that the daemon holds: its whole network namespace sees it."""
        return NAME_PREFIX + self.identity

    @property
    def cgroup(self) -> str:
        return f"/{self.name}"

    def save(self) -> None:
        known = {"identity": self.identity}
        if self.network and self.software:
            known |= {"network": str(self.network), "software": str(self.software)}
        files.write(self.data / "engine.json", json.dumps(known, indent=1))


def data_folder(data: Path | None = None) -> Path:
    """Return the engine's data folder: `data`, $BUILDER_ENGINE_DIR, or one below XDG_DATA_HOME."""
    if data is None and os.environ.get(ENVIRONMENT):
        data = Path(os.environ[ENVIRONMENT])
    return (data or files.data_home() / "engine").absolute()


def load(folder: Path) -> EngineInstance:
    """Return the engine of a data folder. Gives it an identity if it has none."""
    file = folder / "engine.json"
    if not file.exists():
        EngineInstance(folder, uuid.uuid4().hex[:8]).save()
    known = json.loads(file.read_text())
    network, software = known.get("network"), known.get("software")
    return EngineInstance(
        folder,
        known["identity"],
        network and ipaddress.IPv4Network(network),
        software and Path(software),
    )
