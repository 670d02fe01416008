"""Tar archives from outside, plain or compressed, read once from front to back and within bounds.

An image layer is one (OCI image specification 1.1, "Image Layer Filesystem Changeset"), and so is
what an engine saves.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, Protocol

LARGEST: Final = 8 << 30
"""Most bytes of a member: no file of an image is as large."""

LONGEST: Final = 1 << 20
"""Bytes of a member's extended header, where its attributes stand; tarfile would hold any number in
memory."""

LONGEST_NAME: Final = 4096
"""Bytes of a member's name, and of a link (PATH_MAX of Linux's limits.h)."""

MOST: Final = 2_000_000
"""Members of an archive. NVIDIA's largest images have 400,000 files."""

UNPACKED: Final = 64 << 30
"""Bytes that an archive may unpack to."""

RATIO: Final = 200
"""How often its size an archive may unpack to, after the first FREE bytes: programs and data are
packed to a half or a tenth."""

FREE: Final = 1 << 30

BROKEN: Final = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError)
"""What reading an archive that is damaged or beyond the bounds raises."""

_BLOCK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1

_NAMES: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LONG: Final = (*_NAMES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class Member(tarfile.TarInfo):
    """A header whose names are short, and whose size is none below 0.

    `_proc_member` is tarfile's own entry point for subclasses (cpython/Lib/tarfile.py, "which can
    be overridden in a subclass"). `_apply_pax_info` takes over what an extended header says: until
    Python 3.11.4 an archive ended without a word at a negative size.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        longest = LONGEST_NAME + 1 if self.type in _NAMES else LONGEST
        if self.type in _LONG and self.size > longest:
            raise ValueError(f"a name or a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _apply_pax_info(self, *headers: Any) -> None:
        super()._apply_pax_info(*headers)  # type: ignore[misc]
        if self.size < 0:
            raise ValueError(f"{self.name!r} is of {self.size} bytes")


class Digest(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...


@contextlib.contextmanager
def members(
    packed: IO[bytes],
    unpacked_digest: Digest | None = None,
    errors: str = "backslashreplace",
    skips: bool = False,
) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    """Give the members of an archive: plain, or compressed with gzip or zstd.

    With each member comes its content, None for what is no regular file. A content has to be read
    before the next member is asked for. unpacked_digest: gets every byte before compression.
    errors: how a name that is no UTF-8 is read, by default as text that can be printed and kept as
    JSON. At the end of the block `packed` is read to its end. skips: leave out what nobody reads of
    a plain file, which is opened at its begin. Raises one of BROKEN.
    """
    import zstandard

    options: Any = {"tarinfo": Member, "errors": errors}
    if skips:
        is_plain = not packing(packed.read(4))
        packed.seek(0)
        if is_plain:
            with tarfile.open(fileobj=packed, mode="r:", **options) as archive:
                yield _bounded(archive)
            return
    counted = _Counted(packed)
    plain: Any = _Bounded(unpacked(counted), counted)
    try:
        if unpacked_digest is not None:
            plain = Digested(plain, unpacked_digest)
        with tarfile.open(fileobj=plain, mode="r|", bufsize=_BLOCK, **options) as archive:
            yield _bounded(archive)
        while plain.read(_BLOCK) or counted.read(_BLOCK):
            pass
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def packing(head: bytes) -> str:
    """Return what a file is packed with that begins so: gzip, zstd or "" for nothing."""
    return "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else ""


def unpacked(packed: IO[bytes] | _Counted) -> Any:
    """Return what a file unpacks to that is plain, or compressed with gzip or zstd; for reading."""
    import zstandard

    head = packed.read(4)
    plain = stream(itertools.chain([head], iter(lambda: packed.read(_BLOCK), b"")))
    if packing(head) == "gzip":
        return gzip.GzipFile(fileobj=plain)
    if packing(head) == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(plain, read_across_frames=True)
    return plain


def _bounded(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    for number, member in enumerate(archive):
        if number >= MOST:
            raise ValueError(f"more than {MOST:,} files")
        longest = max(len(member.name), len(member.linkname))
        if longest > LONGEST_NAME:
            raise ValueError(f"a name of {longest:,} characters")
        if member.size > LARGEST:
            raise ValueError(f"{member.name}: a file of {member.size:,} bytes")
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps each header otherwise
        yield member, archive.extractfile(member) if member.isfile() else None


class Digested:
    """A stream that gives a digest its bytes as they are read."""

    def __init__(self, stream: Any, digest: Digest) -> None:
        self._stream, self._digest = stream, digest

    def read(self, size: int) -> bytes:
        block: bytes = self._stream.read(size)
        self._digest.update(block)
        return block


class _Counted:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.count += len(block)
        return block


class _Bounded(_Counted):
    """What `packed` unpacks to. Raises ValueError beyond the bounds."""

    def __init__(self, stream: IO[bytes], packed: _Counted) -> None:
        super().__init__(stream)
        self._packed = packed

    def read(self, size: int = -1) -> bytes:
        block = super().read(size)
        if self.count > UNPACKED:
            raise ValueError(f"unpacks to more than {UNPACKED >> 30} GiB")
        if self.count > FREE + RATIO * self._packed.count:
            raise ValueError(f"unpacks to more than {RATIO} times its size")
        return block


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        rest = self._rest or memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(rest))
        buffer[:size] = rest[:size]
        self._rest = rest[size:]
        return size


def stream(chunks: Iterable[bytes]) -> IO[bytes]:
    """Return chunks of bytes as a file that is read once, from front to back."""
    return io.BufferedReader(_Chunks(chunks), _BLOCK)
