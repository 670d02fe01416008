"""The libraries of an image's layers: which of them a container would see.

Whiteouts are those of the OCI image specification 1.1, "Layer filesystem changeset": `.wh.NAME`
hides NAME in the layers below, and `.wh..wh..opq` hides everything that its folder holds there.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Protocol

from .inventory import LARGEST, Library, from_files
from .pruning.errors import InputError

ZSTD = b"\x28\xb5\x2f\xfd"
"""The first bytes of what zstd packed (RFC 8878, 3.1.1)."""
_MOST = 5_000_000
"""Members of a layer."""


class Hides(Protocol):
    """What a layer brings, and what it hides of the layers below. Absolute paths.

    removed: paths that whiteouts remove, with everything below them. emptied: folders of which no
    lower layer shows anything. files: everything but folders; each hides what had its name below.
    """

    @property
    def removed(self) -> Iterable[str]: ...
    @property
    def emptied(self) -> Iterable[str]: ...
    @property
    def files(self) -> Iterable[str]: ...
    @property
    def libraries(self) -> Iterable[Library]: ...


@dataclass
class ReadLayer:
    """A layer that is being read: as Hides says."""

    removed: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    libraries: tuple[Library, ...] = ()

    def brings(self, name: str, is_folder: bool) -> str:
        """Note a member; its absolute path, "" for a whiteout and for a folder."""
        path = PurePosixPath("/", name.lstrip("/").removeprefix("./"))
        if path.name == ".wh..wh..opq":
            self.emptied.add(str(path.parent))
        elif path.name.startswith(".wh."):
            self.removed.add(str(path.parent / path.name.removeprefix(".wh.")))
        elif not is_folder:
            self.files.add(str(path))
            return str(path)
        return ""


def read(packed: IO[bytes], where: str) -> ReadLayer:
    """A layer, plain or packed with gzip; with zstd where this Python has it (3.14, or the package
    zstandard). `packed` need not be seekable.

    where: names the layer in an error. Raises InputError for what cannot be unpacked.
    """
    layer = ReadLayer()
    try:
        with tarfile.open(fileobj=_plain(packed, where), mode="r|*") as archive:
            layer.libraries = tuple(from_files(_members(archive, layer)))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # this machine's fault, which says nothing of the layer
        raise InputError(f"{where}: cannot be unpacked: {error}", "fetch the image again") from None
    return layer


def _members(archive: tarfile.TarFile, layer: ReadLayer) -> Iterator[tuple[str, IO[bytes]]]:
    for number, member in enumerate(archive):
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps each header otherwise
        if number >= _MOST or member.size > LARGEST:
            raise ValueError(f"{member.name}: more than {_MOST:,} files, or one of {member.size:,}")
        path = layer.brings(member.name, member.isdir())
        file = archive.extractfile(member) if path and member.isfile() else None
        if file:
            yield path, file


class _Peeked:
    """A stream of which the first bytes were looked at."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        block, self._head = self._head, b""
        return block + self._rest.read(size - len(block) if size >= 0 else -1)


def _plain(packed: IO[bytes], where: str) -> IO[bytes]:
    """What tarfile can read: zstd is unpacked here, gzip there."""
    head = packed.read(4)
    whole = _Peeked(head, packed)
    if head != ZSTD:
        return whole  # type: ignore[return-value]
    try:
        from compression.zstd import ZstdFile  # type: ignore[import-not-found,unused-ignore]

        return ZstdFile(whole)  # type: ignore[no-any-return,unused-ignore]
    except ImportError:
        pass
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        raise InputError(
            f"{where}: is packed with zstd, which this Python does not know",
            "take Python 3.14, or pip install zstandard",
        ) from None
    return ZstdDecompressor().stream_reader(whole, read_across_frames=True)  # type: ignore[arg-type]


def merge(layers: Iterable[Hides]) -> tuple[Library, ...]:
    """The libraries that a container would see. layers: the topmost first."""
    hidden: set[str] = set()  # these paths, and everything below them
    emptied: set[str] = set()  # everything below these folders, not the folders themselves
    seen = []
    for layer in layers:
        for library in layer.libraries:
            above = set(map(str, PurePosixPath(library.path).parents))
            if library.path not in hidden and not above & hidden and not above & emptied:
                seen.append(library)
        hidden |= {*layer.removed, *layer.files}
        emptied |= set(layer.emptied)
    return tuple(seen)
