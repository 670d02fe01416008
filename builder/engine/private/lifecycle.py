"""Starting and stopping the private engine, one command at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from builder.core import files, system
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.engine.docker import CLIENTS, Engine
from builder.engine.private import daemon, network, programs
from builder.engine.private.instance import EngineInstance, data_folder, load
from builder.engine.private.programs import NEWEST, DockerRelease, Software

_FOREIGN: Final = (
    "DOCKER_CONTEXT",
    "DOCKER_TLS",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "BUILDX_BUILDER",
)
"""Variables that a user has set for another engine: they must not reach this one."""


@dataclass(frozen=True)
class EngineStatus:
    state: Literal["running", "stopped", "failed"]
    data: Path
    engine: Engine | None = None
    pid: int | None = None
    """Dockerd's, if this PID namespace can see it."""
    version: str = ""
    detail: str = ""


def start(
    data: Path | None = None, on_event: OnEvent = ignore, release: DockerRelease = NEWEST
) -> Engine:
    """Start the private engine if it does not run. Return when its API answers.

    release: the Docker that is started; one that runs already stays as it is. Raises OutsideError
    without root, without Debian's packages, or if dockerd does not start.
    """
    folder = data_folder(data)
    if os.geteuid() != 0:
        raise OutsideError(
            "the private engine needs root: containers need mounts and namespaces",
            "run as root, or install Docker and let the factory use it (engine = machine)",
        )
    with files.locked(folder / "lock"):
        instance = load(folder)
        if version := daemon.ping(instance.socket):
            return _engine(instance, version)
        software = programs.install(on_event, release)
        with step("private engine", on_event) as starting:
            daemon.end(instance)
            instance = network.with_network(instance, software)
            version = daemon.await_api(instance, daemon.launch(instance, software))
            starting.detail = f"Docker {version}"
        return _engine(instance, version)


def stop(data: Path | None = None) -> bool:
    """End the engine and everything it started. Images stay. Return False if nothing ran."""
    folder = data_folder(data)
    if not (folder / "engine.json").exists():
        return False
    with files.locked(folder / "lock"):
        instance = load(folder)
        ran = daemon.end(instance)
        if instance.network and instance.software:
            with contextlib.suppress(OSError, OutsideError):  # the programs may be gone
                network.take_down(instance.network, Software.read(instance.software))
        network.remove_bridge(instance.bridge)
        daemon.remove_cgroups(instance)
        return ran


def remove(data: Path | None = None) -> None:
    """Stop the engine and delete its images, containers and caches. The programs stay."""
    folder = data_folder(data)
    stop(folder)
    if (folder / "engine.json").exists():
        with files.locked(folder / "lock"):
            for name in ("docker", "buildx"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in ("engine.json", "daemon.json", "dockerd.log"):
                (folder / name).unlink(missing_ok=True)


def status(data: Path | None = None) -> EngineStatus:
    """Return whether the engine of this data folder answers. Starts and changes nothing."""
    folder = data_folder(data)
    if not (folder / "engine.json").exists():
        return EngineStatus("stopped", folder, detail="never started")
    instance = load(folder)
    pid = daemon.pid(instance)
    if version := daemon.ping(instance.socket):
        return EngineStatus("running", folder, _engine(instance, version), pid, version)
    if pid:
        detail = f"does not answer, see {instance.log}"
        return EngineStatus("failed", folder, pid=pid, detail=detail)
    return EngineStatus("stopped", folder)


def _engine(instance: EngineInstance, version: str) -> Engine:
    """Return the engine that runs, asking nothing. Raises OSError where its programs are gone."""
    software = Software.read(instance.software or Path("/nonexistent"))
    own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    host = f"unix://{instance.socket}"
    return Engine(
        origin="private",
        host=host,
        version=version,
        buildx=(str(software.bin / "docker-buildx"),),
        buildx_version=software.versions.get("docker-buildx", "").partition("-")[0],
        containerd_store=software.has_containerd_store,
        data=instance.data / "docker",
        environment={
            **own,
            **CLIENTS,
            "DOCKER_HOST": host,
            "BUILDX_CONFIG": str(instance.data / "buildx"),
            "PATH": f"{software.bin}:{os.environ.get('PATH', os.defpath)}",
        },
        architecture=system.architecture(),
    )
