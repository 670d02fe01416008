"""For tests: Debian packages made here, and an archive on loopback that has them."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping

import zstandard

from builder.core.debian import Archives
from builder.lock.debs import Deb

TIME = "20260711T221637Z"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "xz": lzma.compress,
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "": bytes,
}


def tar(*entries: tuple[str, str | bytes]) -> bytes:
    """A tar of files (bytes), of symbolic links (text), and of folders (names with a slash)."""
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
    """An ar archive, with 2026-01-01 as the date of its members."""
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
    """A .deb with these files."""
    files = control or {"control": b"Package: a\nVersion: 1\nArchitecture: all\n"}
    suffix = f".{packed}" if packed else ""
    return ar(
        ("debian-binary", b"2.0\n"),
        (f"control.tar{suffix}", PACKERS[packed](tar(*((f"./{n}", t) for n, t in files.items())))),
        (f"data.tar{suffix}", PACKERS[packed](tar(*entries))),
    )


def record(name: str, content: bytes, archive: str = "debian") -> Deb:
    """The lock's record of a .deb."""
    path = f"pool/main/{name[0]}/{name}/{name}_1_all.deb"
    return Deb(name, "1", archive, TIME, path, hashlib.sha256(content).hexdigest(), len(content))


def archives(address: str) -> Archives:
    """The archives of a server on loopback."""
    return Archives(f"{address}/debian", f"{address}/debian-security", f"{address}/snapshot")
