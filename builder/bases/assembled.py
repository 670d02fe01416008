"""An image assembled from layers: its manifest and its configuration, no engine asked.

The same layers and settings give the same digest on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from builder.bases.layer import Layer
from builder.core.display import plain
from builder.core.errors import OutsideError
from builder.core.templates import EPOCH
from builder.registry import Reference, Registry, manifests
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


def in_registry(there: Registry, where: Reference) -> AssembledImage | None:
    """The assembled image under a tag; None where there is none.

    Its layers have no key and no size unpacked. Raises OutsideError for an image of another kind or
    platform.
    """
    found = there.manifest(where.repository, where.target)
    if found is None:
        return None
    fix = "push it again: builder build TARGET --base-only --to-registry"
    if found.media_type != manifests.OCI_MANIFEST:
        raise OutsideError(f"{where}: is no OCI image but {plain(found.media_type)}", fix)
    content = there.blob(where.repository, found.config)
    config = manifests.configuration_in(content)
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != "linux/amd64":
        raise OutsideError(f"{where}: the base is for {plain(platform)}, not for linux/amd64", fix)
    diff_ids = manifests.diff_ids(config)
    if len(diff_ids) != len(found.layers):
        raise OutsideError(f"{where}: its manifest and configuration differ", fix)
    layers = (
        Layer("", blob, diff_id, 0) for blob, diff_id in zip(found.layers, diff_ids, strict=True)
    )
    return AssembledImage(found, content, tuple(layers))
