"""What a PTX entry says of itself: the version of its instruction set, and what it compiles for.

A container's header gives an architecture, and the driver chooses by it. But the PTX text decides
whether the driver can compile the entry: `.target sm_90a` compiles for 9.0 alone, whatever the
header says, and `.version 8.5` needs a driver that knows PTX ISA 8.5. Source: NVIDIA, PTX ISA,
"PTX module directives". Seen in tensorflow 2.16 to 2.20, whose 1,149 modules of `compute_90` say
`.target sm_90a` (tensorflow#101746).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from builder.devicecode.pruning.elf import Buffer
from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import PTX, Entry, Target

_HEAD = 2 << 10
"""Bytes of a text that are looked at. The directives come first, after comments."""
_LARGEST = 64 << 20
"""Bytes of one text; the largest that was seen has 3 MB."""
_VERSION = re.compile(rb"^[ \t]*\.version[ \t]+(\d+\.\d+)", re.MULTILINE)
_TARGET = re.compile(rb"^[ \t]*\.target[ \t]+sm_(\d+)([af]?)\b", re.MULTILINE)


class Directives(NamedTuple):
    """The directives of a PTX text: `.version` as "8.5", `.target sm_90a` as 90 and "a"."""

    version: str
    architecture: int
    suffix: str

    @property
    def target(self) -> Target:
        return Target(PTX, self.architecture, self.suffix)

    def __str__(self) -> str:
        return f"PTX {self.version} for sm_{self.architecture}{self.suffix}"


def newest(versions: Iterable[str]) -> str:
    """Return the newest of these versions of the PTX ISA, "" where there is none."""
    return max(filter(None, versions), key=_number, default="")


def directives(data: Buffer, entry: Entry) -> Directives | None:
    """Return the directives of a PTX entry; None for another kind, and where they can't be read."""
    if entry.kind != PTX:
        return None
    try:
        head = text(data, entry, _HEAD)
    except Malformed:
        return None
    version, target = _VERSION.search(head), _TARGET.search(head)
    if not version or not target:
        return None
    return Directives(version[1].decode(), int(target[1]), target[2].decode())


def text(data: Buffer, entry: Entry, most: int = _LARGEST) -> bytes:
    """Return the text of a PTX entry, at most so many bytes of it. Raises Malformed."""
    start = entry.offset + entry.header_size
    if not entry.compression:
        return bytes(data[start : start + min(entry.payload_size, most)])
    stored = data[start : start + entry.compressed_size]
    size = min(entry.decompressed_size, most)
    if entry.compression == "lz4":
        return _lz4(stored, size)
    import zstandard  # slow, and only to read a library

    try:
        return zstandard.ZstdDecompressor().stream_reader(stored).read(size)
    except zstandard.ZstdError as error:
        raise Malformed(f"a compressed payload that can't be decompressed: {error}") from None


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _lz4(stored: bytes, size: int) -> bytes:
    """Return the first `size` bytes of an LZ4 block (lz4_Block_format.md). Raises Malformed."""
    out = bytearray()
    at = 0
    try:
        while len(out) < size:
            token = stored[at]
            at += 1
            literals, at = _length(stored, at, token >> 4)
            out += stored[at : at + literals]
            at += literals
            if at >= len(stored):
                break
            distance = stored[at] | stored[at + 1] << 8
            match, at = _length(stored, at + 2, token & 15)
            if not 0 < distance <= len(out):
                raise Malformed("a compressed payload that can't be decompressed")
            match = min(match + 4, size - len(out) if len(out) < size else 0)
            pattern = bytes(out[-distance:])
            out += (pattern * (match // distance + 1))[:match]
    except IndexError:
        raise Malformed("a compressed payload that is cut off") from None
    return bytes(out[:size])


def _length(stored: bytes, at: int, nibble: int) -> tuple[int, int]:
    """Return a length that begins with four bits, and where the bytes go on."""
    total = nibble
    if nibble == 15:
        while stored[at] == 255:
            total, at = total + 255, at + 1
        total, at = total + stored[at], at + 1
    return total, at
