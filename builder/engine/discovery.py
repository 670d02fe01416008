"""Finding the engine to use: the machine's own Docker, or the private one."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import private
from builder.engine.docker import Engine, numbers, sdk_client
from builder.engine.progress import first_line

# COPY --link is of Dockerfile 1.4 (Docker 23.0); --progress=rawjson of buildx 0.13.
OLDEST_ENGINE = (23, 0)
OLDEST_BUILDX = (0, 13)

_ANSWER_SECONDS = 10


def connect(settings: Settings, start: bool = True, on_event: OnEvent = ignore) -> Engine:
    """The engine to use: the machine's own, or the private one (`settings.engine` chooses).

    start: whether to start the private engine if it does not run. Raises OutsideError if there is
    no engine, or none that can build.
    """
    if settings.engine == "private":
        return _private(start, on_event)
    try:
        return _machine()
    except OutsideError as refused:
        if settings.engine == "machine":
            raise
        try:
            return _private(start, on_event)
        except OutsideError as error:
            raise OutsideError(
                f"{error.message} (and not this machine's own: {refused.message})", error.fix
            ) from error


def _machine() -> Engine:
    """The engine that `docker` on this machine talks to."""
    host, name = _machine_host()
    environment = dict(os.environ)
    if name:
        # The engine's own builder, whatever builder the user chose: the images of other drivers
        # do not arrive in the engine.
        environment["BUILDX_BUILDER"] = name
    return _engine(host, ("docker", "buildx"), environment)


def _machine_host() -> tuple[str, str]:
    """The engine's host and the name of its builder, which is that of docker's context."""
    from docker.context import ContextAPI

    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"], "default"
    context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT") or None)
    if context is None:
        raise OutsideError(
            "docker's current context does not exist",
            "docker context use default, or builder with --engine private",
        )
    return context.Host or "unix:///var/run/docker.sock", context.Name


def _private(start: bool, on_event: OnEvent) -> Engine:
    endpoint = private.start(on_event=on_event) if start else private.status().endpoint
    if endpoint is None:
        raise OutsideError("no engine is running", "builder engine start")
    # Settings of the user's for another engine must not reach this one; logins stay.
    foreign = (
        "DOCKER_CONTEXT",
        "DOCKER_TLS",
        "DOCKER_TLS_VERIFY",
        "DOCKER_CERT_PATH",
        "BUILDX_BUILDER",
    )
    own = {name: value for name, value in os.environ.items() if name not in foreign}
    # Nothing has to be asked: the factory chose its programs and wrote its configuration.
    return Engine(
        origin="private",
        host=endpoint.host,
        version=endpoint.version,
        buildx=(str(endpoint.buildx),),
        buildx_version=endpoint.buildx_version,
        containerd_store=True,
        data=endpoint.data,
        environment={**own, **endpoint.environment, **_CLIENTS},
    )


_CLIENTS = {"BUILDX_METADATA_PROVENANCE": "disabled", "DOCKER_CLI_HINTS": "false"}


def _engine(host: str, buildx: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    """Ask the machine's engine and its buildx for their versions.

    Raises OutsideError for old ones.
    """
    socket = host.removeprefix("unix://")
    if host.startswith("unix://") and not Path(socket).exists():
        raise OutsideError(f"no Docker engine at {socket}", "start it, or install Docker")
    try:
        info: dict[str, Any] = sdk_client(host, environment, _ANSWER_SECONDS).info()
    except Exception as error:
        raise OutsideError(
            f"the Docker engine at {host} does not answer: {first_line(str(error))}",
            "start it, allow this user to reach it (group docker), or use --engine private",
        ) from error
    version = str(info.get("ServerVersion", ""))
    if numbers(version) < OLDEST_ENGINE:
        raise OutsideError(
            f"the Docker engine at {host} is {version}, which does not have COPY --link",
            "install Docker 23.0 or newer, or use --engine private",
        )
    whole = {**environment, **_CLIENTS}
    return Engine(
        origin="machine",
        host=host,
        version=version,
        buildx=buildx,
        buildx_version=_buildx_version(buildx, whole),
        containerd_store=["driver-type", "io.containerd.snapshotter.v1"]
        in (info.get("DriverStatus") or []),
        data=Path(info.get("DockerRootDir") or "/var/lib/docker"),
        environment=whole,
    )


def _buildx_version(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [*command, "version"], env=environment, capture_output=True, text=True, timeout=30
        )
        said = done.stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    match = re.search(r"buildx v?(\d+\.\d+\S*)", said)
    if not match:
        raise OutsideError(
            f"`{' '.join(command)}` does not work: the engine is there, its builder is not",
            "install docker-buildx (Debian) or docker-buildx-plugin (Docker's own packages)",
        )
    if numbers(match[1]) < OLDEST_BUILDX:
        raise OutsideError(
            f"buildx {match[1]} is too old: it has no --progress=rawjson",
            "install buildx 0.13 or newer, or use --engine private",
        )
    return match[1]
