"""A layer as a tar archive, plain or compressed, read once and within bounds."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final, Protocol

from builder.devicecode.inventory import LARGEST
from builder.prove.audit.reader import Chunks

LONGEST: Final = 1 << 20
"""Bytes of a member's name or of its extended header; tarfile would hold any number in memory."""

MOST: Final = 5_000_000
"""Members of a layer."""

BROKEN: Final = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError)

_LONG: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _ShortNames(tarfile.TarInfo):
    """A header whose names are short. `_proc_member` is tarfile's own entry point for subclasses
    (cpython/Lib/tarfile.py, "which can be overridden in a subclass")."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _LONG and self.size > LONGEST:
            raise ValueError(f"a name or a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


class Digest(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...


class Digested:
    """A stream whose bytes a digest is given on their way."""

    def __init__(self, whole: Any, digest: Digest) -> None:
        self._whole, self._digest = whole, digest

    def read(self, size: int) -> bytes:
        block: bytes = self._whole.read(size)
        self._digest.update(block)
        return block


@contextlib.contextmanager
def opened(
    packed: IO[bytes], digest: Digest | None = None
) -> Iterator[Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]]:
    """The members of a layer: plain, or compressed with gzip or zstd. The archive goes with each,
    because a member's content has to be read before the next one is asked for.

    digest: is given every byte before packing, so that it holds the layer's diff id afterwards.
    Raises one of BROKEN for what cannot be unpacked.
    """
    import zstandard

    head = packed.read(4)
    whole: Any = Chunks(_again(head, packed))
    try:
        if head.startswith(b"\x1f\x8b"):
            whole = gzip.GzipFile(fileobj=whole)
        elif head == b"\x28\xb5\x2f\xfd":
            whole = zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True)
        if digest is not None:
            whole = Digested(whole, digest)
        with tarfile.open(fileobj=whole, mode="r|", tarinfo=_ShortNames) as archive:
            yield _members(archive)
        while digest is not None and whole.read(1 << 20):
            pass
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    for number, member in enumerate(archive):
        if number >= MOST:
            raise ValueError(f"more than {MOST:,} files")
        if member.size > LARGEST:
            raise ValueError(f"{member.name}: a file of {member.size:,} bytes")
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps each header otherwise
        yield archive, member


def _again(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while block := rest.read(1 << 20):
        yield block
