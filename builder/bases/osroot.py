"""The OS root: Debian's required packages, apt, Python and what image.yaml adds, as one layer.

The factory unpacks the required packages, which makes a container able to run dpkg. In it Debian's
own scripts install and configure every package, without network and with an environment that holds
nothing of this machine. The container's files, normalised, are the layer. The same packages give
the same bytes on every engine.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from builder.bases import deb, debs, normal, seed
from builder.bases.assembled import assemble
from builder.bases.layer import Compression, Layer, LayerPlan
from builder.bases.loading import load
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter
from builder.core import files
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.engine import buildx, containers, refusals

if TYPE_CHECKING:
    from docker.models.containers import Container

    from builder.core.debian import Archives
    from builder.engine import Engine
    from builder.lock.debs import Deb

PLATFORM: Final = "linux/amd64"
KIND: Final = "training-image-factory.os-root"
"""The label of the containers and images that a root is made with."""
REPOSITORY: Final = "training-os-root"

_RECIPE: Final = "2"
"""Part of the key. Raise it where the code makes other bytes from the same packages."""
_ENVIRONMENT: Final = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LC_ALL=C.UTF-8",
    "TZ=UTC",
    "PYTHONHASHSEED=0",
    "PERL_HASH_SEED=0",
    "DEBIAN_FRONTEND=noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN=true",
)


@dataclass(frozen=True)
class Root:
    """The packages of an OS root. required: Debian's required ones and apt, with all they need.
    added: Python, the certificates, and what image.yaml adds."""

    suite: str
    required: tuple[Deb, ...]
    added: tuple[Deb, ...] = ()

    @property
    def packages(self) -> tuple[Deb, ...]:
        """All packages, sorted by name."""
        return tuple(sorted((*self.required, *self.added)))

    def plan(self, compression: Compression) -> LayerPlan:
        """Its layer."""
        each = (text for one in (self.required, self.added) for text in _texts(one))
        return LayerPlan(
            files.hash_of(_RECIPE, seed.RECIPE, normal.RECIPE, str(compression), *each),
            f"Debian {self.suite}",
            tuple(f"{one.name} {one.version}" for one in self.packages),
            sum(one.bytes for one in self.packages),
            "Debian's required packages, apt, Python, certificates, and image.yaml's `apt`",
        )


def _texts(packages: Iterable[Deb]) -> Iterator[str]:
    for one in sorted(packages):
        yield from (one.name, one.version, one.sha256)
    yield ""


def make(
    root: Root,
    engine: Engine,
    archives: Archives,
    store: Store,
    compression: Compression,
    on_event: OnEvent = ignore,
) -> Layer:
    """The root's layer: from the store, else made with the engine.

    Raises OutsideError where a package cannot be had or configured, or where the engine refuses.
    """
    key = root.plan(compression).key
    with files.locked(store.folder / f".{key}.lock"):
        if found := store.find(key):
            return found
        paths = debs.fetch(root.packages, archives, on_event)
        name = f"OS root: Debian {root.suite} from {len(paths)} packages"
        with step(name, on_event) as making, refusals(REPOSITORY):
            layer = _make(root, paths, engine, store, compression, making)
            making.detail = f"{layer.blob.size / 1e6:.0f} MB"
    return layer


def accounts(store: Store, layer: Layer) -> tuple[str, str]:
    """The texts of /etc/passwd and /etc/group in a root's layer."""
    found = normal.texts(store.path(layer), ("etc/passwd", "etc/group"))
    return found["etc/passwd"], found["etc/group"]


# --- making it ------------------------------------------------------------------------------------


def _make(
    root: Root,
    paths: dict[Deb, Path],
    engine: Engine,
    store: Store,
    compression: Compression,
    making: RunningStep,
) -> Layer:
    newest = max(deb.built(path) for path in paths.values())
    if time.time() < newest:
        raise OutsideError(
            f"this machine's clock is behind the newest package, of {time.ctime(newest)}",
            "set the clock",
        )
    key = root.plan(compression).key
    with TemporaryDirectory(dir=_folder(store), prefix=".root.") as scratch, store.writing() as out:
        with _container(root, paths, newest, engine, Path(scratch)) as container:
            _run(engine, container, making)
            exported = Path(scratch) / "exported.tar"
            with exported.open("wb") as file:
                pieces: Any = container.export(chunk_size=1 << 20)
                file.writelines(pieces)
        writer = LayerWriter(out, compression)
        with exported.open("rb") as file:
            normal.write(file, newest, writer)
        return store.keep(out, writer.close(key))


def _folder(store: Store) -> Path:
    store.folder.mkdir(parents=True, exist_ok=True)
    return store.folder


@contextlib.contextmanager
def _container(
    root: Root, paths: dict[Deb, Path], newest: int, engine: Engine, scratch: Path
) -> Iterator[Container]:
    """A container of the unpacked packages, which will install all packages when it is started."""
    unpacked = Store(scratch / "seed")
    required = [(one.name, paths[one]) for one in sorted(root.required)]
    added = [(one.name, paths[one]) for one in sorted(root.added)]
    with unpacked.writing() as out:
        writer = LayerWriter(out, Compression("gzip", 0))  # it goes no further than the engine
        seed.write(writer, root.suite, required, added)
        layer = unpacked.keep(out, writer.close(seed.SCRIPT))
    command = ["/usr/bin/env", "-i", *_ENVIRONMENT, f"SOURCE_DATE_EPOCH={newest}"]
    with container_of(
        engine, KIND, layer, unpacked, [*command, "/bin/sh", f"/{seed.SCRIPT}"], "none"
    ) as container:
        yield container


@contextlib.contextmanager
def container_of(
    engine: Engine, kind: str, layer: Layer, store: Store, command: Sequence[str], network: str
) -> Iterator[Container]:
    """A container of one layer that was not started. After it, neither it nor its image is left.

    kind: the label of both, by which the next run removes what a killed one left. network: the
    engine's name for its network.
    """
    containers.sweep(engine.client, kind)
    name = f"{REPOSITORY}:{secrets.token_hex(8)}"
    labels = containers.labels(kind, name)
    container = None
    try:
        load(engine, assemble([(layer, kind)], {"Labels": labels}), store.path, name)
        container = engine.client.containers.create(
            name,
            list(command[1:]),
            entrypoint=[command[0]],
            hostname=None if network == "host" else "localhost",
            labels=labels,
            network_mode=network,
            platform=PLATFORM,
            user="0:0",
        )
        yield container
    finally:
        if container is not None:
            container.remove(force=True, v=True)
        with contextlib.suppress(Exception):  # it may never have been loaded
            engine.client.images.remove(name, force=True)


def _run(engine: Engine, container: Container, making: RunningStep) -> None:
    """Run Debian's scripts. Raises OutsideError with the line of a script that failed."""
    said: list[str] = []

    def heard(line: str) -> None:
        said.append(line)
        making.log(line)

    ended = threading.Event()
    containers.follow(container, heard, ended.set)
    container.start()
    status = container.wait()["StatusCode"]
    ended.wait(10)
    if status:
        raise _failed(engine, status, said)


def _failed(engine: Engine, status: int, said: Sequence[str]) -> OutsideError:
    """What went wrong, from what dpkg and the packages' scripts printed."""
    if any("No space left on device" in line for line in said):
        return buildx.full(engine)
    at = next((n for n, line in enumerate(said) if line.startswith("dpkg: error processing")), None)
    if at is None:
        last = next((line for line in reversed(said) if line.strip()), "it printed nothing")
        return OutsideError(
            f"the OS root could not be made (exit code {status}): {last}",
            "builder doctor shows the engine's state",
        )
    what = said[at].removeprefix("dpkg: error processing ").rstrip(":")
    before = said[at - 1] if at else ""
    return OutsideError(
        f"Debian's package could not be configured: {what}: {before.strip()}",
        "take the package out of image.yaml's `apt`, or choose another version: builder lock",
    )
