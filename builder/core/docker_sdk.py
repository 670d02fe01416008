"""Docker's SDK: where this machine's engine listens, and what the SDK raises, as our errors."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from builder.core.errors import OutsideError

if TYPE_CHECKING:
    import docker

_SOCKET: Final = Path("/var/run/docker.sock")


class NoEngine(OutsideError):
    """This machine has no engine of its own."""


def client(host: str, environment: Mapping[str, str], timeout: int) -> docker.DockerClient:
    """Return the SDK's client for an engine; timeout: seconds for each call."""
    import docker

    return docker.DockerClient.from_env(
        environment={**environment, "DOCKER_HOST": host}, timeout=timeout
    )


@contextlib.contextmanager
def answering(host: str) -> Iterator[None]:
    """Turn whatever goes wrong with the first questions to an engine into one error.

    Raises NoEngine where nothing listens, OutsideError for an engine that does not answer.
    """
    socket = Path(host.removeprefix("unix://"))
    if host.startswith("unix://") and not _exists(socket):
        raise NoEngine(f"no Docker engine at {socket}", "start it, or install Docker")
    try:
        yield
    except Exception as error:
        raise OutsideError(
            f"the Docker engine at {host} does not answer: {first_line(str(error))}",
            _remedy(host, str(error)),
        ) from error


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
        raise OutsideError(f"the engine has no image {image}", fix) from None
    except APIError as error:
        reason = error.explanation or error
        fix = "see `builder doctor`"
        if re.search(r"\bcrun\b.*cgroup", str(reason)):  # of both versions, as Podman 4.3 meets it
            fix = 'write runtime = "runc" under [engine] in /etc/containers/containers.conf'
        raise OutsideError(f"the engine refused: {reason}", fix) from error
    except requests.exceptions.RequestException as error:
        raise OutsideError(
            f"the engine does not answer: {error}", "see `builder engine status`"
        ) from error


def machine_host() -> tuple[str, str]:
    """Return the engine's host and the name of its builder, which is that of docker's context."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"], "default"
    host, name = f"unix://{_SOCKET}", _context_name()
    if name != "default":
        host, name = _of_context(name)
    if host == f"unix://{_SOCKET}" and not _SOCKET.exists():
        others = (path for path in _other_sockets() if path.exists())
        return next((f"unix://{path}" for path in others), host), "default"
    return host, name


def _context_name() -> str:
    """Return the name of docker's current context (docker's manual: "docker context use")."""
    if name := os.environ.get("DOCKER_CONTEXT"):
        return name
    folder = os.environ.get("DOCKER_CONFIG")
    try:
        file = (Path(folder) if folder else Path.home() / ".docker") / "config.json"
        return str(json.loads(file.read_bytes()).get("currentContext") or "default")
    except (OSError, RuntimeError, ValueError, AttributeError, RecursionError):
        return "default"


def _of_context(name: str) -> tuple[str, str]:
    """Return the host of a context of docker, and its name."""
    from docker.context import ContextAPI

    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # whatever is wrong in the files of ~/.docker
        raise OutsideError(
            f"docker's contexts cannot be read: {first_line(str(error))}",
            "repair ~/.docker (docker context ls), or set DOCKER_HOST",
        ) from error
    if context is None:
        raise OutsideError(
            "docker's current context does not exist",
            "docker context use default, or builder with --engine private",
        )
    return str(context.Host or f"unix://{_SOCKET}"), context.Name


def _other_sockets() -> Iterator[Path]:
    """Yield where Docker without root and Podman listen (their manuals: dockerd-rootless.sh, podman
    system service)."""
    if run := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(run) / "docker.sock"
        yield Path(run) / "podman" / "podman.sock"
    yield Path("/run/podman/podman.sock")


def _exists(socket: Path) -> bool:
    """Return whether there is a socket; True where this user may not look."""
    try:
        return socket.exists()
    except PermissionError:
        return True


def _remedy(host: str, reason: str) -> str:
    if "permission denied" in reason.lower():
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "USER"
        return f"let this user reach it: sudo usermod --append --groups docker {user}, log in anew"
    if host.startswith("unix://"):
        return "start it (systemctl start docker), or use --engine private"
    return "check DOCKER_HOST and docker's context (docker context ls), or use --engine private"


def first_line(text: str) -> str:
    """Return the first line that is not empty, at most 400 characters of it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:400]
