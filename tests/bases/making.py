"""For tests: layers with busybox and with files in them, and images of these layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.bases.assembled import AssembledImage, assemble
from builder.bases.layer import Compression, Layer
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter
from builder.core.files import hash_of


def layer(
    store: Store, contents: Mapping[str, bytes], compression: Compression | None = None
) -> Layer:
    """A layer with these files, in the store."""
    compression = compression or Compression()
    with store.writing() as file:
        writer = LayerWriter(file, compression)
        for name, content in sorted(contents.items()):
            writer.file(name, content, mode=0o755)
        key = hash_of(str(compression), repr(sorted(contents.items())))
        return store.keep(file, writer.close(key))


def programs(store: Store, busybox: Path, compression: Compression | None = None) -> Layer:
    """The lowest layer of an image that runs."""
    return layer(store, {"cat": busybox.read_bytes()}, compression)


def image(*layers: Layer) -> AssembledImage:
    """The image of these layers, which prints its file `/said`."""
    named = [(one, f"layer {number}") for number, one in enumerate(layers)]
    return assemble(named, {"Env": ["PATH=/"], "Entrypoint": ["/cat"], "Cmd": ["/said"]})
