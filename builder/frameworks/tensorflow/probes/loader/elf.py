"""What ld.so reads of a shared object: where it looks for others."""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH123
from __future__ import annotations

import struct
from typing import NamedTuple


class Elf(NamedTuple):
    """What the loader reads of a shared object: where it looks for others."""

    path: str
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


def read_elf(path: str) -> Elf | None:
    """Read the dynamic section of a 64-bit little-endian shared object; None for anything else."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        table, entry, count = _unpack("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
        loads: list[tuple[int, int, int]] = []  # address, offset, size in the file
        dynamic = b""
        for index in range(count):
            file.seek(table + index * entry)
            kind, _, offset, address, _, size = struct.unpack("<IIQQQQ", file.read(40))
            if kind == 1:
                loads.append((address, offset, size))
            elif kind == 2:
                file.seek(offset)
                dynamic = file.read(size)
        tags = [struct.unpack_from("<qQ", dynamic, at) for at in range(0, len(dynamic) - 15, 16)]
        first = dict(reversed(tags))
        strings = b""
        for address, offset, size in loads:
            if 5 in first and address <= first[5] < address + size:
                file.seek(offset + first[5] - address)
                strings = file.read(first.get(10, 0))

    def text(tag: int) -> str:
        if tag not in first or not strings:
            return ""
        return strings[first[tag] : strings.index(b"\0", first[tag])].decode()

    def folders(tag: int) -> tuple[str, ...]:
        # Bazel repeats each entry dozens of times; the first one decides
        return tuple(dict.fromkeys(part for part in text(tag).split(":") if part))

    return Elf(path, folders(15), folders(29))


def _unpack(kind: str, data: bytes, at: int) -> int:
    value = struct.unpack_from(kind, data, at)[0]
    return int(value)
