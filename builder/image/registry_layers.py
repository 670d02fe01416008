"""Layers and images in a registry, without an engine.

A layer lies there by its key: the tag `layer-<first 32 digits of the key>` leads to an OCI artifact
whose one blob is the layer, and whose annotations say what the blob unpacks to. So whoever needs a
layer finds it before it is made; where the image goes into the same repository, no byte of it
travels. Whoever may write to the repository is trusted with this, as with the images there; an
engine still compares what it unpacks with the image's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from builder.core import parallel
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.image.assembled import AssembledImage
from builder.image.content_store import ContentStore
from builder.image.layer import MEDIA_TYPES, Layer
from builder.registry import EMPTY, Reference, Registry, manifests

LAYER_TYPE: Final = "application/vnd.training-image-factory.layer.v1"

_KEY: Final = "training-image-factory.key"
_DIFF_ID: Final = "training-image-factory.diff-id"
_UNPACKED: Final = "training-image-factory.unpacked-bytes"

_AT_ONCE: Final = 3
"""How many layers are transferred at the same time."""


def tag_of(key: str) -> str:
    """Return the tag that leads to the layer of a key."""
    return f"layer-{key[:32]}"


def find(registry: Registry, repository: str, key: str) -> Layer | None:
    """Return the layer of a key that the repository has; None where it is not there whole.

    The layer's bytes stay where they are; `fetch` brings them.
    """
    artifact = registry.manifest(repository, tag_of(key))
    if artifact is None or artifact.content.get("artifactType") != LAYER_TYPE:
        return None
    notes, blobs = artifact.annotations, artifact.layers
    unpacked, diff_id = notes.get(_UNPACKED, ""), notes.get(_DIFF_ID, "")
    if notes.get(_KEY) != key or not unpacked.isdecimal() or not diff_id or len(blobs) != 1:
        return None
    if blobs[0].media_type not in MEDIA_TYPES.values():
        return None
    if not registry.has_blob(repository, blobs[0].digest):
        return None
    return Layer(key, blobs[0], diff_id, int(unpacked))


def offer(
    registry: Registry,
    repository: str,
    layers: Sequence[Layer],
    store: ContentStore,
    on_event: OnEvent,
) -> None:
    """Put layers into the repository by their keys; what is there is not sent."""
    with step("offer layers", on_event) as offering:
        _put_blobs(registry, repository, layers, store, offering)
        registry.put_blob(repository, EMPTY)
        for layer in layers:
            notes = {
                _KEY: layer.key,
                _DIFF_ID: layer.diff_id,
                _UNPACKED: str(layer.unpacked_bytes),
            }
            artifact = manifests.artifact(LAYER_TYPE, layer.blob, notes)
            if registry.head(repository, tag_of(layer.key)) != artifact.digest:
                registry.put_manifest(repository, tag_of(layer.key), artifact)


def fetch(
    registry: Registry,
    repository: str,
    layers: Sequence[Layer],
    store: ContentStore,
    on_event: OnEvent = ignore,
) -> None:
    """Bring layers of the repository into the store.

    Raises CheckFailed where the registry has lost one or has other bytes; the store then has
    nothing of it.
    """

    def get(layer: Layer, progress: Callable[[int], None]) -> None:
        with store.writing() as file:
            registry.fetch(repository, layer.blob, file, progress)
            store.keep(file, layer)

    sizes = [(layer, layer.blob.size) for layer in layers]
    with step(f"fetch {len(layers)} layers", on_event) as fetching:
        count = parallel.transfer(sizes, get, _AT_ONCE, fetching.progress)
        fetching.detail = f"{count / 1e6:.0f} MB"


def publish(
    registry: Registry,
    to: Reference,
    image: AssembledImage,
    store: ContentStore,
    on_event: OnEvent = ignore,
) -> int:
    """Put an image under a tag; what the repository has is not sent. Return the bytes sent."""
    assert to.tag is not None
    with step(f"put {to.tag} into {to.name}", on_event) as putting:
        sent = _put_blobs(registry, to.repository, image.layers, store, putting)
        registry.put_blob(to.repository, image.configuration)
        for blob in (image.manifest.config, *image.manifest.layers):
            registry.check_blob(to.repository, blob)
        if registry.head(to.repository, to.tag) != image.digest:
            registry.lead(to, image.manifest)
    return sent


def _put_blobs(
    registry: Registry,
    repository: str,
    layers: Sequence[Layer],
    store: ContentStore,
    running: RunningStep,
) -> int:
    """Upload the layers that the repository lacks; return the bytes that were sent."""

    def put(layer: Layer, progress: Callable[[int], None]) -> None:
        registry.put_file(repository, layer.blob, lambda: store.path(layer), progress)

    sizes = [(layer, layer.blob.size) for layer in layers]
    sent = parallel.transfer(sizes, put, _AT_ONCE, running.progress)
    running.detail = f"{sent / 1e6:.0f} MB of {sum(size for _, size in sizes) / 1e6:.0f} sent"
    running.cached = not sent
    return sent
