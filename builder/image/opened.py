"""An image that anybody made, opened to make another of it: its layers come into a store."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from builder.core import docker_sdk
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent
from builder.engine import Engine
from builder.image import registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import MEDIA_TYPES, AssembledImage, Layer
from builder.image.tarball import pieces
from builder.reading import images, tars
from builder.reading.images import Blobs, ImageContent
from builder.reading.layers import LayerCache, merge
from builder.registry import Reference, Registry, decoding, manifests
from builder.registry.manifests import OCI_CONFIG, Descriptor

PLAIN: Final = "application/vnd.oci.image.layer.v1.tar"
_FIX: Final = "save or push the image again"


@dataclass(frozen=True)
class OpenedImage:
    """An image whose layers come into a store when they are asked for."""

    image: AssembledImage
    store: ContentStore
    image_id: str = ""
    """The engine's name of it, "" for an image that lies elsewhere."""
    reference: Reference | None = None
    """Its name in a registry, None for one that lies elsewhere."""
    fetch: Callable[[Sequence[Layer]], object] = lambda _: None
    """Brings layers into the store, unless all are there."""

    def path(self, layer: Layer) -> Path:
        """Return the file of a layer. Raises OutsideError."""
        if not self.store.path(layer).exists():
            self.fetch([layer])
        return self.store.path(layer)

    def content(self) -> ImageContent:
        """Read the image; a layer that this machine has read is not read again. Raises InputError
        for one with other bytes, one of tars.BROKEN."""
        cache, layers = LayerCache(), []
        for each in self.image.layers:
            if not (layer := cache.find(each.diff_id)):
                with self.path(each).open("rb") as file:
                    layer = cache.read(file)
            if layer.diff_id != each.diff_id:
                raise InputError(f"its layer {each.diff_id} has other bytes", _FIX)
            layers.append(layer)
        configuration = manifests.configuration_in(self.image.configuration)
        return ImageContent(merge(layers), tuple(layers), configuration, self.image_id)


@contextlib.contextmanager
def refusals(name: str) -> Iterator[None]:
    """Raise InputError for an archive or a layer that is damaged or beyond the bounds (tars.py)."""
    try:
        yield
    except tars.BROKEN as error:
        raise InputError(f"{name}: it, or a layer of it, cannot be read: {error}", _FIX) from error


def of_archive(store: ContentStore, path: Path) -> OpenedImage:
    """Open what `docker save` wrote, or an OCI layout. Raises InputError, one of tars.BROKEN."""
    return _of_saved(str(path), images.saved(path), store)


def of_engine(store: ContentStore, engine: Engine, name: str) -> OpenedImage | None:
    """Open an image of an engine, which gives all of it out; None where it has none of this name.
    Raises OutsideError."""
    if not (image := engine.image(name)):
        return None
    with docker_sdk.refusals(name):
        saved = engine.client.api.get_image(image.image_id, chunk_size=1 << 20)
        return _of_saved(name, images.archived(tars.stream(saved)), store, image.image_id)


def of_registry(store: ContentStore, on_event: OnEvent, reference: Reference) -> OpenedImage:
    """Open an image in a registry (its linux/amd64 part): a layer comes when it is asked for.
    Raises InputError, OutsideError."""
    with Registry(reference.host) as client:
        get = partial(client.manifest, reference.repository)
        manifest = images.find_image(reference, get, reference.target)
        configuration = client.blob(reference.repository, manifest.config)

    def fetch(layers: Sequence[Layer]) -> None:
        lacking = [layer for layer in layers if not store.path(layer).exists()]
        with Registry(reference.host) as client:
            at = reference.repository
            if lacking and registry_layers.fetch(client, at, lacking, store, on_event):
                raise OutsideError(f"{reference}: the registry has lost a layer", _FIX)

    blobs = [Descriptor(_media_type(b.media_type), b.digest, b.size) for b in manifest.layers]
    image = assembled(str(reference), configuration, blobs)
    return OpenedImage(image, store, reference=reference, fetch=fetch)


def assembled(name: str, configuration: bytes, blobs: Sequence[Descriptor]) -> AssembledImage:
    """Return the image of this configuration and these layers. Raises InputError where they do not
    fit each other."""
    diff_ids = manifests.diff_ids(manifests.configuration_in(configuration))
    if len(diff_ids) != len(blobs):
        raise InputError(
            f"{name}: {len(blobs)} layers, its configuration has {len(diff_ids)}", _FIX
        )
    layers = [
        Layer(blob.digest.removeprefix("sha256:"), blob, diff_id, 0)
        for blob, diff_id in zip(blobs, diff_ids, strict=True)
    ]
    config = Descriptor.of(OCI_CONFIG, configuration)
    return AssembledImage(manifests.image(config, blobs), configuration, tuple(layers))


def _of_saved(name: str, blobs: Blobs, store: ContentStore, image_id: str = "") -> OpenedImage:
    texts: dict[str, bytes] = {}
    packed: dict[str, Descriptor] = {}
    for path, blob in blobs:
        head = blob.read(decoding.LARGEST + 1)
        if len(head) <= decoding.LARGEST and head.lstrip()[:1] in (b"{", b"["):
            texts[path] = head
        elif head:
            packed[path] = _keep(itertools.chain([head], pieces(blob)), store)
    config, layers = images.described(name, texts)
    if missing := next((layer for layer in layers if layer not in packed), ""):
        raise InputError(f"{name}: its layer {missing} is missing", _FIX)
    image = assembled(name, texts[config], [packed[layer] for layer in layers])
    return OpenedImage(image, store, image_id)


def _keep(content: Iterable[bytes], store: ContentStore) -> Descriptor:
    digest, size, kind = hashlib.sha256(), 0, ""
    with store.writing() as out:
        for piece in content:
            kind = kind or tars.packing(piece) or PLAIN
            digest.update(piece)
            out.write(piece)
            size += len(piece)
        blob = Descriptor(_media_type(kind), f"sha256:{digest.hexdigest()}", size)
        store.keep(out, Layer(digest.hexdigest(), blob, "", 0))
    return blob


def _media_type(kind: str) -> str:
    """Return OCI's media type of a layer; Docker's own say the same."""
    return next((MEDIA_TYPES[each] for each in MEDIA_TYPES if kind.endswith(each)), PLAIN)
