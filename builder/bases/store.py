"""The layers of this machine: blobs by digest, and what each key leads to.

    layers/blobs/sha256/<digest>     a packed layer
    layers/keys/<key>.json           the layer of a key: digest, size, type, diff id, unpacked size
    layers/images/<name>.json        an assembled image: its manifest, configuration and layers

A blob is written under a temporary name and renamed when it is whole; its key is written after it.
So whatever ends a run leaves nothing half behind that a later run would take.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.bases.assembled import AssembledImage
from builder.bases.layer import Layer
from builder.core import files
from builder.registry.manifests import OCI_MANIFEST, Descriptor, Manifest, blob_path


@dataclass(frozen=True)
class Store:
    """The layers below a folder."""

    folder: Path

    def find(self, key: str) -> Layer | None:
        """The layer of a key; None where it is not here whole. It counts as used now."""
        place = self._place(key)
        try:
            layer = _layer(json.loads(place.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not self.has(layer):
            return None
        with contextlib.suppress(OSError):  # the cache may be someone else's to write
            os.utime(place)
        return layer

    def has(self, layer: Layer) -> bool:
        """Whether a layer's blob is here whole."""
        try:
            return self.path(layer).stat().st_size == layer.blob.size
        except OSError:
            return False

    def path(self, layer: Layer) -> Path:
        """The file of a layer's blob."""
        return self.folder / blob_path(layer.blob.digest)

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A file for a new blob, which `keep` takes; it is gone after the block otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".new.", dir=self.folder, delete=False) as file:
            try:
                yield file
            except OSError as error:
                error.filename = error.filename or str(self.folder)  # where the disk is full
                raise
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, file: IO[bytes], layer: Layer) -> Layer:
        """Keep a blob that was written whole to a file of `writing`, under its key."""
        file.flush()
        to = self.path(layer)
        to.parent.mkdir(parents=True, exist_ok=True)
        new = Path(file.name)
        new.chmod(0o644)
        new.replace(to)
        files.write(self._place(layer.key), _text(_json(layer)))
        return layer

    def forget(self, key: str) -> None:
        """Let a key lead to nothing, so that its layer is made again."""
        self._place(key).unlink(missing_ok=True)

    def prune(self, before: float) -> int:
        """Remove what no run has used since `before` (seconds since 1970); the bytes that it frees.

        A run that is making a layer at the same time may have to make it again.
        """
        keys, images = self.folder / "keys", self.folder / "images"
        files.remove_older([*keys.glob("*.json"), *images.glob("*.json")], time.time() - before)
        used = set()
        for place in keys.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                used.add(_layer(json.loads(place.read_bytes())).blob.digest)
        freed = 0
        for blob in (self.folder / "blobs" / "sha256").glob("*"):
            if f"sha256:{blob.name}" not in used and blob.stat().st_mtime < before:
                freed += blob.stat().st_size
                blob.unlink(missing_ok=True)
        return freed

    def _place(self, key: str) -> Path:
        return self.folder / "keys" / f"{key}.json"

    def find_image(self, name: str) -> AssembledImage | None:
        """The image that was kept under a name. Its layers may be gone. It counts as used now."""
        place = self.folder / "images" / f"{name}.json"
        try:
            value = json.loads(place.read_bytes())
            with contextlib.suppress(OSError):
                os.utime(place)
            return AssembledImage(
                Manifest(value["manifest"].encode(), OCI_MANIFEST),
                value["configuration"].encode(),
                tuple(map(_layer, value["layers"])),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep_image(self, name: str, image: AssembledImage) -> None:
        """Keep what an image is made of, under a name."""
        value = {
            "manifest": image.manifest.data.decode(),
            "configuration": image.configuration.decode(),
            "layers": [_json(layer) for layer in image.layers],
        }
        files.write(self.folder / "images" / f"{name}.json", _text(value))


def _json(layer: Layer) -> dict[str, Any]:
    return {
        "key": layer.key,
        "media_type": layer.blob.media_type,
        "digest": layer.blob.digest,
        "size": layer.blob.size,
        "diff_id": layer.diff_id,
        "unpacked_bytes": layer.unpacked_bytes,
    }


def _layer(value: Mapping[str, Any]) -> Layer:
    blob = Descriptor(value["media_type"], value["digest"], value["size"])
    return Layer(value["key"], blob, value["diff_id"], value["unpacked_bytes"])


def _text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def of_this_machine() -> Store:
    """The store in the user's cache."""
    return Store(files.cache_home() / "layers")
