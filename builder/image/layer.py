"""A layer before and after it is made, and an image assembled from layers, without an engine.

A layer's key is a hash over all that decides its bytes. So a layer is made once for a key, and is
then found by the key: on this machine (builder/image/content_store.py) or in a registry. The same
layers and settings give an image the same digest on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from builder.core.files import EPOCH

if TYPE_CHECKING:
    from builder.registry.manifests import Descriptor, Manifest

LEVELS: Final = {"zstd": 3, "gzip": 6}
"""The level of each compression where image.yaml names none. zstd at 3 packs TensorFlow's largest
library (788 MB) into 146 MB, at 1 into 165 MB in half the time."""

MEDIA_TYPES: Final = {
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
}


@dataclass(frozen=True)
class Compression:
    kind: Literal["zstd", "gzip"] = "zstd"
    level: int = 3

    @classmethod
    def of(cls, text: str) -> Compression:
        """Return the compression that image.yaml names: `zstd`, `gzip` or `zstd:9`."""
        name, _, level = text.partition(":")
        kind: Literal["zstd", "gzip"] = "gzip" if name == "gzip" else "zstd"
        return cls(kind, int(level) if level else LEVELS[kind])

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}:{self.level}"


@dataclass(frozen=True)
class LayerPlan:
    key: str
    """64 hex digits over all that decides its bytes."""
    name: str
    """What a person calls it, such as "tensorflow 2.21.0"."""
    packages: tuple[str, ...]
    """`name version` of each package in it."""
    download: int | None
    """The bytes of these packages, None where the lock does not know them all."""
    why: str

    @property
    def history(self) -> str:
        """The layer's line in an image's history: its name, and each package in it."""
        several = f": {', '.join(self.packages)}" if len(self.packages) > 1 else ""
        return f"builder: {self.name}{several}"


@dataclass(frozen=True)
class Layer:
    """A layer that was made. Sizes in bytes."""

    key: str
    blob: Descriptor
    """The packed layer, as a manifest names it."""
    diff_id: str
    """The digest of the layer before it was packed."""
    unpacked_bytes: int
    """The size of its files; 0 where it is not known."""


# --- images ---------------------------------------------------------------------------------------

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
    from builder.registry import manifests

    below = manifests.configuration_in(base.configuration) if base else PLATFORM
    added = [(layer.diff_id, history) for layer, history in layers]
    configuration = manifests.configuration(below, config, added, EPOCH)
    every = (*(base.layers if base else ()), *(layer for layer, _ in layers))
    manifest = manifests.image(
        manifests.Descriptor.of(manifests.OCI_CONFIG, configuration),
        [layer.blob for layer in every],
    )
    return AssembledImage(manifest, configuration, every)
