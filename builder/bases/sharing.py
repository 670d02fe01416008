"""Layers and images in a registry, without an engine.

A layer lies there by its key: the tag `layer-<first 32 digits of the key>` leads to an OCI artifact
whose one blob is the layer, and whose annotations say what the blob unpacks to. So whoever needs a
layer finds it before it is made; where the image goes into the same repository, no byte of it
travels. Whoever may write to the repository is trusted with this, as with the images there; an
engine that pulls a layer still compares what it unpacks with the image's configuration.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

from builder.bases.archive import Blobs
from builder.bases.assembled import AssembledImage
from builder.bases.layer import MEDIA_TYPES, Layer
from builder.bases.store import Store
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.registry import EMPTY, Reference, Registry, manifests

LAYER_TYPE: Final = "application/vnd.training-image-factory.layer.v1"

_KEY: Final = "training-image-factory.key"
_DIFF_ID: Final = "training-image-factory.diff-id"
_UNPACKED: Final = "training-image-factory.unpacked-bytes"

_AT_ONCE: Final = 2
"""How many layers are uploaded at the same time."""


def tag_of(key: str) -> str:
    """The tag that leads to the layer of a key."""
    return f"layer-{key[:32]}"


def take(there: Registry, repository: str, key: str) -> Layer | None:
    """The layer of a key that the repository holds; None where it is not there whole.

    The layer's bytes stay where they are; `fetch` brings them.
    """
    found = there.manifest(repository, tag_of(key))
    if found is None or found.content.get("artifactType") != LAYER_TYPE:
        return None
    said = found.annotations
    unpacked, diff_id = said.get(_UNPACKED, ""), said.get(_DIFF_ID, "")
    if said.get(_KEY) != key or not unpacked.isdecimal() or not diff_id or len(found.layers) != 1:
        return None
    (blob,) = found.layers
    if blob.media_type not in MEDIA_TYPES.values() or not there.has_blob(repository, blob.digest):
        return None
    return Layer(key, blob, diff_id, int(unpacked))


def lacked(there: Registry, repository: str, layers: Sequence[Layer | None]) -> tuple[bool, ...]:
    """Which of these layers the repository does not hold; None is one that was not made yet."""
    return tuple(one is None or not there.has_blob(repository, one.blob.digest) for one in layers)


def offer(
    there: Registry, repository: str, layers: Sequence[Layer], blobs: Blobs, on_event: OnEvent
) -> None:
    """Put layers into the repository by their keys; what is there is not sent."""
    with step("offer layers", on_event) as offering:
        _put_blobs(there, repository, layers, blobs, offering)
        there.put_blob(repository, EMPTY)
        for layer in layers:
            said = {
                _KEY: layer.key,
                _DIFF_ID: layer.diff_id,
                _UNPACKED: str(layer.unpacked_bytes),
            }
            made = manifests.artifact(LAYER_TYPE, layer.blob, said)
            if there.head(repository, tag_of(layer.key)) != made.digest:
                there.put_manifest(repository, tag_of(layer.key), made)


def fetch(
    there: Registry, repository: str, layer: Layer, store: Store, on_event: OnEvent = ignore
) -> Layer:
    """Bring a layer of the repository into the store.

    Raises CheckFailed where the registry has lost it or has other bytes; the store then has nothing
    of it.
    """
    with (
        step(f"fetch {tag_of(layer.key)[:18]}", on_event) as fetching,
        store.writing() as file,
    ):
        size = layer.blob.size
        there.fetch(repository, layer.blob, file, lambda count: fetching.progress(count, size))
        fetching.detail = f"{size / 1e6:.0f} MB"
        return store.keep(file, layer)


def publish(
    there: Registry,
    to: Reference,
    image: AssembledImage,
    blobs: Blobs,
    on_event: OnEvent = ignore,
    also_in: str | None = None,
) -> int:
    """Put an image under a tag; what the repository has is not sent. Returns the bytes sent.

    also_in: a repository of this registry that may have some of the layers.
    """
    assert to.tag is not None
    with step(f"put {to.tag} into {to.name}", on_event) as putting:
        sent = _put_blobs(there, to.repository, image.layers, blobs, putting, also_in)
        there.put_blob(to.repository, image.configuration)
        for blob in (image.manifest.config, *image.manifest.layers):
            there.check_blob(to.repository, blob)
        if there.head(to.repository, to.tag) != image.digest:
            there.lead(to, image.manifest)
    return sent


def _put_blobs(
    there: Registry,
    repository: str,
    layers: Sequence[Layer],
    blobs: Blobs,
    running: RunningStep,
    also_in: str | None = None,
) -> int:
    """Upload the layers that the repository lacks; the bytes that were sent.

    The first error ends those that still run.
    """
    total = sum(layer.blob.size for layer in layers)
    counts = {layer.blob.digest: 0 for layer in layers}
    ended = threading.Event()

    def put(layer: Layer) -> None:
        def told(count: int) -> None:
            if ended.is_set():
                raise OutsideError("the upload was ended", "run this again")
            counts[layer.blob.digest] = count
            running.progress(sum(counts.values()), total)

        there.put_file(repository, layer.blob, lambda: blobs(layer), told, also_in)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for done in as_completed([threads.submit(put, layer) for layer in layers]):
                done.result()
        except BaseException:
            ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    sent = sum(counts.values())
    running.detail = f"{sent / 1e6:.0f} MB of {total / 1e6:.0f} sent"
    running.cached = not sent
    return sent
