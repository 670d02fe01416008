"""The libraries of an image that lies in files: what `docker save` writes, or an OCI image layout.

Formats: the OCI image specification 1.1 ("Image Layout"), and Docker's `manifest.json` (moby,
image/spec/v1.2.md). An archive holds its layers in any order, so it is read twice: what names the
layers, then the layers.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from . import layers
from .inventory import Library
from .pruning.errors import InputError

_LARGEST_JSON = 4 << 20
"""Bytes of an index or a manifest (OCI distribution specification: registries allow 4 MB)."""
_FIX = "name what `docker save` wrote, or an OCI image layout"


def is_layout(path: Path) -> bool:
    """Is it a folder that holds an image?"""
    return path.is_dir() and (path / "index.json").is_file() and (path / "blobs").is_dir()


def is_archive(path: Path) -> bool:
    """Is it a tar archive (of an image: anything else in it is an error later)?"""
    return path.is_file() and path.suffix != ".whl" and tarfile.is_tarfile(path)


def from_layout(folder: Path) -> tuple[Library, ...]:
    """Every library that a container of the image would see. Raises InputError."""

    def text(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() else None

    names = layer_names(text, str(folder))
    read = []
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder}: its layer {name} is missing", _FIX)
        with (folder / name).open("rb") as file:
            read.append(layers.read(file, f"{folder}/{name}"))
    return layers.merge(reversed(read))


def from_archive(path: Path) -> tuple[Library, ...]:
    """Every library that a container of the image would see. Raises InputError."""
    texts: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for member, file in _members(path):
        name = member.name.removeprefix("./")
        if member.issym() or member.islnk():  # Docker before 25 links equal layers
            target = member.linkname if member.islnk() else f"{Path(name).parent}/{member.linkname}"
            links[name] = str(_normal(target))
        elif file and member.size <= _LARGEST_JSON:
            texts[name] = file.read()
    wanted = [links.get(name, name) for name in layer_names(texts.get, str(path))]
    read: dict[str, layers.ReadLayer] = {}
    for member, file in _members(path):
        name = member.name.removeprefix("./")
        if file and name in wanted and name not in read:
            read[name] = layers.read(file, f"{path}:{name}")
    missing = [name for name in wanted if name not in read]
    if missing:
        raise InputError(f"{path}: its layer {missing[0]} is missing", _FIX)
    return layers.merge([read[name] for name in reversed(wanted)])


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    try:
        with tarfile.open(path, mode="r:*") as archive:
            for member in archive:
                yield member, archive.extractfile(member) if member.isfile() else None
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{path}: cannot be unpacked: {error}", _FIX) from None


def _normal(path: str) -> Path:
    parts: list[str] = []
    for part in Path(path).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return Path(*parts)


def layer_names(text: Callable[[str], bytes | None], where: str) -> list[str]:
    """The files of an image's layers, the lowest first. text: the content of a file, or None.

    An archive with several images is refused: they would be judged as one. Raises InputError.
    """
    docker = text("manifest.json")
    if docker is not None:
        images = _json(docker, where)
        if not (isinstance(images, list) and len(images) == 1 and isinstance(images[0], dict)):
            raise InputError(f"{where}: holds not one image", "save one image by itself")
        return [str(name) for name in images[0].get("Layers") or ()]
    index = text("index.json")
    if index is None:
        raise InputError(f"{where}: holds no image: no manifest.json, no index.json", _FIX)
    found = _json(index, where)
    for _ in range(3):  # an index may name an index
        chosen = chosen_manifest(found, where)
        if chosen is None:
            return [_blob(one.get("digest")) for one in found.get("layers") or ()]
        content = text(_blob(chosen))
        if content is None:
            raise InputError(f"{where}: its manifest {chosen} is missing", _FIX)
        found = _json(content, where)
    raise InputError(f"{where}: its indexes name each other", _FIX)


def chosen_manifest(content: Mapping[str, Any], where: str) -> str | None:
    """The digest that an index names for linux/amd64; None where it is a manifest. Raises
    InputError where there is not one."""
    if not isinstance(content, dict) or "layers" in content:
        return None
    several: Sequence[Any] = content.get("manifests") or ()
    entries = [one for one in several if isinstance(one, dict)]
    if len(entries) > 1:
        entries = [one for one in entries if _platform(one) == ("linux", "amd64")]
    if len(entries) != 1:
        raise InputError(f"{where}: holds not one image for linux/amd64", "name one image")
    return str(entries[0].get("digest"))


def _platform(entry: Mapping[str, Any]) -> tuple[str, str]:
    platform = entry.get("platform") or {}
    return str(platform.get("os")), str(platform.get("architecture"))


def _blob(digest: object) -> str:
    return "blobs/" + str(digest).replace(":", "/", 1)


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: its manifest is no JSON", _FIX) from None
