"""A Docker engine: its images, its containers' output, and what a build leaves on it."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import docker
from docker import auth
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_repository_tag
from docker.utils.socket import demux_adaptor, frames_iter
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from cloudbuild_local.errors import OutsideError, masked

OnLine = Callable[[str], None]
"""Takes one line of a log."""

_SECONDS = 600
_REMOVALS, _PAUSE = 3, 0.2
"""How often a removal is tried: the engine refuses some while another one is under way."""
_ERRORS = (APIError, DockerException, RequestException, HTTPError, OSError)


@dataclass(frozen=True)
class Image:
    """An image on the engine."""

    digest: str
    """Of its manifest, or its id where the engine keeps none."""
    has_entrypoint: bool


class Engine:
    """An engine that answered. host: its address, such as unix:///var/run/docker.sock."""

    def __init__(self, host: str, client: docker.DockerClient) -> None:
        self.host = host
        self.api: Any = client.api  # the SDK's low-level client has no types

    @property
    def socket(self) -> str:
        """The path of the engine's socket, "" for an engine that is reached in another way."""
        return self.host.removeprefix("unix://") if self.host.startswith("unix://") else ""

    def image(self, reference: str) -> Image | None:
        """Return the image of this name or digest, None if the engine does not have it."""
        try:
            with explained(reference):
                answer = self.api.inspect_image(reference)
        except MissingError:
            return None
        digest = (answer.get("Descriptor") or {}).get("digest") or answer["Id"]
        return Image(digest, bool((answer.get("Config") or {}).get("Entrypoint")))

    def pull(self, image: str, on_line: OnLine) -> None:
        """Pull an image. Raises OutsideError."""
        try:
            for line in self._transfer(self.api.pull, image):
                on_line(line)
        except _ERRORS as error:
            reason = reason_of(error)
            short = re.sub(r"[@:][^/]*$", "", image)
            fix = f"log in to its registry, or name an image of this engine: --map {short}=LOCAL"
            if "invalid tar header" in reason:
                fix = "its layers are packed with zstd, which Docker reads since 23.0: use gzip"
            raise OutsideError(f"{image}: cannot be pulled: {reason}", fix) from None

    def push(self, image: str, on_line: OnLine) -> str:
        """Push an image. Return its digest in the registry. Raises OutsideError."""
        digest = ""
        try:
            for line in self._transfer(self.api.push, image):
                on_line(line)
                if match := re.search(r"digest: (sha256:[0-9a-f]{64})", line):
                    digest = match[1]
        except _ERRORS as error:
            fix = f"docker login {registry_of(image)}, or call with --no-push"
            raise OutsideError(f"{image}: not pushed: {reason_of(error)}", fix) from None
        return digest

    def _transfer(self, call: Callable[..., Any], image: str) -> Iterator[str]:
        """Pull or push an image. Yield the engine's words about the whole image.

        Raises DockerException. The engine answers 200 before anything is transferred, so a failure
        stands in the stream alone (docker-py#3277).
        """
        name, tag = parse_repository_tag(image)
        for message in call(
            name, tag=tag or "latest", stream=True, decode=True, auth_config=login(image)
        ):
            if error := message.get("error"):
                raise DockerException(str(error))
            if message.get("status") and not message.get("id"):
                yield str(message["status"])

    @contextlib.contextmanager
    def attached(self, container: str) -> Iterator[Iterator[str]]:
        """Attach to a container for the time of the block: the lines that it prints from now on."""
        # without "logs": what a quick container prints while the engine reads its log for that
        # would come twice (moby, daemon/attach.go subscribes before it answers)
        streams = {"stdout": 1, "stderr": 1, "stream": 1}
        with explained("the container's output"):
            connection = self.api.attach_socket(container, streams)
            try:
                frames: Any = frames_iter
                yield lines(demux_adaptor(*frame) for frame in frames(connection, tty=False))
            finally:
                connection._response.close()  # docker-py leaves it open, and Python 3.13 complains

    def remove(self, label: str) -> list[str]:
        """Remove the containers, networks and volumes with this label. Return a line for each that
        stays."""
        api, filters, failed = self.api, {"label": [label]}, list[str]()
        for attempt in range(_REMOVALS):
            time.sleep(_PAUSE if attempt else 0)
            failed.clear()
            for container in api.containers(all=True, filters=filters):
                with _noted(failed, f"container {container['Id'][:12]}"):
                    api.remove_container(container["Id"], force=True, v=True)
            for network in api.networks(filters=filters):
                with _noted(failed, f"network {network['Name']}"):
                    api.remove_network(network["Id"])
            for volume in api.volumes(filters=filters).get("Volumes") or []:
                with _noted(failed, f"volume {volume['Name']}"):
                    api.remove_volume(volume["Name"], force=True)
            if not failed:
                break
        return failed


def connect(host: str | None = None) -> Engine:
    """Return the engine at an address; by default that of DOCKER_HOST, or of docker's context.

    Raises OutsideError if it does not answer.
    """
    host = host or os.environ.get("DOCKER_HOST") or ContextAPI.get_current_context().Host
    host = str(host).replace("http+unix://", "unix://")
    try:
        environment = {**os.environ, "DOCKER_HOST": host}
        client = docker.DockerClient.from_env(environment=environment, timeout=_SECONDS)
        client.ping()
    except _ERRORS as error:
        fix = "start Docker, or name an engine: --engine unix:///path/to/docker.sock"
        what = f"no Docker engine answers at {host}: {reason_of(error)}"
        raise OutsideError(what, fix) from None
    return Engine(host, client)


def login(image: str) -> dict[str, str]:
    """Return this machine's login to the registry of an image, {} for none. Raises OutsideError."""
    try:
        return dict(auth.load_config().resolve_authconfig(registry_of(image)) or {})
    except (DockerException, OSError) as error:
        fix = "log in again, or correct docker's config.json"
        raise OutsideError(f"{image}: no login: {reason_of(error)}", fix) from None


def registry_of(image: str) -> str:
    """Return the registry of an image as logins name it: HOST[:PORT], or docker.io."""
    return str(auth.resolve_repository_name(image)[0])


def lines(stream: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[str]:
    """Yield the lines of stdout and stderr as they come, each whole.

    A line is what a terminal would show: of a progress bar, its last state. Where the engine breaks
    the stream off, the unfinished lines come first and then its error is raised.
    """
    rest = [b"", b""]
    broken: Exception | None = None
    try:
        for pair in stream:
            for side, chunk in enumerate(pair):
                *whole, rest[side] = (rest[side] + (chunk or b"")).split(b"\n")
                yield from map(_line, whole)
    except Exception as error:
        broken = error
    yield from map(_line, filter(None, rest))
    if broken is not None:
        raise broken


def _line(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


class MissingError(OutsideError):
    """The engine does not have what it was asked for."""


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise the SDK's errors inside the block as OutsideError. what: the thing asked for."""
    try:
        yield
    except NotFound as error:
        raise MissingError(f"{what}: {reason_of(error)}", "look at what removes it") from None
    except _ERRORS as error:
        fix = "look at the engine's state: docker info"
        raise OutsideError(f"{what}: the engine refused: {reason_of(error)}", fix) from None


def reason_of(error: Exception) -> str:
    """Return the engine's own words, in one line, without the SDK's words around them."""
    text = str(getattr(error, "explanation", None) or error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return masked(first)[:300]


@contextlib.contextmanager
def _noted(failed: list[str], what: str) -> Iterator[None]:
    """Note a refusal instead of raising it. What is gone already was removed by another run."""
    try:
        yield
    except NotFound:
        pass
    except _ERRORS as error:
        failed.append(f"{what}: {reason_of(error)}")
