"""Finding the engine to use: the machine's own Docker, or the private one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builder.core import docker_sdk, system
from builder.core.docker_sdk import NoEngine
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import private
from builder.engine.docker import CLIENTS, Engine, ask, release

OLDEST_ENGINE: Final = (20, 10)
"""The oldest Docker that loads and runs images (tried: 20.10.24); building asks for more."""

_ANSWER_SECONDS: Final = 10


def connect(settings: Settings, start: bool = True, on_event: OnEvent = ignore) -> Engine:
    """Return the engine to use: the machine's own, or the private one (`settings.engine` chooses).

    start: whether to start the private engine if it does not run. Raises OutsideError if there is
    no engine. One that cannot build says so when it shall (buildx.require).
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
            # An engine that is there has to be mended; installing another one would not help.
            fix = error.fix if isinstance(refused, NoEngine) else refused.fix
            raise type(refused)(f"{refused.message}; {error.message}", fix) from error


def _private(start: bool, on_event: OnEvent) -> Engine:
    engine = private.start(on_event=on_event) if start else private.status().engine
    if engine is None:
        raise OutsideError("the private engine does not run", "builder engine start")
    return engine


def _machine() -> Engine:
    """Return the engine that `docker` on this machine talks to.

    Raises NoEngine where there is none, OutsideError for one that does not answer or is too old.
    """
    host, builder = docker_sdk.machine_host()
    # The engine's own builder, whatever builder the user chose: the images of other drivers do not
    # arrive in the engine.
    environment = {**os.environ, **CLIENTS, "BUILDX_BUILDER": builder}
    with docker_sdk.answering(host):
        info: dict[str, Any] = ask(host, environment, "/info", _ANSWER_SECONDS)
        version = ask(host, environment, "/version", _ANSWER_SECONDS)
        components = version.get("Components") or []
    version = str(info.get("ServerVersion", ""))
    podman = any("podman" in str(part.get("Name")).lower() for part in components)
    if not podman and release(version) < OLDEST_ENGINE:
        raise OutsideError(
            f"the Docker engine at {host} is {version}, which the factory does not know",
            "install Docker 20.10 or newer, or use --engine private",
        )
    buildx = ("docker", "buildx")
    store = ["driver-type", "io.containerd.snapshotter.v1"]
    return Engine(
        origin="machine",
        host=host,
        version=version,
        buildx=buildx,
        buildx_version="" if podman else _buildx_version(buildx, environment),
        containerd_store=store in (info.get("DriverStatus") or []),
        data=Path(info.get("DockerRootDir") or "/var/lib/docker"),
        environment=environment,
        product="Podman" if podman else "Docker",
        architecture=system.architecture(str(info.get("Architecture") or "amd64")),
        rootless="name=rootless" in (info.get("SecurityOptions") or []),
    )


def _buildx_version(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return the version of buildx, "" where it does not work."""
    try:
        done = subprocess.run(
            [*command, "version"], env=environment, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"buildx v?(\d+\.\d+\S*)", done.stdout)
    return match[1] if match else ""
