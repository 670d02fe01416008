"""Layers and images in a registry, without an engine.

Whoever needs a layer looks for the digest that images/layers.lock has for its key, so that nobody
who may write to the repository can give another one. Where the image goes into the same repository,
no byte of it travels. The bases that hold a layer keep it from being cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from builder.core import parallel
from builder.core.errors import CheckFailed
from builder.core.events import OnEvent, ignore, step
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage, Layer
from builder.registry import Reference, Registry

_AT_ONCE: Final = 3
"""How many layers are transferred at the same time."""


def fetch(
    registry: Registry,
    repository: str,
    layers: Sequence[Layer],
    store: ContentStore,
    on_event: OnEvent = ignore,
    on_layer: Callable[[Layer], object] = lambda _: None,
) -> frozenset[str]:
    """Bring layers of the repository into the store, in this order.

    on_layer: gets each as soon as it is there, from any thread. Returns the keys of those that the
    registry has lost, or has other bytes of: the store has nothing of these, and a build makes
    them.
    """
    lost: list[str] = []

    def get(layer: Layer, progress: Callable[[int], None]) -> None:
        with store.writing() as file:
            try:
                registry.fetch(repository, layer.blob, file, progress)
            except CheckFailed as error:
                fetching.log(f"{error.message}: it is made here")
                lost.append(layer.key)
                return
            store.keep(file, layer)
        on_layer(layer)

    sizes = [(layer, layer.blob.size) for layer in layers]
    with step(f"fetch {len(layers)} layers", on_event) as fetching:
        count = parallel.transfer(sizes, get, _AT_ONCE, fetching.progress)
        fetching.detail = f"{count / 1e6:.0f} MB"
    return frozenset(lost)


def publish(
    registry: Registry,
    to: Reference,
    image: AssembledImage,
    store: ContentStore,
    on_event: OnEvent = ignore,
) -> int:
    """Put an image under a tag; what the repository has is not sent. Return the bytes sent."""
    assert to.tag is not None

    def put(layer: Layer, progress: Callable[[int], None]) -> None:
        registry.put_file(to.repository, layer.blob, lambda: store.path(layer), progress)

    sizes = [(layer, layer.blob.size) for layer in image.layers]
    with step(f"put {to.tag} into {to.name}", on_event) as putting:
        sent = parallel.transfer(sizes, put, _AT_ONCE, putting.progress)
        putting.detail = f"{sent / 1e6:.0f} MB of {image.compressed_bytes / 1e6:.0f} sent"
        putting.cached = not sent
        registry.put_blob(to.repository, image.configuration)
        for blob in (image.manifest.config, *image.manifest.layers):
            registry.check_blob(to.repository, blob)
        if registry.head(to.repository, to.tag) != image.digest:
            registry.lead(to, image.manifest)
    return sent


def base_in_registry(
    registry: Registry, reference: Reference, committed: AssembledImage
) -> AssembledImage | None:
    """Return the base under a tag of a registry; None where there is none.

    committed: what images/layers.lock says that it is. Raises CheckFailed for another one.
    """
    manifest = registry.manifest(reference.repository, reference.target)
    if manifest is None:
        return None
    if manifest.digest != committed.digest:
        raise CheckFailed(
            f"{reference} is {manifest.digest}, images/layers.lock says {committed.digest}",
            "do not build on it: look who wrote it, remove the tag, and push the base again",
        )
    return committed
