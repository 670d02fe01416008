"""Checks of what a build needs on this machine: engine, disk, registry, network."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from builder import registry
from builder.config import debian, network
from builder.core import system
from builder.core.docker_sdk import NoEngine
from builder.core.errors import FactoryError, OutsideError
from builder.core.findings import DoctorFinding, check
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.engine import PLATFORM, Engine, buildx, private
from builder.engine.discovery import connect

BUILD_BYTES: Final = 25_000_000_000
"""Disk that a CUDA image takes on the engine: wheels, unpacked files, compressed layers."""


@dataclass(frozen=True)
class Machine:
    settings: Settings

    @cached_property
    def engine(self) -> Engine | FactoryError:
        """The engine that runs, or why there is none. Starts nothing."""
        try:
            return connect(self.settings, start=False)
        except FactoryError as error:
            return error


@check(Machine, "engine")
def engine(machine: Machine) -> Iterator[DoctorFinding]:
    engine = machine.engine
    if isinstance(engine, Engine):
        owner = "this machine's own" if engine.origin == "machine" else "the private one"
        rootless = ", without root" if engine.rootless else ""
        message = f"{engine.product} {engine.version}, {owner}{rootless}, at {engine.host}"
        yield DoctorFinding("engine", "ok", message)
    elif not isinstance(engine, NoEngine):
        yield DoctorFinding("engine", "error", engine.message, engine.fix)
    elif os.geteuid() == 0:
        message = "no engine runs; a build brings and starts the private one"
        yield DoctorFinding("engine", "warning", message, "to start it now: builder engine start")
    else:
        message = f"{engine.message.partition(';')[0]}, and the private one needs root"
        fix = "install Docker, Docker without root, or Podman (set DOCKER_HOST to its socket)"
        yield DoctorFinding("engine", "error", message, fix)


@check(Machine, "buildx")
def dockerfiles(machine: Machine) -> Iterator[DoctorFinding]:
    if not isinstance(machine.engine, Engine):
        return
    try:
        buildx.require(machine.engine)
        yield DoctorFinding("buildx", "ok", machine.engine.buildx_version)
    except OutsideError as error:
        yield DoctorFinding("buildx", "warning", error.message, error.fix)


@check(Machine, "platform")
def platform(machine: Machine) -> Iterator[DoctorFinding]:
    engine = machine.engine
    architecture = engine.architecture if isinstance(engine, Engine) else system.architecture()
    if architecture == "amd64":
        yield DoctorFinding("platform", "ok", PLATFORM)
        return
    yield DoctorFinding(
        "platform",
        "warning",
        f"images are for {PLATFORM}, this engine is {architecture}: what a build runs, and the"
        " smoke run, run emulated and slowly; kernels for amd64 are not tried here",
        "let a machine with amd64 prove the image: builder cloud build, or a CI runner; if the"
        ' engine says "exec format error", install QEMU (binfmt, qemu-user-static)',
    )


@check(Machine, "disk")
def disk(machine: Machine) -> Iterator[DoctorFinding]:
    engine = machine.engine if isinstance(machine.engine, Engine) else None
    space = engine.disk() if engine else None
    if engine and space is None:
        message = f"the engine's data is not visible from here ({engine.data})"
        needs = f"a CUDA image needs {BUILD_BYTES / 1e9:.0f} GB there"
        fix = f"{engine.product.lower()} system df says what is used"
        yield DoctorFinding("disk", "warning", f"{message}; {needs}", fix)
        return
    folder = space.path if space else _existing(private.data_folder())
    free = space.free if space else shutil.disk_usage(folder).free
    message = f"{free / 1e9:.0f} GB free at {folder}; a CUDA image needs {BUILD_BYTES / 1e9:.0f}"
    if free >= BUILD_BYTES:
        yield DoctorFinding("disk", "ok", message)
    else:
        fix = "docker system prune --all, or move the data: BUILDER_ENGINE_DIR"
        yield DoctorFinding("disk", "error", message, fix)


@check(Machine, "registry")
def images(machine: Machine) -> Iterator[DoctorFinding]:
    if not machine.settings.registry:
        fix = 'write registry = "HOST/PATH" in builder.toml, or use --registry'
        yield DoctorFinding("registry", "warning", "none is set: images stay on the engine", fix)
        return
    name = registry.parse(machine.settings.registry)
    with registry.Registry(name.host, Retry(attempts=2)) as client:
        client.head(name.repository, "latest")
        login = client.credentials
    who = f"logged in as {login.username or 'a token'} ({login.source})" if login else "anonymous"
    yield DoctorFinding("registry", "ok", f"{name.host} answers, {who}")


@check(Machine, "network")
def proxies(_: Machine) -> Iterator[DoctorFinding]:
    lines = [*network.discover().summary()]
    if mirror := debian.host_apt().mirror:
        lines.append(f"Debian mirror {network.without_login(mirror.archive.uri)}")
    for line in lines:
        yield DoctorFinding("network", "ok", f"{line}: given to builds as a secret")
    if not lines:
        yield DoctorFinding("network", "ok", "no CA, proxy or mirror of its own")


def _existing(path: Path) -> Path:
    """Return the nearest folder at or above `path` that is there and that this user may see."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            if folder.exists():
                return folder
    return Path(path.anchor)
