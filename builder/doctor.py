"""Checks of what a build needs on this machine, each with its remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder import registry
from builder.core import network
from builder.core.errors import FactoryError
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.engine import Engine, connect, private

BUILD_BYTES = 25_000_000_000
"""Disk that a CUDA image takes on the engine: wheels, unpacked files, compressed layers."""

State = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. state: "bad" prevents a build, "note" does not."""

    name: str
    state: State
    seen: str
    remedy: str = ""


def examine(settings: Settings) -> tuple[Finding, ...]:
    """All findings about this machine. Starts nothing and changes nothing."""
    engine: Engine | None = None
    refused: FactoryError | None = None
    try:
        engine = connect(settings, start=False)
    except FactoryError as error:
        refused = error
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        lambda: _engine(engine, refused),
        lambda: _disk(engine),
        lambda: _registry(settings),
        _network,
    )
    return tuple(finding for check in checks for finding in check())


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} at {sys.executable}")


def _engine(engine: Engine | None, refused: FactoryError | None) -> Iterator[Finding]:
    if engine is None:
        if os.geteuid() == 0 and private.status().endpoint is None:
            seen = "no engine runs; a build brings and starts the private one"
            yield Finding("engine", "note", seen, "to start it now: builder engine start")
        else:
            why = refused or FactoryError("no engine", "install Docker")
            yield Finding("engine", "bad", why.message, why.fix)
        return
    whose = "this machine's own" if engine.origin == "machine" else "the private one"
    yield Finding("engine", "ok", f"Docker {engine.version}, {whose}, at {engine.host}")
    yield Finding("buildx", "ok", engine.buildx_version)
    if engine.containerd_store:
        yield Finding("image store", "ok", "containerd: digests are known before the push")
    else:
        yield Finding(
            "image store",
            "note",
            "graph driver: sizes and digests are known only after a push, and layers are gzip",
            'switch it on in /etc/docker/daemon.json: "features": {"containerd-snapshotter": true}',
        )


def _disk(engine: Engine | None) -> Iterator[Finding]:
    import shutil

    disk = engine.disk() if engine else None
    if engine and disk is None:
        yield Finding("disk", "note", "the engine is on another machine: its disk is not seen")
        return
    place = disk.path if disk else _existing(private.data_folder())
    free = disk.free if disk else shutil.disk_usage(place).free
    enough = free >= BUILD_BYTES
    seen = f"{free / 1e9:.0f} GB free at {place}; a CUDA image needs {BUILD_BYTES / 1e9:.0f}"
    remedy = "" if enough else "docker system prune --all, or move the data: BUILDER_ENGINE_DIR"
    yield Finding("disk", "ok" if enough else "bad", seen, remedy)


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())


def _registry(settings: Settings) -> Iterator[Finding]:
    if not settings.registry:
        yield Finding(
            "registry", "note", "none is set: images stay on the engine",
            'write registry = "HOST/PATH" in builder.toml, or use --registry',
        )  # fmt: skip
        return
    where = registry.parse(settings.registry)
    try:
        with registry.Registry(where.host, Retry(attempts=2)) as there:
            there.head(where.repository, "latest")
            known = there.credentials
    except FactoryError as error:
        yield Finding("registry", "bad", error.message, error.fix)
        return
    who = f"logged in as {known.username or 'a token'} ({known.source})" if known else "anonymous"
    yield Finding("registry", "ok", f"{where.host} answers, {who}")


def _network() -> Iterator[Finding]:
    try:
        found = network.discover().summary()
    except FactoryError as error:
        yield Finding("network", "bad", error.message, error.fix)
        return
    for line in found:
        yield Finding("network", "ok", f"{line}: given to builds as a secret")
    if not found:
        yield Finding("network", "ok", "no CA, proxy or mirror of its own")
