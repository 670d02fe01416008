"""images/layers.lock: the layers of all bases by their keys, with the digests they have to have.

A key is a hash over all that decides a layer's bytes, so what stands here can be checked by whoever
makes the layer again. A layer from a cache or a registry counts only if it is the one in this file.
A key that is not here is made on this machine and written down; git shows the new line. Where this
machine made its layer before, for another project, or the factory's own file has it, it is not made
again, and the same line is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.core.project import factory
from builder.image.layer import MEDIA_TYPES, Layer, LayerPlan
from builder.image.plan import BasePlan
from builder.registry.manifests import Descriptor

FILE: Final = "images/layers.lock"
_HEADER: Final = """\
# The layers of all bases by their keys, each with the digest that it has to have. `builder build`
# adds what it makes, `builder lock` drops what no target needs; no line is ever changed by hand.
# key, packed with, digest, bytes, digest before packing, bytes of its files, name
"""
_LINE: Final = re.compile(
    r"([0-9a-f]{64}) (zstd|gzip) (sha256:[0-9a-f]{64}) (\d+) (sha256:[0-9a-f]{64}) (\d+) (\S.*)"
)


@dataclass
class LayersLock:
    path: Path
    layers: dict[str, Layer]
    """By key."""
    names: dict[str, str]
    unsigned: frozenset[str] = frozenset()
    """The keys whose layers are taken from nowhere, and made (builder/trust/rebuilders.py)."""
    elsewhere: Mapping[str, Layer] = field(default_factory=dict, compare=False)
    """Layers of keys that have no line here: what this machine made, and the factory's own."""
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def known(self, key: str) -> Layer | None:
        """Return the layer of a key that may be taken from a cache or a registry."""
        return None if key in self.unsigned else self.layers.get(key)

    def found(self, key: str) -> Layer | None:
        """Return the layer of a key that need not be made where a cache or a registry has it."""
        return self.known(key) or (None if key in self.layers else self.elsewhere.get(key))

    def whole(self, plan: BasePlan) -> tuple[Layer, ...] | None:
        """Return the layers of a base, the lowest first; None where one is not known."""
        layers = [self.known(planned.key) for planned in plan.layers]
        return tuple(layer for layer in layers if layer) if all(layers) else None

    def check(self, layer: Layer, name: str) -> Layer:
        """Return a layer that was made, compared with its line; a new key gets one.

        Raises CheckFailed for other bytes than the file has.
        """
        with self._writing, files.locked_for("layers", self.path):
            now = read(self.path)
            if (known := now.layers.get(layer.key)) is None:
                now.layers[layer.key], now.names[layer.key] = layer, name
                now.write()
            elif known != layer:
                raise CheckFailed(
                    f"{name}: made here it is {layer.blob.digest}, {self.path.name} says "
                    f"{known.blob.digest} of {layer.key}",
                    "it is not reproducible, or not what was locked: builder rebuild shows where "
                    "they differ",
                )
            self.layers, self.names = now.layers, now.names
        return layer

    def drop(self, plans: Iterable[BasePlan]) -> tuple[str, ...]:
        """Remove the lines that no base needs; return their names."""
        needed = {layer.key for plan in plans for layer in plan.layers}
        gone = [key for key in self.layers if key not in needed]
        for key in gone:
            del self.layers[key]
        if gone:
            self.write()
        return tuple(self.names.pop(key) for key in gone)

    def missing(self, plan: BasePlan) -> tuple[LayerPlan, ...]:
        return tuple(planned for planned in plan.layers if planned.key not in self.layers)

    def write(self) -> None:
        rows = sorted(self.layers.values(), key=lambda layer: (self.names[layer.key], layer.key))
        files.write(
            self.path, _HEADER + "".join(f"{line_of(row)} {self.names[row.key]}\n" for row in rows)
        )


def read(path: Path) -> LayersLock:
    """Return what a file says; nothing where there is none. Raises InputError for another form."""
    return parse(files.text_of(path) or "", path)


def parse(text: str, path: Path) -> LayersLock:
    """Return what the text of a file says. Raises InputError for another form."""
    layers: dict[str, Layer] = {}
    names: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None or match[1] in layers:
            raise InputError(
                f"{path}:{number}: no line of a layer, or a second one of its key",
                "take the file from git, or remove it and run builder build",
            )
        key, kind, digest, size, diff_id, unpacked, names[match[1]] = match.groups()
        blob = Descriptor(MEDIA_TYPES[kind], digest, int(size))
        layers[key] = Layer(key, blob, diff_id, int(unpacked))
    return LayersLock(path, layers, names)


def of(root: Path) -> LayersLock:
    """Return the committed layers of a project, and beside them what the factory's wheel brings and
    what this machine made."""
    return replace(read(root / FILE), elsewhere={**read(factory() / FILE).layers, **_made().layers})


def remember(layer: Layer, name: str) -> None:
    """Note that this machine made a layer: not in the cache, which may come from elsewhere."""
    with files.locked(files.cache_home() / "locks" / "layers-made"):
        made = _made()
        if made.layers.get(layer.key) != layer:
            made.layers[layer.key], made.names[layer.key] = layer, name
            made.write()


def _made() -> LayersLock:
    """Return what this machine made; nothing where another user may write to the file."""
    path = files.data_home() / "made-layers.lock"
    with contextlib.suppress(OSError, InputError):
        status = path.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return read(path)
    return LayersLock(path, {}, {})


def line_of(layer: Layer) -> str:
    kind = next(kind for kind, media in MEDIA_TYPES.items() if media == layer.blob.media_type)
    blob = layer.blob
    return f"{layer.key} {kind} {blob.digest} {blob.size} {layer.diff_id} {layer.unpacked_bytes}"
