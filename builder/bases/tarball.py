"""Writing a layer: a tar of sorted entries with one date, packed and hashed on its way to the disk.

The same entries give the same bytes on every machine. zstd's own threads do not change them: a
frame is cut into jobs by its level alone, as long as there is at least one worker.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterable
from typing import IO, Final, Protocol

from builder.bases.layer import Compression, Layer
from builder.core.templates import EPOCH
from builder.registry.manifests import Descriptor

_BLOCK: Final = tarfile.BLOCKSIZE
_GATHERED: Final = 1 << 20
"""Bytes that are collected before they are hashed and packed."""


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
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self._pending = bytearray()
        self._size = 0
        self.unpacked_bytes = 0

    def folder(self, name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """Add a folder."""
        info = _info(name, mode, owner)
        info.type = tarfile.DIRTYPE
        self._header(info)

    def link(self, name: str, target: str, owner: tuple[int, int] = (0, 0)) -> None:
        """Add a symbolic link."""
        info = _info(name, 0o777, owner)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._header(info)

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
        self._header(info)
        written = 0
        for piece in content:
            self._write(piece)
            written += len(piece)
        assert written == info.size, f"{info.name}: {written} bytes, announced {info.size}"
        self._write(bytes(-written % _BLOCK))
        self.unpacked_bytes += written

    def close(self, key: str) -> Layer:
        """End the tar; the layer that was written. The file is left open."""
        self._write(bytes(2 * _BLOCK))
        self._pack()
        self._out(self._packer.flush())
        self._file.flush()
        blob = Descriptor(
            self._compression.media_type, f"sha256:{self._packed.hexdigest()}", self._size
        )
        return Layer(key, blob, f"sha256:{self._plain.hexdigest()}", self.unpacked_bytes)

    def _header(self, info: tarfile.TarInfo) -> None:
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, data: bytes) -> None:
        if len(data) >= _GATHERED:  # no copy of what is large already
            self._pack()
            self._pack_piece(data)
            return
        self._pending += data
        if len(self._pending) >= _GATHERED:
            self._pack()

    def _pack(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        self._pack_piece(data)

    def _pack_piece(self, data: bytes) -> None:
        self._plain.update(data)
        self._out(self._packer.compress(data))

    def _out(self, packed: bytes) -> None:
        self._packed.update(packed)
        self._size += len(packed)
        self._file.write(packed)


def folders_above(paths: Iterable[str]) -> set[str]:
    """Every folder above these paths, which a layer has to hold before them."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _info(name: str, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
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
