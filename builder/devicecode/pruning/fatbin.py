"""Fatbin containers: what device code a library carries, read from the headers alone.

Names are those of NVIDIA's `fatbinary_section.h`. A container is a header of 16 bytes

    u32 magic, u16 version, u16 header size, u64 bytes of all entries

and entries back to back, each with a header of at least 64 bytes

    0x00 u16 kind    0x02 u16 version 0x0101   0x04 u32 header size   0x08 u64 payload size (padded)
    0x10 u32 compressed size   0x1c u32 architecture   0x28 u64 flags   0x38 u64 decompressed size

Containers lie where the compiler puts them (`.nv_fatbin`, and `__nv_relfatbin` for the inputs of
device linking), but also in ordinary data: TensorFlow keeps 1,149 in `.rodata`, cuFFT 21,652 in
`.data` or `.ldata`, cuBLASLt and cuDNN some in `.cask_resource`. NVIDIA's cuobjdump lists the first
two kinds of section only. So every section that is loaded and holds data is searched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from .elf import ALLOC, EXECUTABLE, PROGBITS, Buffer, Section, library_sections
from .errors import Malformed

PTX, ELF, LTO_IR = 1, 2, 8
KINDS = {
    PTX: "ptx",
    ELF: "sass",
    LTO_IR: "lto-ir",
    0x10: "mercury",
    0x20: "index",
    0x40: "relocatable-ptx",
    0x80: "tile-ir",
    0x100: "concatenated",
}
FLAG_LZ4, FLAG_ZSTD = 0x2000, 0x8000
FLAG_ARCHITECTURE_SPECIFIC, FLAG_FAMILY_SPECIFIC = 1 << 20, 1 << 21

COMPILED, LINK_INPUT = ".nv_fatbin", "__nv_relfatbin"
"""Sections that hold nothing but containers: anything else in them is an error."""

HEADER = b"\x50\xed\x55\xba\x01\x00\x10\x00"
"""Magic 0xBA55ED50, version 1, header size 16: eight bytes that chance does not make."""

_HEADER = re.compile(re.escape(HEADER))  # on a map, three times as fast as its find()

HEADER_SIZE, ENTRY_HEADER_SIZE = 16, 64
_ENTRY = struct.Struct("<HHIQI8xI8xQ8xQ")
_SIZE = struct.Struct("<Q")
_NO_CONTAINERS = (".eh_frame", ".eh_frame_hdr", ".gcc_except_table")
_LARGEST = 2**31 - 1
"""The driver reads a container's size as a signed 32-bit number (cuda-fatbin-precedence,
analysis/size-fields.md): a larger one means one thing to a reader and another to the driver."""
MOST_CONTAINERS, MOST_ENTRIES = 1_000_000, 10_000
"""Containers of a library, entries of a container. cuFFT 11.4 has 24,453 and 1, cuDNN 731 and 9."""
_AGAIN = "download or build this library again; do not use it as it is"
_ZEROS = bytes(1 << 20)


class Target(NamedTuple):
    """What one entry was compiled for: (ELF, 90, "a") is sm_90a, (PTX, 80, "") compute_80."""

    kind: int
    architecture: int
    suffix: str

    def __str__(self) -> str:
        prefix = {ELF: "sm", PTX: "compute", LTO_IR: "lto"}.get(self.kind) or (
            KINDS.get(self.kind, f"kind-{self.kind:#x}")
        )
        return f"{prefix}_{self.architecture}{self.suffix}"


class Entry(NamedTuple):
    """One compiled form of a container's code. Offset in the file and sizes in bytes."""

    offset: int
    kind: int
    architecture: int
    flags: int
    header_size: int
    payload_size: int
    compressed_size: int
    decompressed_size: int

    @property
    def size(self) -> int:
        """Header and payload: what the entry takes in the file."""
        return self.header_size + self.payload_size

    @property
    def target(self) -> Target:
        return target(self.kind, self.architecture, self.flags)

    @property
    def compression(self) -> str:
        return compression(self.flags)

    @property
    def code_size(self) -> int:
        """Bytes of the code itself, decompressed."""
        return self.decompressed_size if self.compression else self.payload_size


class Container(NamedTuple):
    """A container: where its header lies in the file, the bytes of its entries, the entries."""

    section: str
    offset: int
    entries_size: int
    entries: tuple[Entry, ...]

    @property
    def end(self) -> int:
        return self.offset + HEADER_SIZE + self.entries_size


def target(kind: int, architecture: int, flags: int) -> Target:
    suffix = ""
    if flags & FLAG_ARCHITECTURE_SPECIFIC:
        suffix = "a"
    elif flags & FLAG_FAMILY_SPECIFIC:
        suffix = "f"
    return Target(kind, architecture, suffix)


def compression(flags: int) -> str:
    """Of the payload: "lz4" (CUDA 12 and older), "zstd", or "" for none."""
    return "lz4" if flags & FLAG_LZ4 else "zstd" if flags & FLAG_ZSTD else ""


def holds_containers(section: Section) -> bool:
    """Whether containers may lie there: data that the loader maps, and not code."""
    return section.name in (COMPILED, LINK_INPUT) or (
        section.type == PROGBITS
        and section.flags & (ALLOC | EXECUTABLE) == ALLOC
        and section.size > HEADER_SIZE
        and section.name not in _NO_CONTAINERS
    )


def containers(data: Buffer) -> Iterator[Container]:
    """Every container of a library, by offset. Raises Malformed at the first contradiction."""
    found = library_sections(data)
    if not found and _find(data, 0, len(data)) >= 0:
        raise Malformed("device code in a file without a section table", _AGAIN)
    number = 0
    for section in found:
        if not holds_containers(section):
            continue
        strict = section.name in (COMPILED, LINK_INPUT)
        offset = section.offset
        while True:
            offset = (
                _skip_zeros(data, offset, section.end)
                if strict
                else _find(data, offset, section.end)
            )
            if offset < 0 or offset == section.end:
                break
            container = _container(data, offset, section)
            number += 1
            if number > MOST_CONTAINERS:
                raise Malformed(f"more than {MOST_CONTAINERS:,} containers", _AGAIN)
            yield container
            offset = container.end


def _find(data: Buffer, start: int, end: int) -> int:
    match = _HEADER.search(data, start, end)
    return match.start() if match else -1


def _container(data: Buffer, offset: int, section: Section) -> Container:
    if data[offset : offset + len(HEADER)] != HEADER:
        raise Malformed(f"{section.name}, byte {offset:#x}: not a fatbin container", _AGAIN)
    if offset + HEADER_SIZE > section.end:
        raise Malformed(f"{section.name}, byte {offset:#x}: a container cut off", _AGAIN)
    (size,) = _SIZE.unpack_from(data, offset + 8)
    first = offset + HEADER_SIZE
    if size > _LARGEST or first + size > section.end:
        raise Malformed(
            f"{section.name}, byte {offset:#x}: a container of {size:,} bytes does not fit in "
            f"the {section.end - first:,} bytes that are left of the section",
            _AGAIN,
        )
    return Container(section.name, offset, size, _entries(data, first, first + size, section.name))


def _entries(data: Buffer, offset: int, end: int, section: str) -> tuple[Entry, ...]:
    entries = []
    unpack = _ENTRY.unpack_from
    while offset < end:
        if offset + ENTRY_HEADER_SIZE > end:
            raise Malformed(f"{section}, byte {offset:#x}: an entry header cut off", _AGAIN)
        kind, version, header, payload, compressed, architecture, flags, decompressed = unpack(
            data, offset
        )
        after = offset + header + payload
        if (
            version != 0x0101
            or header < ENTRY_HEADER_SIZE
            or after > end
            or compressed > payload
            or not 0 < architecture < 1000
            or (flags & FLAG_LZ4 and flags & FLAG_ZSTD)
        ):
            raise Malformed(
                f"{section}, byte {offset:#x}: an entry contradicts itself (kind {kind}, version "
                f"{version:#x}, header {header}, payload {payload}, compressed {compressed}, "
                f"architecture {architecture}, flags {flags:#x}, container ends in {end - offset})",
                _AGAIN,
            )
        entries.append(
            Entry(offset, kind, architecture, flags, header, payload, compressed, decompressed)
        )
        offset = after
        if len(entries) > MOST_ENTRIES:
            raise Malformed(f"{section}: a container of more than {MOST_ENTRIES:,} entries", _AGAIN)
    return tuple(entries)


def _skip_zeros(data: Buffer, offset: int, end: int) -> int:
    """The first byte that is not zero, or the end. A pruned library has megabytes of zeros."""
    if data[offset : offset + 1] != b"\0":
        return min(offset, end)
    while offset < end:
        block = data[offset : min(offset + len(_ZEROS), end)]
        if block != _ZEROS[: len(block)]:
            return offset + len(block) - len(block.lstrip(b"\0"))
        offset += len(block)
    return end


def payload(data: Buffer, entry: Entry) -> bytes | None:
    """The code of an entry, decompressed; None where the standard library can't (zstd)."""
    start = entry.offset + entry.header_size
    if not entry.compression:
        return data[start : start + entry.payload_size]
    if entry.compression != "lz4":
        return None
    stored = data[start : start + entry.compressed_size]
    return _lz4(stored, entry.decompressed_size)


def _lz4(stored: bytes, size: int) -> bytes:
    """One LZ4 block, lz4_Block_format.md: for the few entries that have to be looked into."""
    out = bytearray()
    at = 0

    def length(nibble: int) -> int:
        nonlocal at
        total = nibble
        if nibble == 15:
            while True:
                total += stored[at]
                at += 1
                if stored[at - 1] != 255:
                    break
        return total

    try:
        while at < len(stored):
            token = stored[at]
            at += 1
            literals = length(token >> 4)
            out += stored[at : at + literals]
            at += literals
            if at >= len(stored):
                break
            distance = stored[at] | stored[at + 1] << 8
            at += 2
            match = length(token & 15) + 4
            if not 0 < distance <= len(out) or len(out) + match > size:
                raise Malformed("a compressed payload that can't be decompressed", _AGAIN)
            for _ in range(match):
                out.append(out[-distance])
    except IndexError:
        raise Malformed("a compressed payload that is cut off", _AGAIN) from None
    return bytes(out)
