"""Reading a Debian package (.deb) without dpkg: an ar archive of two packed tars.

The layout is deb(5)'s: `debian-binary`, then `control.tar.*`, then `data.tar.*`. An archive whose
entries lead out of the root, are devices, or are larger than what it may hold is refused.
"""

from __future__ import annotations

import contextlib
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from builder.core.errors import OutsideError
from builder.image.tarball import pieces
from builder.reading import tars

MOST_UNPACKED: Final = 4 << 30
"""Bytes that one package may unpack to."""
_MOST_CONTROL: Final = 16 << 20
_XZ_MEMORY: Final = 256 << 20
"""Bytes; the strongest preset of xz asks for 65 MiB."""
_MOST_ENTRIES: Final = 500_000
_HEADER: Final = 60
_KINDS: Final = (
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
)
_Entries = Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]


def built(deb: Path) -> int:
    """Return when a package was built, in seconds since 1970: the date of its first member."""
    with _explained(deb), deb.open("rb") as file:
        for _, date, _ in _members(file):
            return date
        raise ValueError("it is empty")


def control(deb: Path) -> dict[str, bytes]:
    """Return the files of control.tar by name: `control`, `postinst`, `conffiles` ..."""
    with _explained(deb), _tar(deb, "control.tar", _MOST_CONTROL) as tar:
        return {info.name: content.read() for info, content in tar if content}


def files(deb: Path) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield the entries of data.tar in its order, each with the pieces of its content.

    Names are like `usr/bin/env`, without a leading `./`; the root itself is left out. A content
    that is not read before the next entry is asked for is skipped.
    """
    with _explained(deb), _tar(deb, "data.tar", MOST_UNPACKED) as tar:
        for info, content in tar:
            yield info, _pieces(deb, content)


class _Bytes:
    """So many bytes of a file from where it stands; beyond them it ends."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


class _Most:
    """Counts what a package unpacks to. `update` raises ValueError beyond so many bytes."""

    def __init__(self, most: int) -> None:
        self._left = most

    def update(self, data: bytes, /) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than a package may hold")


@contextlib.contextmanager
def _explained(deb: Path) -> Iterator[None]:
    """Turn what a damaged or hostile archive raises into OutsideError."""
    try:
        yield
    except (*tars.BROKEN, OverflowError, lzma.LZMAError) as error:
        raise OutsideError(
            f"{deb.name}: not a package that can be read: {error}",
            f"delete {deb} and run this again",
        ) from None


def _members(file: IO[bytes]) -> Iterator[tuple[str, int, int]]:
    """Yield name, date and size of each member; the file then stands at the member's content."""
    if file.read(8) != b"!<arch>\n":
        raise ValueError("it is no ar archive")
    while header := file.read(_HEADER):
        if len(header) < _HEADER or header[58:] != b"`\n":
            raise ValueError("a member's header is damaged")
        size = int(header[48:58])
        begins = file.tell()
        if size < 0:
            raise ValueError("a member's size is negative")
        yield header[:16].decode("ascii").strip().rstrip("/"), int(header[16:28]), size
        file.seek(begins + size + size % 2)


@contextlib.contextmanager
def _tar(deb: Path, member: str, most: int) -> Iterator[_Entries]:
    """Yield the entries of the packed tar of this name, each with its content, for reading once."""
    with deb.open("rb") as file:
        for name, _, size in _members(file):
            stem, _, suffix = name.rpartition(".")
            if member in (name, stem):
                if name != member and suffix not in ("gz", "xz", "zst"):
                    raise ValueError(f"its tar is packed with {suffix}, which is not known here")
                packed: Any = _Bytes(file, size)
                packed = _Xz(packed) if suffix == "xz" else packed
                with tars.members(packed, _Most(most), "surrogateescape") as tar:
                    yield _checked(tar)
                return
    raise ValueError(f"it has no {member}")


class _Xz:
    """What an xz unpacks to, with at most _XZ_MEMORY: its header asks for up to 4 GiB."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        while not self._unpacker.eof:
            packed = self._packed.read(size) if self._unpacker.needs_input else b""
            if not packed and self._unpacker.needs_input:
                raise EOFError("its xz ended too early")
            if piece := self._unpacker.decompress(packed, size):
                return piece
        return b""


def _checked(tar: _Entries) -> _Entries:
    for number, (info, content) in enumerate(tar):
        if number >= _MOST_ENTRIES:
            raise ValueError(f"it has more than {_MOST_ENTRIES} entries")
        if not 0 <= info.mtime < 1 << 36:  # extended headers hold any number
            raise ValueError(f"{info.name!r} is of the time {info.mtime}")
        name = info.name.removeprefix("./").rstrip("/")
        if name in (".", ""):
            continue
        if info.type not in _KINDS:
            raise ValueError(f"{name!r} is neither a file nor a folder nor a link")
        info.name = _inside(name)
        if info.islnk():
            info.linkname = _inside(info.linkname.removeprefix("./"))
        yield info, content


def _inside(name: str) -> str:
    """Return the name. Raises ValueError where it leads out of the root."""
    if name.startswith("/") or not name.isprintable() or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"the entry {name!r} leads out of the root")
    return name


def _pieces(deb: Path, content: IO[bytes] | None) -> Iterator[bytes]:
    with _explained(deb):  # the reader's own frame: what is raised here does not pass `files`
        yield from pieces(content) if content else ()
