"""The content store: the layers that this machine has, by their digests and by their keys.

    layers/blobs/sha256/<digest>     a packed layer
    layers/keys/<key>.json           the layer of a key: digest, size, type, diff id, unpacked size
    layers/images/<name>.json        an assembled image: its manifest, configuration and layers

A blob is written under a temporary name and renamed when it is whole; its key is written after it.
So whatever ends a run leaves nothing half behind that a later run would take.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from builder.core import files
from builder.engine import containers
from builder.image.layer import AssembledImage, Layer
from builder.registry.manifests import OCI_MANIFEST, Descriptor, Manifest, blob_path

if TYPE_CHECKING:
    from builder.image.plan import BasePlan

T = TypeVar("T")

_ENTRY: Final = 16 << 20
"""Bytes of an entry that are read."""
_UNFINISHED: Final = 7 * 24 * 3600.0
"""Seconds after which a file counts as left, also by a machine that shares the cache."""


@dataclass(frozen=True)
class ContentStore:
    """The layers below a folder."""

    folder: Path
    ignored: set[str] = field(default_factory=set, compare=False)
    """The keys whose entries do not count here, until `keep` replaces them."""

    def ignoring(self, keys: Iterable[str]) -> ContentStore:
        """Return the same store without the layers of these keys; for others they stay."""
        return replace(self, ignored=set(keys))

    def find(self, key: str) -> Layer | None:
        """Return the layer of a key; None where it is not here whole. It counts as used now."""
        layer = None if key in self.ignored else _read(self._entry(key), _layer)
        return layer if layer and self.has(layer) else None

    def knows(self, key: str) -> bool:
        return self._entry(key).exists()

    def has(self, layer: Layer) -> bool:
        """Return whether a layer's blob is here: a file of its own with the right bytes."""
        with contextlib.suppress(OSError), files.opened(self.path(layer)) as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == layer.blob.digest
        return False

    def path(self, layer: Layer) -> Path:
        return self.folder / blob_path(layer.blob.digest)

    def paths(self, layers: Iterable[Layer]) -> dict[str, Path]:
        """Return the files of the layers that are here, by diff id; their bytes are not looked at.
        What an engine pulled is not here."""
        paths = {layer.diff_id: self.path(layer) for layer in layers}
        return {diff_id: path for diff_id, path in paths.items() if path.is_file()}

    def lock(
        self, key: str, check: Callable[[], object] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Let no other process make the layer of this key meanwhile. check: of `files.locked`."""
        return files.locked(self.folder / "keys" / f"{key}.lock", check=check)

    @property
    def unfinished(self) -> str:
        """The prefix of what this process has not finished; it names the process."""
        return f".new.{containers.owner(os.getpid()).replace(':', ',')}."

    def sweep(self) -> None:
        for path in self.folder.glob(".new.*"):
            owner = path.name.removeprefix(".new.").rpartition(".")[0].replace(",", ":")
            with contextlib.suppress(FileNotFoundError):  # another run was faster
                old = path.lstat().st_mtime < time.time() - _UNFINISHED
                if old or containers.is_gone(owner):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Yield a file for a new blob, which `keep` takes; otherwise it is removed at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            prefix=self.unfinished, dir=self.folder, delete=False
        ) as file:
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
        path, new = self.path(layer), Path(file.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        new.chmod(0o644)
        new.replace(path)
        files.write(self._entry(layer.key), _text(_json(layer)))
        self.ignored.discard(layer.key)
        return layer

    def find_image(self, name: str) -> AssembledImage | None:
        """Return the image of this name. Its layers may be gone. It counts as used now."""
        return _read(self.folder / "images" / f"{name}.json", _image)

    def keep_image(self, name: str, image: AssembledImage) -> None:
        value = {
            "manifest": image.manifest.data.decode(),
            "configuration": image.configuration.decode(),
            "layers": [_json(layer) for layer in image.layers],
        }
        files.write(self.folder / "images" / f"{name}.json", _text(value))

    def prune(self, before: float) -> int:
        """Remove what no run has used since `before` (seconds since 1970); return the bytes freed.

        A run that is making a layer at the same time may have to make it again.
        """
        keys, images = self.folder / "keys", self.folder / "images"
        files.remove_older([*keys.glob("*.json"), *images.glob("*.json")], time.time() - before)
        layers = [_read(path, _layer, touch=False) for path in keys.glob("*.json")]
        used = {layer.blob.digest for layer in layers if layer}
        freed = 0
        for blob in (self.folder / "blobs" / "sha256").glob("*"):
            if f"sha256:{blob.name}" not in used and blob.stat().st_mtime < before:
                freed += blob.stat().st_size
                blob.unlink(missing_ok=True)
        return freed

    def _entry(self, key: str) -> Path:
        return self.folder / "keys" / f"{key}.json"


def of_this_machine() -> ContentStore:
    """Return the content store in the user's cache, without what killed runs left."""
    store = ContentStore(files.cache_home() / "layers")
    store.sweep()
    return store


def base_layers(plan: BasePlan, known: Mapping[str, Layer]) -> list[dict[str, Any]]:
    """Return a row for each layer of a base, with its sizes where they are known.

    known: the committed layers by key. Others are looked for in the store.
    """
    store, rows = of_this_machine(), []
    for planned in plan.layers:
        layer = known.get(planned.key) or store.find(planned.key)
        rows.append(
            {
                "name": planned.name,
                "packages": list(planned.packages),
                "why": planned.why,
                "key": planned.key,
                "download_bytes": planned.download,
                "packed_bytes": layer.blob.size if layer else None,
                "unpacked_bytes": layer.unpacked_bytes if layer else None,
                "digest": layer.blob.digest if layer else None,
            }
        )
    return rows


def _read(path: Path, parse: Callable[[Any], T], touch: bool = True) -> T | None:
    """Return what a cache entry holds; None where it is missing or damaged."""
    try:
        with files.opened(path) as file:
            entry = parse(files.parsed(json.loads, file.read(_ENTRY)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    with contextlib.suppress(OSError):  # the cache may be someone else's to write
        if touch:
            os.utime(path)
    return entry


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


def _image(value: Mapping[str, Any]) -> AssembledImage:
    return AssembledImage(
        Manifest(value["manifest"].encode(), OCI_MANIFEST),
        value["configuration"].encode(),
        tuple(map(_layer, value["layers"])),
    )


def _text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
