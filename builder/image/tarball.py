"""Writing a layer: a tar of sorted entries with one date, packed and hashed on its way to the disk.

The same entries give the same bytes on every machine. zstd's own threads do not change them: a
frame is cut into jobs by its level alone, as long as there is at least one worker.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Final, Protocol

from builder.core.files import EPOCH
from builder.image.layer import Compression, Layer
from builder.registry.manifests import Descriptor

PIECE: Final = 1 << 20
_LARGE: Final = 1 << 16
"""Bytes from which on a piece is packed by itself. Smaller ones are gathered to PIECE first, which
is a copy, but one call instead of many."""


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class LayerWriter:
    """Writes one layer to a file that is open for writing.

    The caller adds entries sorted by name, each folder before what is in it. Names have no leading
    slash. Nothing is valid before `close`.
    """

    def __init__(self, file: IO[bytes], compression: Compression) -> None:
        self._file = file
        self._compression = compression
        self._packer = _packer(compression)
        self._plain_hash, self._packed_hash = hashlib.sha256(), hashlib.sha256()
        self._pending = bytearray()
        self._packed_bytes = 0
        self.unpacked_bytes = 0

    def folder(self, name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        info = _info(name, mode, owner)
        info.type = tarfile.DIRTYPE
        self.entry(info)

    def link(self, name: str, target: str) -> None:
        info = _info(name, 0o777)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.entry(info)

    def file(
        self,
        name: str,
        content: bytes | Iterable[bytes],
        size: int | None = None,
        mode: int = 0o644,
        owner: tuple[int, int] = (0, 0),
    ) -> None:
        """Add a file. size: in bytes, for content in pieces; it has to be exact."""
        info = _info(name, mode, owner)
        pieces = (content,) if isinstance(content, bytes) else content
        info.size = len(content) if isinstance(content, bytes) else size or 0
        self.entry(info, pieces)

    def entry(self, info: tarfile.TarInfo, content: Iterable[bytes] = ()) -> None:
        """Add an entry as it is, for those that the other methods do not know."""
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        written = 0
        for piece in content:
            self._write(piece)
            written += len(piece)
        assert written == info.size, f"{info.name}: {written} bytes, announced {info.size}"
        self._write(bytes(-written % tarfile.BLOCKSIZE))
        self.unpacked_bytes += written

    def close(self, key: str) -> Layer:
        """End the tar and return the layer that was written. The file is left open."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._pack(self._take())
        self._output(self._packer.flush())
        self._file.flush()
        digest = f"sha256:{self._packed_hash.hexdigest()}"
        blob = Descriptor(self._compression.media_type, digest, self._packed_bytes)
        return Layer(key, blob, f"sha256:{self._plain_hash.hexdigest()}", self.unpacked_bytes)

    def _write(self, data: bytes) -> None:
        if len(data) >= _LARGE:
            self._pack(self._take())
            self._pack(data)
            return
        self._pending += data
        if len(self._pending) >= PIECE:
            self._pack(self._take())

    def _take(self) -> bytes:
        data, self._pending = bytes(self._pending), bytearray()
        return data

    def _pack(self, data: bytes) -> None:
        self._plain_hash.update(data)
        self._output(self._packer.compress(data))

    def _output(self, packed: bytes) -> None:
        self._packed_hash.update(packed)
        self._packed_bytes += len(packed)
        self._file.write(packed)


def folders_above(paths: Iterable[str]) -> set[str]:
    """Return every folder above these paths, which a layer has to hold before them."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece


def _info(name: str, mode: int, owner: tuple[int, int] = (0, 0)) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, EPOCH
    info.uid, info.gid = owner
    return info


def _packer(compression: Compression) -> _Packer:
    if compression.kind == "gzip":
        # 31: a gzip header without a date or a name
        return zlib.compressobj(compression.level, zlib.DEFLATED, 31)
    import zstandard

    # with no worker at all the bytes would be others
    workers = max(1, os.cpu_count() or 1)
    return zstandard.ZstdCompressor(level=compression.level, threads=workers).compressobj()
