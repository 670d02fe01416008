"""Loading an image into an engine, or into a folder for other programs.

An engine gets a streamed archive with only the layers that it lacks. The archive is an OCI image
layout with Docker's own `manifest.json` in it. Which engine reads what, tried on Docker 20.10.24
and 26.1.5 (graph driver overlay2), Docker 28.5.2 (containerd image store) and Podman 5.4.2:

    in the archive                         20.10        26.1         28.5              Podman
    layers packed with zstd                refused      read         read              read
    layers packed with gzip, or plain      read         read         read              read
    OCI layout without manifest.json       refused      refused      read              read
    layers that the engine has, left out   read if all layers below  read              read
                                           are the same, too
    layers that it lacks, left out         refused      refused      taken, unusable   refused

The image's id is the manifest's digest on 28.5, and the configuration's on the others. Neither
changes with the packing of the layers in the archive, because the configuration names the layers as
they are before packing. What 26.1 pulled it pushes as another manifest, with Docker's own types and
gzip; 28.5 pushes the manifest that it got.

An engine does not tell which blobs it has. Its images name their layers before packing, which says
enough: what is left out on that ground is looked at again afterwards, and where the engine then
lacks something, everything is sent.

A pull from a registry on loopback is not faster than a load: 2.3 GB in 20 layers (4.6 GB unpacked)
took the private engine 30 s to load and 35 s to pull on two busy cores, after the upload to that
registry. A base that a registry has already is pulled, by an engine with the containerd store: it
gives the layers out again as they were packed, for what reads them later.
"""

from __future__ import annotations

import contextlib
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from builder.core import docker_sdk, files
from builder.core.docker_sdk import first_line
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.files import EPOCH
from builder.engine import docker
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage, Layer, assemble
from builder.image.tarball import pieces
from builder.reading import tars
from builder.registry import Reference, credentials, manifests
from builder.registry.manifests import OCI_LAYER_ZSTD, blob_path

if TYPE_CHECKING:
    from builder.engine import Engine, EngineImage
    from builder.image.plan import BasePlan

_SECONDS = 3600
"""How long the engine may unpack the layers without a word."""


def load(
    engine: Engine,
    image: AssembledImage,
    store: ContentStore,
    name: str,
    on_event: OnEvent = ignore,
    coming: frozenset[str] = frozenset(),
    end: Callable[[], object] = lambda: None,
) -> EngineImage:
    """Put an image under `name` (REPOSITORY:TAG) into the engine, unless the engine has it.

    coming: layers that the engine has when `end` returns, by their digest before packing. end: is
    called when the others are sent. The engine unpacks nothing before it returns.
    Return the engine's image. Its id is the digest of its manifest or of its configuration,
    whichever this engine uses; the engine checks every layer against the configuration. Raises
    OutsideError where the engine refuses the image or its disk is full.
    """
    with step(f"load {name}", on_event) as loading:
        loaded = present(engine, image, name)
        loading.cached = loaded is not None
        unpack = engine.product == "Docker" and engine.release < (23, 0)  # which read no zstd
        diff_ids = [layer.diff_id for layer in image.layers]
        known = _known(engine, diff_ids, name.rpartition(":")[0]) | (coming & set(diff_ids))
        if loaded is None and known:
            _send(engine, Archive(image, store, name, known, unpack, end), loading)
            loaded = present(engine, image, name)
        if loaded is None:
            reason = _send(engine, Archive(image, store, name, unpack=unpack, end=end), loading)
            loaded = present(engine, image, name)
        if loaded is None:
            raise _not_loaded(engine, name, reason)
        return loaded


def pull(
    engine: Engine,
    image: AssembledImage,
    name: str,
    source: Reference,
    on_event: OnEvent = ignore,
) -> EngineImage | None:
    """Let the engine pull an image by its digest, and put it under `name` (REPOSITORY:TAG).

    The engine compares every byte with the digest, and nothing goes through the store. `source` is
    a repository that has the image. Returns None where the engine does not take it from there: it
    may not reach this machine's registry, or not trust it.
    """
    import requests
    from docker.errors import APIError

    known = credentials.credentials_for(source.host)
    login = known.for_engine() if known else {}
    api: Any = docker_sdk.client(engine.host, engine.environment, _SECONDS).api
    with step(f"pull {name}", on_event) as pulling:
        try:
            stream = api.pull(
                source.name, tag=image.digest, stream=True, decode=True, auth_config=login
            )
            count = docker.follow(stream, "Downloading", pulling.progress)
            pulling.detail = f"{count / 1e6:.0f} MB of {image.compressed_bytes / 1e6:.0f}"
            pulled = present(engine, image, name)
            api.remove_image(f"{source.name}@{image.digest}", noprune=True)
        except (docker.TransferRefused, APIError, requests.RequestException) as error:
            reason = first_line(str(getattr(error, "explanation", None) or error))
            pulling.log(f"the engine does not pull it, so its layers are sent: {reason}")
            return None
        return pulled


def present(engine: Engine, image: AssembledImage, name: str) -> EngineImage | None:
    """Return the image on the engine, whole and under this name; None where it has to be sent."""
    for reference in (name, image.digest, image.config_digest):
        known = engine.image(reference)
        if not (known and known.image_id in (image.digest, image.config_digest)):
            continue
        if engine.knows_content and known.compressed_bytes is None:
            continue  # some of its layers are missing
        if reference == name:
            return known
        repository, _, tag = name.rpartition(":")
        engine.client.api.tag(reference, repository, tag)
        return engine.image(name)
    return None


def reuses_layers(engine: Engine) -> bool:
    """Return whether layers that this engine has may be left out of an archive."""
    return engine.knows_content or not engine.containerd_store


def _known(engine: Engine, diff_ids: Sequence[str], repository: str) -> frozenset[str]:
    """Return the layers of an image, by their digest before packing, that may be left out.

    The engine's images of the same repository are looked at. With Docker's graph drivers the lowest
    layers may be left out, as far as they are those of one such image. With the containerd store
    and with Podman they may be any. The containerd store before 28 cannot say afterwards whether an
    image is whole, and gets all.
    """
    if not reuses_layers(engine):
        return frozenset()
    api: Any = engine.client.api
    images = (engine.image(listed["Id"]) for listed in api.images(repository))
    stacks = [image.layers for image in images if image]
    if engine.containerd_store or engine.product == "Podman":
        return frozenset(diff_ids) & {layer for stack in stacks for layer in stack}
    counts = [0]
    for stack in stacks:
        pairs = zip(diff_ids, stack, strict=False)
        counts.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return frozenset(diff_ids[: max(counts)])


def _send(engine: Engine, archive: Archive, loading: RunningStep) -> str:
    """Stream an archive to the engine. Return the engine's message of an error, "" for none."""
    loading.detail = f"{archive.size / 1e6:.0f} MB of {archive.image.compressed_bytes / 1e6:.0f}"
    stream = archive.stream(lambda count: loading.progress(count, archive.size))
    client: Any = docker_sdk.client(engine.host, engine.environment, _SECONDS)
    message = ""
    try:
        for line in client.api.load_image(stream, quiet=True):
            message = message or str(line.get("error") or "")
            if "unpacking image" in str(line.get("stream")):
                message = message or str(line["stream"]).strip()
    except OSError as error:  # of requests, whose errors of the API are among them
        return message or str(getattr(error, "explanation", None) or error)
    return message


def _not_loaded(engine: Engine, name: str, reason: str) -> OutsideError:
    if "no space left on device" in reason.lower():
        return engine.disk_full()
    return OutsideError(
        f"{name}: the engine did not take the image: {first_line(reason or 'it gives no reason')}",
        "see the engine's log; builder doctor shows its state",
    )


# --- archives and layouts -----------------------------------------------------------------------

_END: Final = bytes(tarfile.RECORDSIZE)


@dataclass(frozen=True)
class Archive:
    """An image as a tar that is made while it is read. It can be read several times."""

    image: AssembledImage
    store: ContentStore
    name: str
    """REPOSITORY:TAG, as an engine will name the image."""
    omit: Collection[str] = frozenset()
    """Digests before packing of the layers that the engine has."""
    unpack: bool = False
    """Send layers of zstd unpacked, for an engine that reads none."""
    end: Callable[[], object] = lambda: None
    """Is called when the layers are sent, before the archive's end."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.image.layers if layer.diff_id not in self.omit)

    @property
    def size(self) -> int:
        """Bytes of the layers as they are packed: what progress is counted in."""
        return sum(layer.blob.size for layer in self.layers)

    def stream(self, progress: Callable[[int], object]) -> Iterator[bytes]:
        """Yield the archive in pieces. progress: called with the bytes of `size` that are sent."""
        for path, content in _documents(self.image, self.name, self.unpack).items():
            yield from (_header(path, len(content)), content, bytes(-len(content) % 512))
        before = 0
        for layer in self.layers:
            with self.store.path(layer).open("rb") as file:
                size, path, content_pieces = layer.blob.size, layer.blob.digest, pieces(file)
                if self.unpack and layer.blob.media_type == OCI_LAYER_ZSTD:
                    size = sum(len(piece) for piece in pieces(tars.unpacked(file)))
                    file.seek(0)
                    path, content_pieces = layer.diff_id, pieces(tars.unpacked(file))
                yield _header(blob_path(path), size)
                for piece in content_pieces:
                    yield piece
                    progress(before + min(file.tell(), layer.blob.size))
                yield bytes(-size % tarfile.BLOCKSIZE)
            before += layer.blob.size
        self.end()
        yield _END


def write_layout(image: AssembledImage, store: ContentStore, name: str, folder: Path) -> None:
    """Write an OCI image layout. The index is written last: until then it is no layout.

    A layer is the store's own file under a second name where the file system can do that. Whoever
    changes it changes the store's, too, which looks at the bytes whenever it gives one out.
    name: REPOSITORY:TAG, as an engine that loads the folder's archive will name the image.
    """
    for layer in image.layers:
        source, to = store.path(layer), folder / blob_path(layer.blob.digest)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            to.hardlink_to(source)
        except OSError:  # another file system
            with source.open("rb") as file, files.replacing(to, 0o644) as copy:
                copy.writelines(pieces(file))
    documents = _documents(image, name, unpack=False)
    for path in sorted(documents, key="index.json".__eq__):
        files.write(folder / path, documents[path])


def _documents(image: AssembledImage, name: str, unpack: bool) -> dict[str, bytes]:
    """Return everything but the layers, by path."""
    configuration = {blob_path(image.config_digest): image.configuration}
    if not unpack:
        return manifests.layout(image.manifest, name) | configuration
    layers = (
        layer.diff_id if layer.blob.media_type == OCI_LAYER_ZSTD else layer.blob.digest
        for layer in image.layers
    )
    return manifests.docker_archive(image.config_digest, layers, name) | configuration


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mtime = size, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


# --- preloading -----------------------------------------------------------------------------------
#
# An engine unpacks the layers of an image one after the other, the lowest first, which keeps one
# processor busy. So the layers that are there already go into it as images of their own, while
# those above are being made; when the whole image is loaded, the engine has them. The next layers
# are sent while it unpacks, and the end of their archive when it has unpacked: of two loads at once
# it would unpack some layers twice. Those images' tags are removed at the end.

LEAST: Final = 150_000_000
"""Bytes of new layers that are worth a load of their own."""


class Preload:
    """Loads for some bases, in threads of its own; a context manager.

    Call `add` for each layer that is made, then `settle`, then load the whole images. The end of
    the block removes what was preloaded: the whole images have its layers.
    """

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[BasePlan],
        store: ContentStore,
        repository: str,
        on_event: OnEvent = ignore,
    ) -> None:
        self._engine, self._store, self._on_event = engine, store, on_event
        self._plans = {f"{repository}:{plan.tag}.lower": plan for plan in plans}
        self._made: dict[str, Layer] = {}
        self._begun: set[str] = set()
        self._loaded: list[str] = []
        self._choosing = ThreadPoolExecutor(1)
        self._loading = ThreadPoolExecutor(2)
        self._chosen: list[Future[None]] = []
        self._loads: list[Future[None]] = []
        self._ended = threading.Event()
        if not reuses_layers(engine):
            self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error:
            self._ended.set()
        self.settle()
        images = self._engine.client.images
        for name in self._loaded:
            with contextlib.suppress(Exception):  # the engine may be gone
                images.remove(name, noprune=True)

    def add(self, layer: Layer) -> None:
        """Take a layer that is in the store, from any thread."""
        self._made[layer.key] = layer
        if not self._ended.is_set():
            self._chosen.append(self._choosing.submit(self._choose))

    def settle(self) -> None:
        """Wait until what is worth a load of its own is loaded."""
        self._choosing.shutdown(cancel_futures=self._ended.is_set())
        self._loading.shutdown()
        for done in (*self._chosen, *self._loads):
            if not done.cancelled():
                done.result()

    def _choose(self) -> None:
        """Begin the loads of each base's lowest layers, as many as there are without a gap."""
        for name, plan in self._plans.items():
            while not self._ended.is_set() and (image := self._next(plan)):
                self._begin(f"{name}{len(image.layers)}", image)

    def _next(self, plan: BasePlan) -> AssembledImage | None:
        """Return the image of the lowest layers of which LEAST bytes are new, as few as can be."""
        layers: list[tuple[Layer, str]] = []
        new = 0
        for planned in takewhile(lambda layer: layer.key in self._made, plan.layers):
            layer = self._made[planned.key]
            layers.append((layer, planned.history))
            new += 0 if layer.diff_id in self._begun else layer.blob.size
            if new >= LEAST:
                return assemble(layers, plan.config)
        return None

    def _begin(self, name: str, image: AssembledImage) -> None:
        """Load an image in a thread; return when its layers are sent."""
        before, sent = self._loads[-1:], threading.Event()
        overlap = self._engine.knows_content  # which tells whether an image is whole
        coming = frozenset(self._begun) if overlap else frozenset[str]()

        def end() -> None:
            sent.set()
            wait(before)

        def run() -> None:
            try:
                if not self._ended.is_set():
                    load(self._engine, image, self._store, name, self._on_event, coming, end)
            except OutsideError:  # the load of the whole image meets it again, and reports it
                self._ended.set()
            finally:
                sent.set()

        self._begun.update(layer.diff_id for layer in image.layers)
        self._loaded.append(name)
        self._loads.append(self._loading.submit(run))
        if overlap:
            sent.wait()
        else:
            wait(self._loads)
