"""Wheels of any content, and the entries of a layer that was made from them."""

from __future__ import annotations

import base64
import hashlib
import io
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.bases.bytecode import Compiler
from builder.bases.layer import Layer
from builder.bases.store import Store
from builder.lock.pins import Pin

HERE = Compiler((sys.executable,))
"""A compiler that any machine has: this Python."""


@dataclass(frozen=True)
class Entry:
    """An entry of a layer: what tar says of it, and the sha256 of its content."""

    kind: str
    mode: int
    target: str
    sha256: str
    size: int


def wheel(
    files: Mapping[str, str | bytes],
    name: str = "one",
    version: str = "1.0",
    modes: Mapping[str, int] | None = None,
    record: str | bytes | None = None,
) -> bytes:
    """The bytes of a wheel with these files and a right WHEEL, METADATA and RECORD."""
    info = f"{name}-{version}.dist-info"
    given = {
        **files,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    whole = {path: text.encode() if isinstance(text, str) else text for path, text in given.items()}
    rows = [f"{path},sha256={digest(content)},{len(content)}" for path, content in whole.items()]
    listed = "\n".join([*rows, f"{info}/RECORD,,", ""]) if record is None else record
    whole[f"{info}/RECORD"] = listed.encode() if isinstance(listed, str) else listed
    return zipped(whole.items(), modes or {})


def zipped(files: Iterable[tuple[str, bytes]], modes: Mapping[str, int] | None = None) -> bytes:
    """A zip of these files, in this order, of any name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files:
            member = zipfile.ZipInfo("placeholder", (1980, 1, 1, 0, 0, 0))
            member.filename = path
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (stat.S_IFREG | (modes or {}).get(path, 0o644)) << 16
            archive.writestr(member, content)
    return out.getvalue()


def pin(content: bytes, name: str = "one", version: str = "1.0") -> Pin:
    """The pin of a wheel's bytes."""
    return Pin(name, version, hashlib.sha256(content).hexdigest(), len(content))


def digest(content: bytes) -> str:
    """A checksum as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def entries(store: Store, layer: Layer) -> dict[str, Entry]:
    """The entries of a layer by name. No name may come twice."""
    import zstandard

    found: dict[str, Entry] = {}
    with store.path(layer).open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file)
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for info in tar:
                assert info.name not in found, info.name
                found[info.name] = _entry(tar, info)
    return found


def _entry(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Entry:
    kind = "folder" if info.isdir() else "link" if info.issym() else "file"
    seen = hashlib.sha256()
    content = tar.extractfile(info) if kind == "file" else None
    while content and (piece := content.read(1 << 20)):
        seen.update(piece)
    return Entry(kind, info.mode, info.linkname, seen.hexdigest() if content else "", info.size)


def text_of(store: Store, layer: Layer, path: str) -> str:
    """The text of a file in a layer."""
    return contents(store, layer)[path].decode()


def contents(store: Store, layer: Layer) -> dict[str, bytes]:
    """The content of each file of a small layer."""
    import zstandard

    with store.path(layer).open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar if one.isreg()}  # type: ignore[union-attr]


def files_below(folder: Path) -> dict[str, Path]:
    """Every file below a folder, by its path from there."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }
