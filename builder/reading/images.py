"""What an image holds, wherever it lies, and what any other path holds.

Each source names the image's layers; a layer that this machine has not read is read once, whatever
brings it (layers.py). Nothing is pulled or unpacked to the disk, and nothing of the image runs.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from packaging.utils import canonicalize_name

from builder.core import parallel
from builder.core.errors import CheckFailed, InputError, OutsideError, refusal
from builder.devicecode import inventory
from builder.devicecode.library import Library
from builder.reading import tars
from builder.reading.layers import LayerCache, ReadLayer, merge
from builder.registry import Descriptor, Manifest, Reference, Registry, decoding, manifests

Blobs = Iterable[tuple[str, IO[bytes]]]
"""Name and content of each file of an image that is saved; a content is read before the next."""

_READERS: Final = 4
"""Layers that are read at once; each takes up to a library's size in the temporary folder."""
_REASONS: Final = 3
"""Damaged files of an image that an error names."""
_NESTED: Final = 3
"""How often an index may name an index."""
_MOST_JSON: Final = 64 << 20
"""Bytes of all indexes, manifests and configurations of a saved image."""
_FIX: Final = "name what `docker save` wrote, or an OCI image layout"


@dataclass(frozen=True)
class LayerSecret:
    path: str
    kind: str
    layer: str
    """The layer's diff id."""

    def __str__(self) -> str:
        return f"layer {self.layer[:19]} holds {self.kind}: {self.path}"


@dataclass(frozen=True)
class ImageContent:
    libraries: tuple[Library, ...]
    """Those that a container would see."""
    layers: tuple[ReadLayer, ...] = ()
    """The lowest first; none for what is no image."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The image's, as the OCI image specification writes it."""
    image_id: str = ""
    """The engine's name of it, "" for an image that lies elsewhere."""

    @property
    def secrets(self) -> tuple[LayerSecret, ...]:
        return tuple(
            LayerSecret(path, kind, layer.diff_id)
            for layer in self.layers
            for path, kind in layer.secrets
        )


def of_registry(
    reference: Reference,
    on_layer: Callable[[Descriptor, bool], None] = lambda *_: None,
    on_bytes: Callable[[int, int], None] = lambda *_: None,
) -> ImageContent:
    """Read an image in a registry (its linux/amd64 part) without pulling it.

    on_layer: called with each layer, and whether it was read before. on_bytes: with the packed
    bytes of all layers that are read so far, and of all. Raises InputError for an index
    without such a part, CheckFailed for a layer that cannot be unpacked, OutsideError where there
    is no such image, and for what the registry or this machine refuses.
    """
    cache, layers = LayerCache(), []
    with Registry(reference.host) as client:
        image = find_image(
            reference, lambda at: client.manifest(reference.repository, at), reference.target
        )
        configuration = client.configuration(reference.repository, image)
        before, total = 0, sum(blob.size for blob in image.layers)
        for blob in image.layers:
            known = cache.find(cache.diff_id(blob.digest) or "")
            on_layer(blob, known is not None)
            counted = partial(_counted, before=before, total=total, on_bytes=on_bytes)
            layers.append(known or _streamed(client, reference, blob, cache, counted))
            before += blob.size
    return ImageContent(merge(layers), tuple(layers), configuration)


def of_saved(
    diff_ids: Sequence[str], save: Callable[[], Blobs], files: Mapping[str, Path] | None = None
) -> ImageContent:
    """Read an image that its holder gives out file by file, as an engine does.

    diff_ids: of its layers, the lowest first. save: gives its files out, called where the machine
    has not read all layers. files: the files of layers that this machine has, by diff id. Raises
    one of tars.BROKEN for what is no archive or lacks a layer.
    """
    cache, files, why = LayerCache(), files or {}, list[str]()
    layers = {diff_id: layer for diff_id in diff_ids if (layer := cache.find(diff_id))}

    def read(blob: IO[bytes], digest: str = "") -> None:
        try:
            layer = cache.read(blob, digest)
        except tars.BROKEN as error:  # no layer, or a damaged one: it is then missing below
            if not isinstance(error, tarfile.ReadError):  # else the file is no archive
                why.append(str(error))
            return
        layers[layer.diff_id] = layer

    def read_file(path: Path) -> None:
        with path.open("rb") as file:
            read(file)

    missing = [diff_id for diff_id in dict.fromkeys(diff_ids) if diff_id not in layers]
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as pool:
        list(pool.map(read_file, (path for diff_id in missing if (path := files.get(diff_id)))))
    if not layers.keys() >= set(diff_ids):
        for name, blob in save():
            if layers.keys() >= set(diff_ids):
                break
            # Docker 25 and later name a layer's file by diff id, the containerd store by digest
            digest = f"sha256:{Path(name).name.removesuffix('.tar')}"
            if (cache.diff_id(digest) or digest) not in layers:
                read(blob, digest)
    for diff_id in diff_ids:
        if diff_id not in layers:
            reasons = f" ({'; '.join(why[:_REASONS])})" if why else ""
            raise ValueError(f"its layer {diff_id} is missing or cannot be unpacked{reasons}")
    ordered = tuple(layers[diff_id] for diff_id in diff_ids)
    return ImageContent(merge(ordered), ordered)


def of_archive(path: Path) -> ImageContent:
    """Read an image in a file that `docker save` wrote, or in an OCI image layout: a folder, or an
    archive of it. Raises InputError for what is no image, or lacks a layer."""

    try:
        texts = _texts(saved(path, skips=True))
        configuration = manifests.configuration_in(texts[described(str(path), texts)[0]])
        content = of_saved(manifests.diff_ids(configuration), partial(saved, path))
    except tars.BROKEN as error:
        raise InputError(f"{path}: no readable archive: {error}", _FIX) from None
    except OutsideError as error:  # the words for a registry's JSON of another shape
        raise InputError(f"{path}: {error.message}", _FIX) from None
    return replace(content, configuration=configuration)


def of_paths(paths: Iterable[Path]) -> ImageContent:
    """Return what images, folders, wheels and libraries hold, taken together. Raises InputError."""
    contents = parallel.each(_of_path, paths)
    return ImageContent(
        tuple(library for content in contents for library in content.libraries),
        tuple(layer for content in contents for layer in content.layers),
    )


def _of_path(path: Path) -> ImageContent:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", "name a folder, a wheel or a library")
    is_layout = (path / "index.json").is_file() and (path / "blobs").is_dir()
    is_wheel = path.suffix == ".whl"
    if is_layout or (path.is_file() and not is_wheel and tarfile.is_tarfile(path)):
        return of_archive(path)
    if path.is_dir():
        return ImageContent(inventory.of_folder(path))
    if not is_wheel or not path.is_file():
        return ImageContent((inventory.of_file(path),))
    parts = path.name.split("-")  # its name says what it is (PEP 427)
    package, version = (canonicalize_name(parts[0]), parts[1]) if len(parts) >= 5 else ("", "")
    with path.open("rb") as file:
        return ImageContent(inventory.of_wheel(file, package, version, path.name))


def archived(archive: IO[bytes], skips: bool = False) -> Iterator[tuple[str, IO[bytes]]]:
    """Give the files in an archive of an image. skips: see `tars.members`. Raises one of
    tars.BROKEN."""
    with tars.members(archive, skips=skips) as members:
        for member, content in members:
            if content:
                yield member.name.removeprefix("./"), content


def find_image(reference: object, get: Callable[[str], Manifest | None], target: str) -> Manifest:
    """Return the manifest of the image for linux/amd64 that a tag or digest leads to.

    Raises InputError for an index without one, OutsideError where there is no such image.
    """
    for _ in range(_NESTED):
        manifest = get(target)
        if manifest is None:
            raise OutsideError(f"{reference}: there is no such image", "correct its name")
        if "layers" in manifest.content:
            return manifest
        entries = manifest.manifests
        chosen = manifest.of_platform("linux", "amd64") or (
            entries[0] if len(entries) == 1 else None
        )
        if chosen is None:
            raise InputError(
                f"{reference}: holds no image for linux/amd64",
                "build it with docker build --platform linux/amd64, or name another image",
            )
        target = chosen.digest
    raise InputError(f"{reference}: its indexes name each other", "name another image")


def _counted(
    chunks: Iterable[bytes], before: int, total: int, on_bytes: Callable[[int, int], None]
) -> Iterator[bytes]:
    for chunk in chunks:
        before += len(chunk)
        on_bytes(before, total)
        yield chunk


def _streamed(
    client: Registry,
    reference: Reference,
    blob: Descriptor,
    cache: LayerCache,
    counted: Callable[[Iterable[bytes]], Iterator[bytes]],
) -> ReadLayer:
    try:
        with client.stream(reference.repository, blob) as chunks:
            return cache.read(tars.stream(counted(chunks)), blob.digest)
    except tars.BROKEN as error:
        raise CheckFailed(
            f"{reference}: a layer cannot be unpacked: {error}", "push the image again"
        ) from error
    except OSError as error:
        raise refusal(error, tempfile.gettempdir()) or error from error


def saved(path: Path, skips: bool = False) -> Blobs:
    """Yield the files of a layout, or in an archive. skips: see `tars.members`. Raises one of
    tars.BROKEN."""
    if not path.is_dir():
        with path.open("rb") as archive:
            yield from archived(archive, skips)
        return
    for entry in sorted(path.rglob("*")):
        if entry.is_file():
            with entry.open("rb") as file:
                yield entry.relative_to(path).as_posix(), file


def _texts(blobs: Blobs) -> dict[str, bytes]:
    """Return the files that are JSON, by name. Raises ValueError where they are too large."""
    texts: dict[str, bytes] = {}
    for name, blob in blobs:
        text = blob.read(decoding.LARGEST + 1)
        if len(text) <= decoding.LARGEST and text.lstrip()[:1] in (b"{", b"["):
            texts[name] = text
            if sum(map(len, texts.values())) > _MOST_JSON:
                raise ValueError(f"more than {_MOST_JSON:,} bytes of manifests")
    return texts


def described(name: str, texts: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """Return the files of the configuration and of the layers, the lowest first, of the image that
    these indexes, manifests and configurations describe.

    Formats: Docker's `manifest.json` (moby, image/spec/v1.2.md), and the OCI image specification
    1.1, "Image Layout". Raises InputError, OutsideError.
    """
    if "manifest.json" in texts:
        listed = decoding.object_in(b'{"images": %b}' % texts["manifest.json"])
        images = decoding.objects(listed, "images")
        if len(images) != 1:
            raise InputError(f"{name}: holds not one image", "save one image by itself")
        config = decoding.text(images[0], "Config") or ""
        layers = tuple(decoding.texts(images[0], "Layers"))
    elif "index.json" in texts:

        def get(digest: str) -> Manifest:
            text = texts.get(manifests.blob_path(digest) if digest else "index.json")
            if text is None:
                raise InputError(f"{name}: its manifest {digest} is missing", _FIX)
            return Manifest(text, manifests.OCI_MANIFEST)

        image = find_image(name, get, "")
        config = manifests.blob_path(image.config.digest)
        layers = tuple(manifests.blob_path(layer.digest) for layer in image.layers)
    else:
        raise InputError(f"{name}: holds no image: no manifest.json, no index.json", _FIX)
    if config not in texts:
        raise InputError(f"{name}: its configuration {config} is missing", _FIX)
    return config, layers
