"""A Docker engine: its images, its disk, and its refusals as errors of the factory.

Builds go through buildx (buildx.py), everything else through the docker SDK.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.engine import buildx
from builder.engine.buildx import BuildRequest, BuiltImage
from builder.engine.progress import first_line, numbers
from builder.registry import manifests as image_manifests

if TYPE_CHECKING:
    import docker

_ANSWER_SECONDS = 10
_API_SECONDS = 600


@dataclass(frozen=True)
class EngineImage:
    """An image on the engine. Sizes in bytes.

    compressed_bytes: what a pull transfers; None on an engine without the containerd image store.
    """

    reference: str
    image_id: str
    digest: str | None
    compressed_bytes: int | None
    unpacked_bytes: int
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    workdir: str
    created: str
    layers: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class DiskSpace:
    """The file system of the engine's data, in bytes."""

    path: Path
    free: int
    total: int


@dataclass(frozen=True)
class Engine:
    """An engine that answered, and the buildx that fits it.

    Docker, or Podman behind a socket that speaks Docker's API.
    """

    origin: Literal["machine", "private"]
    host: str
    """What DOCKER_HOST is set to."""
    version: str
    buildx: tuple[str, ...]
    """How buildx is called, without a subcommand."""
    buildx_version: str
    """"" where there is no buildx."""
    containerd_store: bool
    """Whether images are kept as a registry would get them (digests, compressed layers)."""
    data: Path
    """The engine's data root, on the engine's machine."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment of client programs, whole."""
    product: Literal["Docker", "Podman"] = "Docker"
    architecture: str = "amd64"
    """Of the engine's machine, by its name in images."""
    rootless: bool = False

    @property
    def release(self) -> tuple[int, ...]:
        """The first two numbers of the version."""
        return numbers(self.version)

    @property
    def knows_content(self) -> bool:
        """Whether `image` tells which layers of an image are there (API 1.48 with containerd)."""
        return self.containerd_store and self.release >= (28, 0)

    @cached_property
    def client(self) -> "docker.DockerClient":
        """The SDK's client. A call waits ten minutes at most."""
        return sdk_client(self.host, self.environment, _API_SECONDS)

    def image(self, reference: str) -> EngineImage | None:
        """The image of this name, digest or id. None if the engine does not have it."""
        from docker.errors import NotFound

        api: Any = self.client.api
        try:
            # `manifests` (API 1.48) tells what the layers weigh compressed and unpacked
            answer = api._get(api._url("/images/{0}/json", reference), params={"manifests": 1})
            found: dict[str, Any] = api._result(answer, json=True)
        except NotFound:
            return None
        except Exception as error:
            raise self._not_answering(error) from error
        return _image(reference, found)

    def disk(self) -> DiskSpace | None:
        """The disk that the engine keeps its images on. None where it is not seen from here: it is
        another machine's (also the virtual one of Docker Desktop), or this user may not look."""
        if not self.host.startswith(("unix://", "npipe://")):
            return None
        try:
            usage = shutil.disk_usage(self.data)
        except OSError:
            return None
        return DiskSpace(self.data, usage.free, usage.total)

    def build(self, request: BuildRequest, on_event: OnEvent = ignore) -> BuiltImage:
        """Build one image. Returns when it is on the engine or in the registry.

        Raises BuildFailed for a step that failed, and OutsideError for an engine that is gone, a
        full disk, a base or a registry that refused. Whatever ends the call ends the build, too.
        Finished steps stay in BuildKit's cache, and the next build goes on from there.
        """
        return buildx.build(self, request, on_event)

    def answers(self) -> bool:
        """Whether the engine answers within ten seconds."""
        try:
            return bool(sdk_client(self.host, self.environment, _ANSWER_SECONDS).ping())
        except Exception:
            return False

    def _not_answering(self, error: Exception) -> OutsideError:
        return OutsideError(
            f"the engine at {self.host} does not answer: {first_line(str(error))}",
            "builder doctor shows its state; builder engine start starts the private one",
        )


def sdk_client(host: str, environment: Mapping[str, str], timeout: int) -> "docker.DockerClient":
    """The SDK's client for an engine; timeout in seconds for each call."""
    import docker

    return docker.DockerClient.from_env(
        environment={**environment, "DOCKER_HOST": host}, timeout=timeout
    )


@contextlib.contextmanager
def refusals(image: str, fix: str = "run `builder build` first") -> Iterator[None]:
    """Turn what the SDK raises about a container of `image` into an OutsideError of one line.

    fix: what to do if the engine does not have the image.
    """
    import requests
    from docker.errors import APIError, ImageNotFound

    try:
        yield
    except ImageNotFound:
        raise OutsideError(f"the engine holds no image {image}", fix) from None
    except APIError as error:
        said = error.explanation or error
        raise OutsideError(f"the engine refused: {said}", "see `builder doctor`") from error
    except requests.exceptions.RequestException as error:
        raise OutsideError(
            f"the engine does not answer: {error}", "see `builder engine status`"
        ) from error


def _image(reference: str, found: Mapping[str, Any]) -> EngineImage:
    config = found.get("Config") or {}
    descriptor = found.get("Descriptor") or {}
    manifests = [
        m for m in found.get("Manifests") or [] if m.get("Kind") == "image" and m["Available"]
    ]
    sizes = [m["Size"]["Content"] for m in manifests]
    unpacked = [m["ImageData"]["Size"]["Unpacked"] for m in manifests]
    return EngineImage(
        reference=reference,
        image_id=found["Id"],
        digest=descriptor.get("digest"),
        compressed_bytes=sizes[0] if sizes else None,
        unpacked_bytes=unpacked[0] if unpacked else int(found.get("Size") or 0),
        labels=dict(config.get("Labels") or {}),
        environment=image_manifests.environment(config),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "/",
        created=found.get("Created") or "",
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        tags=tuple(found.get("RepoTags") or ()),
    )
