"""An image assembled from layers: its manifest and its configuration, without an engine.

The same layers and settings give the same digest on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from builder.core.errors import CheckFailed
from builder.core.files import EPOCH
from builder.image.layer import Layer
from builder.registry import Reference, Registry, manifests
from builder.registry.manifests import Added, Descriptor, Manifest

CheckBase = Callable[[Registry, str, str], None]
"""Refuses a base that [trust] of builder.toml does not allow: called with the registry, the digest
of the base's manifest, and the base's tag."""

PLATFORM: Final = {"architecture": "amd64", "os": "linux"}


@dataclass(frozen=True)
class AssembledImage:
    """An image: its manifest, its configuration's bytes, and its layers, the lowest first."""

    manifest: Manifest
    configuration: bytes = field(repr=False)
    layers: tuple[Layer, ...]

    @property
    def digest(self) -> str:
        """The manifest's digest: what a registry calls the image."""
        return self.manifest.digest

    @property
    def config_digest(self) -> str:
        """The configuration's digest: what an engine without manifests calls the image."""
        return self.manifest.config.digest

    @property
    def compressed_bytes(self) -> int:
        """What a pull of all layers transfers."""
        return sum(layer.blob.size for layer in self.layers)


def assemble(
    layers: Sequence[tuple[Layer, str]],
    config: Mapping[str, Any],
    base: AssembledImage | None = None,
) -> AssembledImage:
    """Return the image of these layers, each with its line in the image's history.

    config: what stands below `config` of the configuration (`Env`, `Labels` and so on). base: the
    image whose layers lie below; its config is not taken over.
    """
    below = manifests.configuration_in(base.configuration) if base else PLATFORM
    added = [Added(layer.diff_id, history) for layer, history in layers]
    configuration = manifests.configuration(below, config, added, EPOCH)
    every = (*(base.layers if base else ()), *(layer for layer, _ in layers))
    manifest = manifests.image(
        Descriptor.of(manifests.OCI_CONFIG, configuration), [layer.blob for layer in every]
    )
    return AssembledImage(manifest, configuration, every)


def base_in_registry(
    registry: Registry,
    reference: Reference,
    committed: AssembledImage,
    check: CheckBase | None = None,
) -> AssembledImage | None:
    """Return the base under a tag of a registry; None where there is none.

    committed: what images/layers.lock says that it is. Raises CheckFailed for another one, and what
    `check` raises.
    """
    manifest = registry.manifest(reference.repository, reference.target)
    if manifest is None:
        return None
    if manifest.digest != committed.digest:
        raise CheckFailed(
            f"{reference} is {manifest.digest}, images/layers.lock says {committed.digest}",
            "do not build on it: look who wrote it, remove the tag, and push the base again",
        )
    if check:
        check(registry, manifest.digest, reference.target)
    return committed
