"""Checks of what a build needs on this machine, each with its remedy."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from builder import registry
from builder.core import network, system
from builder.core.checkup import Finding
from builder.core.errors import FactoryError, OutsideError, refusal
from builder.core.retry import Retry
from builder.core.settings import Settings
from builder.engine import Engine, NoEngine, buildx, connect, private

BUILD_BYTES = 25_000_000_000
"""Disk that a CUDA image takes on the engine: wheels, unpacked files, compressed layers."""


def examine(settings: Settings) -> tuple[Finding, ...]:
    """All findings about this machine. Starts nothing and changes nothing."""
    engine: Engine | None = None
    refused: FactoryError | None = None
    try:
        engine = connect(settings, start=False)
    except FactoryError as error:
        refused = error
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("python", _python),
        ("engine", lambda: _engine(engine, refused)),
        ("platform", lambda: _platform(engine)),
        ("disk", lambda: _disk(engine)),
        ("registry", lambda: _registry(settings)),
        ("network", _network),
    )
    return tuple(finding for name, check in checks for finding in _asked(name, check))


def _asked(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what the system or the outside refuses is one, too."""
    try:
        yield from check()
    except FactoryError as error:
        yield Finding(name, "bad", error.message, error.fix)
    except OSError as error:
        said = refusal(error) or OutsideError(str(error), "let this user read and write there")
        yield Finding(name, "bad", said.message, said.fix)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} at {sys.executable}")


def _engine(engine: Engine | None, refused: FactoryError | None) -> Iterator[Finding]:
    if engine is None:
        assert refused is not None
        if isinstance(refused, NoEngine) and os.geteuid() == 0:
            seen = "no engine runs; a build brings and starts the private one"
            yield Finding("engine", "note", seen, "to start it now: builder engine start")
        elif isinstance(refused, NoEngine):
            yield Finding(
                "engine",
                "bad",
                f"{refused.message.partition(';')[0]}, and the private one needs root",
                "install Docker, Docker without root, or Podman (set DOCKER_HOST to its socket)",
            )
        else:
            yield Finding("engine", "bad", refused.message, refused.fix)
        return
    whose = "this machine's own" if engine.origin == "machine" else "the private one"
    rootless = ", without root" if engine.rootless else ""
    seen = f"{engine.product} {engine.version}, {whose}{rootless}, at {engine.host}"
    yield Finding("engine", "ok", seen)
    try:
        buildx.require(engine)
        yield Finding("buildx", "ok", engine.buildx_version)
    except OutsideError as error:
        yield Finding("buildx", "note", error.message, error.fix)
    if engine.containerd_store:
        yield Finding("image store", "ok", "containerd: it keeps an image as a registry gets it")
    else:
        seen = "no containerd store: it keeps layers unpacked, and a push packs them with gzip"
        remedy = ""
        if engine.product == "Docker" and engine.release >= (25, 0):
            setting = '"features": {"containerd-snapshotter": true}'
            remedy = f"it may be switched on in /etc/docker/daemon.json: {setting}"
        yield Finding("image store", "note", seen, remedy)


def _platform(engine: Engine | None) -> Iterator[Finding]:
    architecture = engine.architecture if engine else system.architecture()
    if architecture == "amd64":
        yield Finding("platform", "ok", buildx.PLATFORM)
        return
    yield Finding(
        "platform",
        "note",
        f"images are for {buildx.PLATFORM}, this engine is {architecture}: what a build runs, and"
        " the smoke run, run emulated and slowly; kernels for amd64 are not tried here",
        "let a machine with amd64 prove the image: builder cloud build, or a CI runner; if the"
        ' engine says "exec format error", install QEMU (binfmt, qemu-user-static)',
    )


def _disk(engine: Engine | None) -> Iterator[Finding]:
    import shutil

    disk = engine.disk() if engine else None
    if engine and disk is None:
        yield Finding(
            "disk",
            "note",
            f"the engine's data is not seen from here ({engine.data}); a CUDA image needs"
            f" {BUILD_BYTES / 1e9:.0f} GB there",
            f"{engine.product.lower()} system df says what is used",
        )
        return
    place = disk.path if disk else _existing(private.data_folder())
    free = disk.free if disk else shutil.disk_usage(place).free
    enough = free >= BUILD_BYTES
    seen = f"{free / 1e9:.0f} GB free at {place}; a CUDA image needs {BUILD_BYTES / 1e9:.0f}"
    remedy = "" if enough else "docker system prune --all, or move the data: BUILDER_ENGINE_DIR"
    yield Finding("disk", "ok" if enough else "bad", seen, remedy)


def _existing(path: Path) -> Path:
    """The folder itself or the nearest one above it that is there and that this user sees."""
    for one in (path, *path.parents):
        with contextlib.suppress(OSError):
            if one.exists():
                return one
    return Path(path.anchor)


def _registry(settings: Settings) -> Iterator[Finding]:
    if not settings.registry:
        yield Finding(
            "registry", "note", "none is set: images stay on the engine",
            'write registry = "HOST/PATH" in builder.toml, or use --registry',
        )  # fmt: skip
        return
    where = registry.parse(settings.registry)
    with registry.Registry(where.host, Retry(attempts=2)) as there:
        there.head(where.repository, "latest")
        known = there.credentials
    who = f"logged in as {known.username or 'a token'} ({known.source})" if known else "anonymous"
    yield Finding("registry", "ok", f"{where.host} answers, {who}")


def _network() -> Iterator[Finding]:
    found = network.discover().summary()
    for line in found:
        yield Finding("network", "ok", f"{line}: given to builds as a secret")
    if not found:
        yield Finding("network", "ok", "no CA, proxy or mirror of its own")
