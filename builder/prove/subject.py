"""What is proven: an image, and what it was made to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack


class Sizes(Protocol):
    """How large an image is, in bytes.

    compressed_bytes: what a pull transfers, None where the engine does not know; budget_bytes: what
    image.yaml allows, None for no bound; packages: the largest downloads in it, as (name and
    version, bytes).
    """

    @property
    def compressed_bytes(self) -> int | None: ...
    @property
    def unpacked_bytes(self) -> int | None: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def packages(self) -> tuple[tuple[str, int], ...]: ...


@dataclass(frozen=True)
class Subject:
    """The image that is proven.

    image: a reference or an id that the engine holds; packages: name -> version of each locked
    Python package; records: a folder of TFRecords to train on; digest: of the image's manifest,
    None where it is not known; inputs: hash of what the image was made from; sizes: None where
    they were not measured; layers: the files of layers that this machine has, by diff id.
    """

    image: str
    spec: ImageSpec
    stack: Stack
    packages: Mapping[str, str]
    records: Path
    digest: str | None = None
    inputs: str = ""
    sizes: Sizes | None = None
    layers: Mapping[str, Path] = field(default_factory=dict)
    debian: frozenset[str] = frozenset()

    @property
    def target(self) -> str:
        return self.spec.name
