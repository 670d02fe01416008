"""Where a private engine lies: its data folder, its sockets, its names, its address range."""

import ipaddress
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.core import files

ENVIRONMENT = "BUILDER_ENGINE_DIR"
BRIDGE_PREFIX = "tif-"


@dataclass(frozen=True)
class Endpoint:
    """A running engine: where it listens, and the client programs that fit it."""

    host: str
    """What DOCKER_HOST is set to."""
    bin: Path
    """Folder with `docker` (with the subcommand buildx) and `docker-buildx` (also works alone)."""
    version: str
    """Docker's own version, as the engine answers it."""
    buildx_version: str
    """"" where there is none."""
    containerd_store: bool
    """Whether the engine keeps images as a registry would get them."""
    data: Path
    """The daemon's data root."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to add to a client's environment: DOCKER_HOST, BUILDX_CONFIG, PATH."""

    @property
    def docker(self) -> Path:
        return self.bin / "docker"

    @property
    def buildx(self) -> Path:
        return self.bin / "docker-buildx"


@dataclass(frozen=True)
class EnginePlace:
    """Where an engine lies.

    identity: random, made once for a data folder and kept in it. network: the engine's address
    range; None before the first start.
    """

    data: Path
    identity: str
    network: ipaddress.IPv4Network | None = None

    @property
    def run(self) -> Path:
        """Sockets, and state that ends with the machine. The path is short: that of a socket has at
        most 107 bytes."""
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
    def cgroup(self) -> str:
        return f"/training-image-factory-{self.identity}"

    @property
    def presence(self) -> str:
        """Name of an abstract socket that the daemon holds. Its whole network namespace sees it."""
        return f"training-image-factory-{self.identity}"


def data_folder(data: Path | None = None) -> Path:
    """The engine's data folder: the one given, $BUILDER_ENGINE_DIR, or below XDG_DATA_HOME."""
    if data is None and os.environ.get(ENVIRONMENT):
        data = Path(os.environ[ENVIRONMENT])
    return (data or data_home() / "engine").absolute()


def data_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "training-image-factory"


def load(folder: Path) -> EnginePlace:
    """The engine of a data folder. Gives it an identity if it has none."""
    file = folder / "engine.json"
    if not file.exists():
        files.write(file, json.dumps({"identity": uuid.uuid4().hex[:8]}))
    known = json.loads(file.read_text())
    network = known.get("network")
    return EnginePlace(folder, known["identity"], network and ipaddress.IPv4Network(network))
