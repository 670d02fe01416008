"""An image assembled from layers: its manifest and its configuration, no engine asked.

The same layers and settings give the same digest on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from builder.bases.layer import Layer
from builder.core.templates import EPOCH
from builder.registry import manifests
from builder.registry.manifests import Added, Descriptor, Manifest

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

    @property
    def unpacked_bytes(self) -> int:
        """The size of the files of all layers."""
        return sum(layer.unpacked_bytes for layer in self.layers)


def assemble(
    layers: Sequence[tuple[Layer, str]],
    settings: Mapping[str, Any],
    under: AssembledImage | None = None,
) -> AssembledImage:
    """The image of these layers, each with what the history says of it.

    settings: what stands below `config` of the configuration (`Env`, `Labels` and so on). under:
    the image whose layers lie below; its settings are not taken over.
    """
    below = manifests.configuration_in(under.configuration) if under else PLATFORM
    config = manifests.configuration(
        below, settings, [Added(layer.diff_id, said) for layer, said in layers], EPOCH
    )
    whole = (*(under.layers if under else ()), *(layer for layer, _ in layers))
    manifest = manifests.image(
        Descriptor.of(manifests.OCI_CONFIG, config), [layer.blob for layer in whole]
    )
    return AssembledImage(manifest, config, whole)
