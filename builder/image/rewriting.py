"""Writing a layer of an image anew without some of its files, or with less device code in them.

Every other entry stays as it is: whiteouts, hard links, attributes, dates.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from builder.devicecode.pruning.errors import CheckFailed
from builder.devicecode.pruning.prune import prune_file
from builder.devicecode.pruning.rule import ComputeCapability
from builder.image.layer import LEVELS, Compression
from builder.image.layer import Layer as Made
from builder.image.tarball import LayerWriter, pieces
from builder.reading import tars
from builder.reading.layers import path_of

_OF_SPARSE: Final = ("GNU.sparse.", "path", "size")
"""What an extended header says of a file with holes alone."""


@dataclass(frozen=True)
class Edits:
    """What becomes of the files of a layer, by absolute path."""

    removed: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    """Files that become symbolic links, and where to."""
    pruned: frozenset[str] = frozenset()
    """Libraries that lose the device code of other GPUs."""


@dataclass(frozen=True)
class Pruned:
    """What became of a library that was to be pruned. Sizes in bytes."""

    sha256: bytes = b""
    size: int = 0
    gone: int = 0
    """How many bytes are zeros now."""
    left: str = ""
    """Why it was left as it was; "" where it was not."""


def write(
    packed: Path, kind: str, edits: Edits, device: ComputeCapability | None, out: IO[bytes]
) -> tuple[Made, str, dict[str, Pruned]]:
    """Write a layer with these edits to a file.

    kind: the media type of the old layer, whose compression the new one has; one that is not packed
    is packed. device: whose code stays. Returns the new layer, the digest before packing of the old
    one, and what became of each library. Raises one of tars.BROKEN.
    """
    compression = Compression("gzip", LEVELS["gzip"]) if kind.endswith("gzip") else Compression()
    writer, done, old = LayerWriter(out, compression), dict[str, Pruned](), hashlib.sha256()
    with packed.open("rb") as file, tars.members(file, old, "surrogateescape") as archive:
        for member, content in archive:
            path = path_as_read(member.name)
            if member.isdir() or path not in edits.removed:
                _write(writer, member, content, path, edits, device, done)
    key = f"{packed.name}{sorted(edits.removed)}{edits.links}{sorted(edits.pruned)}{device}"
    made = writer.close(hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest())
    return made, f"sha256:{old.hexdigest()}", done


def files(packed: Path, paths: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield these files of a layer, with their content. Raises one of tars.BROKEN."""
    with packed.open("rb") as file, tars.members(file) as archive:
        for member, content in archive:
            path = str(path_of(member.name))
            if content and path in paths:
                yield path, content


def path_as_read(name: str) -> str:
    """Return a member's path as the reader of layers has it (tars.members, errors)."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return str(path_of(text))


def _write(
    writer: LayerWriter,
    member: tarfile.TarInfo,
    content: IO[bytes] | None,
    path: str,
    edits: Edits,
    device: ComputeCapability | None,
    done: dict[str, Pruned],
) -> None:
    if member.issparse():  # its content comes with the holes
        member.type = tarfile.REGTYPE
        rest = {k: v for k, v in member.pax_headers.items() if not k.startswith(_OF_SPARSE)}
        member.pax_headers = rest
    if content is None:
        member.size = 0
        writer.entry(member)
    elif path in edits.links:
        member.type, member.linkname, member.size = tarfile.SYMTYPE, edits.links[path], 0
        member.mode, member.pax_headers = 0o777, {}
        writer.entry(member)
    elif path in edits.pruned and device:
        with _pruned(content, device) as (library, done[path]):
            writer.entry(member, pieces(library))
    else:
        writer.entry(member, pieces(content))


@contextmanager
def _pruned(content: IO[bytes], device: ComputeCapability) -> Iterator[tuple[IO[bytes], Pruned]]:
    """Give a library without the code of other GPUs; one that cannot be pruned as it is."""
    with tempfile.TemporaryDirectory(prefix="pruning-") as scratch:
        library = Path(scratch, "library.so")
        with library.open("wb") as file:
            file.writelines(pieces(content))
        try:
            result = prune_file(library, device)
            left, gone = "", result.bytes_gone
        except CheckFailed as error:
            left, gone = error.message.replace(f"{library}: ", ""), 0
        with library.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            file.seek(0)
            yield file, Pruned(digest, library.stat().st_size, gone, left)
