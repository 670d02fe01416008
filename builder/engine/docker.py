"""A Docker engine: its images and its disk.

Everything goes through Docker's SDK, except the build of a Dockerfile (builder/engine/buildx.py)
and single questions to an engine that listens on a socket of this machine (`ask`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from builder.core import docker_sdk
from builder.core.errors import OutsideError

if TYPE_CHECKING:
    import docker

PLATFORM: Final = "linux/amd64"
"""What every image is for, on whatever machine it is built."""

CLIENTS: Final = {"BUILDX_METADATA_PROVENANCE": "disabled", "DOCKER_CLI_HINTS": "false"}
"""Variables for every client program."""

_ANSWER_SECONDS: Final = 10
_API_SECONDS: Final = 600


@dataclass(frozen=True)
class EngineImage:
    """Sizes in bytes."""

    image_id: str
    """The engine's name of the image: the digest of its manifest or of its configuration."""
    digest: str | None
    compressed_bytes: int | None
    """What a pull transfers; None on an engine without the containerd image store."""
    unpacked_bytes: int
    labels: Mapping[str, str]
    layers: tuple[str, ...]


@dataclass(frozen=True)
class DiskSpace:
    """The file system of the engine's data, in bytes."""

    path: Path
    free: int
    total: int


@dataclass(frozen=True)
class Engine:
    """An engine that answered: Docker, or Podman behind a socket that speaks Docker's API."""

    origin: Literal["machine", "private"]
    host: str
    """What DOCKER_HOST is set to."""
    version: str
    buildx: tuple[str, ...]
    """How buildx is called, without a subcommand."""
    buildx_version: str
    """"" where there is none."""
    containerd_store: bool
    """Whether the engine keeps images as a registry would get them (digests, compressed layers)."""
    data: Path
    """The engine's data folder, on its own machine."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The whole environment of client programs."""
    product: Literal["Docker", "Podman"] = "Docker"
    architecture: str = "amd64"
    """Of the engine's machine, by its name in images."""
    rootless: bool = False

    @property
    def release(self) -> tuple[int, ...]:
        return release(self.version)

    @property
    def cli(self) -> str:
        """The docker command, which takes DOCKER_HOST from `environment`."""
        own = self.origin == "private"
        return str(Path(self.buildx[0]).with_name("docker")) if own else "docker"

    @property
    def blobs(self) -> tuple[Path, ...]:
        """The folders in which its containerd may keep the blobs of images, by digest: dockerd's
        own, and that of the machine. They are another machine's where the engine is."""
        roots = (self.data / "containerd" / "daemon", Path("/var/lib/containerd"))
        below = "io.containerd.content.v1.content/blobs/sha256"
        return tuple(root / below for root in roots if self.containerd_store)

    @property
    def knows_content(self) -> bool:
        """Whether `image` tells which layers of an image are there (API 1.48 with containerd)."""
        return self.containerd_store and self.release >= (28, 0)

    @cached_property
    def client(self) -> docker.DockerClient:
        """The SDK's client. A call waits ten minutes at most."""
        return docker_sdk.client(self.host, self.environment, _API_SECONDS)

    def image(self, reference: str) -> EngineImage | None:
        """Return the image of this name, digest or id; None if the engine does not have it.

        Raises OutsideError where the engine does not answer.
        """
        try:
            # `manifests` (API 1.48) tells what the layers weigh compressed and unpacked
            path = f"/images/{quote(reference, safe='/:')}/json?manifests=1"
            answer = ask(self.host, self.environment, path, _API_SECONDS)
            return _image(answer) if answer else None
        except Exception as error:
            raise OutsideError(
                f"the engine at {self.host} does not answer: {docker_sdk.first_line(str(error))}",
                "builder doctor shows its state; builder engine start starts the private one",
            ) from error

    def disk(self) -> DiskSpace | None:
        """Return the disk that the engine keeps its images on; None where it is not visible.

        It may be another machine's (also the virtual one of Docker Desktop), or closed to this
        user.
        """
        if not self.host.startswith(("unix://", "npipe://")):
            return None
        try:
            usage = shutil.disk_usage(self.data)
        except OSError:
            return None
        return DiskSpace(self.data, usage.free, usage.total)

    def disk_full(self) -> OutsideError:
        """Return the error of an engine whose disk is full, with what is free there."""
        disk, free = self.disk(), ""
        if disk:
            free = f": {disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.0f} on {disk.path}"
        return OutsideError(
            f"the engine's disk is full{free}",
            f"free some space, for example: {self.cli} --host {self.host} system prune --all",
        )

    def answers(self) -> bool:
        """Return whether the engine answers within ten seconds."""
        try:
            return bool(ask(self.host, self.environment, "/version", _ANSWER_SECONDS))
        except Exception:
            return False


def release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (28, 5) of 28.5.2+dfsg1."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _image(answer: Mapping[str, Any]) -> EngineImage:
    config = answer.get("Config") or {}
    manifest = next(
        (
            entry
            for entry in answer.get("Manifests") or []
            if entry.get("Kind") == "image" and entry["Available"]
        ),
        None,
    )
    unpacked = manifest["ImageData"]["Size"]["Unpacked"] if manifest else answer.get("Size")
    return EngineImage(
        image_id=answer["Id"],
        digest=(answer.get("Descriptor") or {}).get("digest"),
        compressed_bytes=manifest["Size"]["Content"] if manifest else None,
        unpacked_bytes=int(unpacked or 0),
        labels=dict(config.get("Labels") or {}),
        layers=tuple((answer.get("RootFS") or {}).get("Layers") or ()),
    )


class _Connection(http.client.HTTPConnection):
    """A connection to a socket of this machine."""

    def __init__(self, path: str, timeout: int) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(host: str, environment: Mapping[str, str], path: str, timeout: int) -> Any:
    """Return what an engine answers to a GET, None where it has no such thing.

    A socket of this machine is asked without Docker's SDK: importing that takes 50 ms.
    path: without the API's version, which is the engine's newest. timeout: in seconds. Raises
    OSError, ValueError or HTTPException where it does not answer, and what the SDK raises for an
    engine elsewhere.
    """
    if not host.startswith("unix://"):
        return _ask_by_sdk(docker_sdk.client(host, environment, timeout).api, path)
    with contextlib.closing(_Connection(host.removeprefix("unix://"), timeout)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = json.loads(answer.read() or "null")
    if answer.status == http.client.NOT_FOUND:
        return None
    if answer.status != http.client.OK:
        raise OSError(f"{answer.status}: {(content or {}).get('message', answer.reason)}")
    return content


def _ask_by_sdk(api: Any, path: str) -> Any:
    from docker.errors import NotFound

    try:
        return api._result(api._get(api.base_url + f"/v{api.api_version}{path}"), json=True)
    except NotFound:
        return None


class TransferRefused(Exception):
    """The engine ended the transfer; the text is the engine's."""


def follow(
    stream: Iterable[Mapping[str, Any]], verb: str, progress: Callable[[int, int], object]
) -> int:
    """Follow a push or a pull to its end; return the bytes of the layers.

    The engine answers 200 before it transfers anything, so only this stream reports a failure
    (docker-py#3277). Each message is a JSONMessage of Docker's API: `status` and, for a layer, its
    `id` and `progressDetail`; or `error`.

    verb: "Pushing", or "Downloading". progress: called with the bytes of all layers so far, and of
    those that are known. Raises TransferRefused.
    """
    sent: dict[str, int] = {}
    totals: dict[str, int] = {}
    for message in stream:
        if error := message.get("error") or message.get("errorDetail"):
            raise TransferRefused(error["message"] if isinstance(error, Mapping) else str(error))
        layer, detail = str(message.get("id") or ""), message.get("progressDetail") or {}
        is_layers = message.get("status") == verb and layer
        if is_layers and (total := int(detail.get("total") or 0)):
            sent[layer], totals[layer] = int(detail.get("current") or 0), total
            whole = sum(totals.values())
            progress(min(sum(sent.values()), whole), whole)
    return sum(totals.values())
