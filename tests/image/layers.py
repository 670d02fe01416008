"""For tests: wheels and Debian packages of any content, layers, and what is in a layer."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import lzma
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO

import zstandard

from builder.config.debian import Archives
from builder.config.debian_packages import DebianPackage
from builder.config.pins import Pin
from builder.core.files import hash_of
from builder.image.bytecode import BytecodeCompiler
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage, Compression, Layer, assemble
from builder.image.tarball import LayerWriter
from builder.reading import tars

THIS_PYTHON = BytecodeCompiler((sys.executable,))
"""A compiler that any machine has."""


# --- layers ---------------------------------------------------------------------------------------


def layer(
    store: ContentStore, contents: Mapping[str, bytes], compression: Compression | None = None
) -> Layer:
    """Return a layer with these files, in the store."""
    compression = compression or Compression()
    with store.writing() as file:
        writer = LayerWriter(file, compression)
        for name, content in sorted(contents.items()):
            writer.file(name, content, mode=0o755)
        key = hash_of(str(compression), repr(sorted(contents.items())))
        return store.keep(file, writer.close(key))


def image(*layers: Layer) -> AssembledImage:
    """Return the image of these layers, which prints its file `/printed`."""
    named = [(layer, f"layer {number}") for number, layer in enumerate(layers)]
    return assemble(named, {"Env": ["PATH=/"], "Entrypoint": ["/cat"], "Cmd": ["/printed"]})


@dataclass(frozen=True)
class Entry:
    """An entry of a layer: what tar tells of it, and the content of a file of at most 1 MB."""

    kind: str
    mode: int
    owner: tuple[int, int]
    date: int
    target: str
    size: int = 0
    sha256: str = ""
    content: bytes = b""


def unpacked(packed: IO[bytes]) -> dict[str, Entry]:
    """Return the entries of a packed layer by name, in its order. No name may come twice."""
    members: dict[str, Entry] = {}
    with tars.members(packed) as archive:
        for info, file in archive:
            assert info.name not in members, info.name
            kind = "folder" if info.isdir() else "link" if info.issym() else "file"
            content = file.read() if file else b""
            members[info.name] = Entry(
                kind,
                info.mode,
                (info.uid, info.gid),
                int(info.mtime),
                info.linkname,
                info.size,
                hashlib.sha256(content).hexdigest() if kind == "file" else "",
                content if len(content) <= 1 << 20 else b"",
            )
    return members


def entries(store: ContentStore, layer: Layer) -> dict[str, Entry]:
    """Return the entries of a layer in a store by name."""
    with store.path(layer).open("rb") as packed:
        return unpacked(packed)


# --- wheels ---------------------------------------------------------------------------------------


def wheel(
    files: Mapping[str, str | bytes],
    name: str = "one",
    version: str = "1.0",
    modes: Mapping[str, int] | None = None,
    record: str | bytes | None = None,
) -> bytes:
    """Return a wheel with these files and a right WHEEL, METADATA and RECORD."""
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
    """Return a zip of these files, in this order, of any name."""
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
    """Return the pin of a wheel."""
    return Pin(name, version, hashlib.sha256(content).hexdigest(), len(content))


def digest(content: bytes) -> str:
    """Return a checksum as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


# --- Debian packages ------------------------------------------------------------------------------

TIME = "20260711T221637Z"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "xz": lzma.compress,
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "": bytes,
}


def tar(*entries: tuple[str, str | bytes]) -> bytes:
    """Return a tar of files (bytes), symbolic links (text), and folders (names with a slash)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            elif name.endswith("/"):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def ar(*members: tuple[str, bytes]) -> bytes:
    """Return an ar archive, with 2026-01-01 as the date of its members."""
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:<16}{1767225600:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def package(
    *entries: tuple[str, str | bytes],
    control: Mapping[str, bytes] | None = None,
    packed: str = "xz",
) -> bytes:
    """Return a .deb with these files."""
    files = control or {"control": b"Package: a\nVersion: 1\nArchitecture: all\n"}
    suffix = f".{packed}" if packed else ""
    return ar(
        ("debian-binary", b"2.0\n"),
        (f"control.tar{suffix}", PACKERS[packed](tar(*((f"./{n}", t) for n, t in files.items())))),
        (f"data.tar{suffix}", PACKERS[packed](tar(*entries))),
    )


def record(name: str, content: bytes, archive: str = "debian") -> DebianPackage:
    """Return the lock's record of a .deb."""
    path = f"pool/main/{name[0]}/{name}/{name}_1_all.deb"
    return DebianPackage(
        name, "1", archive, TIME, path, hashlib.sha256(content).hexdigest(), len(content)
    )


def archives(address: str) -> Archives:
    """Return the archives of a server on loopback."""
    return Archives(f"{address}/debian", f"{address}/debian-security", f"{address}/snapshot")
