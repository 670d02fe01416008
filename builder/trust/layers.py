"""In which layer of an image each package lies, told from the image's own history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.registry import Manifest, manifests


@dataclass(frozen=True)
class Layers:
    """The layers of an image, the lowest first: what the history says of each, and its digest."""

    each: tuple[tuple[str, str], ...]

    def holds(self, lock: str, package: str) -> str | None:
        """The digest of the layer that a package was put into; None where nothing tells.

        lock: the name of the lock file that lists it. package: `name version`. This is the one
        place that knows how a history names packages: each by itself, or by its lock file. A layer
        that names no lock file and lies below all that do is the OS root's.
        """
        for word in (package, f"install {lock}"):
            for said, digest in self.each:
                if re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", said):
                    return digest
        if lock.startswith("os-") and self.each:
            return self.each[0][1]
        return None

    @property
    def top(self) -> str | None:
        """The digest of the last layer, which holds the program."""
        return self.each[-1][1] if self.each else None


def of(image: Manifest, configuration: Mapping[str, Any]) -> Layers:
    """The layers of an image, from its manifest and its configuration."""
    said = list(manifests.history(configuration))
    digests = [layer.digest for layer in image.layers]
    said += [""] * (len(digests) - len(said))
    return Layers(tuple(zip(said, digests, strict=False)))
