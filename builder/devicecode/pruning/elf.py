"""The sections of an ELF64 file, little-endian (x86-64, AArch64).

Layout: System V gABI, chapter 4 (ELF header, section header). Every number read from the file is
checked against the file's size before it is used: a truncated download must give an error, not an
empty list, because "no device code" would be a verdict.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import NamedTuple, Union

from .errors import Malformed

Buffer = Union[bytes, mmap.mmap]  # noqa: UP007 - an alias, and Python 3.9

LIBRARY_NAME = re.compile(r"\.so(\.\d+)*$")
MAGIC = b"\x7fELF"
PROGBITS, NOBITS = 1, 8
ALLOC, EXECUTABLE = 0x2, 0x4

_HEADER_SIZE, _SECTION_SIZE = 64, 64
_SECTION = struct.Struct("<IIQQQQIIQQ")


class Section(NamedTuple):
    """Where a section lies in the file; offset and size in bytes."""

    name: str
    type: int
    flags: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def sections(data: Buffer) -> tuple[Section, ...]:
    """The sections that have bytes in the file, by offset. Raises Malformed."""
    size = len(data)
    if data[:6] != MAGIC + b"\x02\x01":
        raise Malformed("not a 64-bit little-endian ELF file", _AGAIN)
    if size < _HEADER_SIZE:
        raise Malformed(f"cut off inside the ELF header, after {size} bytes", _AGAIN)
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    if table == 0:
        return ()
    if entry_size != _SECTION_SIZE:
        raise Malformed(f"section headers of {entry_size} bytes instead of 64", _AGAIN)
    if table + _SECTION_SIZE > size:
        raise Malformed(
            f"cut off: its section table should be at byte {table:,}, the file ends at {size:,}",
            _AGAIN,
        )
    first = _SECTION.unpack_from(data, table)
    # gABI: more than 0xff00 sections, and the number stands in the first header
    count, names_at = count or first[5], first[6] if names_at == 0xFFFF else names_at
    if table + count * _SECTION_SIZE > size:
        raise Malformed(
            f"cut off: its section table of {count} sections should end at byte "
            f"{table + count * _SECTION_SIZE:,}, the file ends at {size:,}",
            _AGAIN,
        )
    if count == 0:
        return ()
    if names_at >= count:
        raise Malformed(f"section names in section {names_at}, of {count} sections", _AGAIN)
    headers = [_SECTION.unpack_from(data, table + i * _SECTION_SIZE) for i in range(count)]
    names = headers[names_at]
    if names[4] + names[5] > size:
        raise Malformed("its section names lie beyond the end of the file", _AGAIN)
    text = data[names[4] : names[4] + names[5]]
    found = []
    for name_at, kind, flags, _, offset, length, *_ in headers:
        if kind in (0, NOBITS) or length == 0:
            continue
        end_of_name = text.find(b"\0", name_at)
        if name_at >= len(text) or end_of_name < 0:
            raise Malformed("a section name lies outside the section names", _AGAIN)
        name = text[name_at:end_of_name].decode("utf-8", "replace")
        if offset + length > size:
            raise Malformed(
                f"cut off: section {name} should end at byte {offset + length:,}, "
                f"the file ends at {size:,}",
                _AGAIN,
            )
        found.append(Section(name, kind, flags, offset, length))
    return tuple(sorted(found, key=lambda section: section.offset))


def library_sections(data: Buffer) -> tuple[Section, ...]:
    """The sections of a library, as `sections` has them. Raises Malformed where two overlap.

    A linker never makes such a library. NVIDIA's compiler makes such cubins: `.nv.constant3` and
    `.nv.merc.nv.constant.user` share bytes in those of bitsandbytes 0.50.2.
    """
    found = sections(data)
    for before, after in zip(found, found[1:]):  # noqa: B905, RUF007 - Python 3.9
        if before.end > after.offset:
            raise Malformed(f"sections {before.name} and {after.name} overlap", _AGAIN)
    return found


_AGAIN = "download or build this library again"
