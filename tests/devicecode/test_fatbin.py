"""The reader of containers: what it reads, and that it never passes over a contradiction."""

from __future__ import annotations

import struct

import pytest

from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import PTX, containers, payload

from .writer import Part, container, elf, entry, library, lto, ptx, sass

TWO = (container(sass(70), sass(80), ptx(80)), container(sass(90, "a")))
TARGETS = [["sm_70", "sm_80", "compute_80"], ["sm_90a"]]


def targets(data: bytes) -> list[list[str]]:
    return [[str(entry.target) for entry in each.entries] for each in containers(data)]


def test_entries_are_read_in_order_with_suffix_kind_and_compression() -> None:
    entries = (
        sass(70, compression=""),
        sass(90, "a", compression="zstd"),
        sass(100, "f"),
        ptx(120, "f"),
        lto(50),
        entry(0x200, 90),
    )
    data = library(container(*entries))
    assert targets(data) == [
        ["sm_70", "sm_90a", "sm_100f", "compute_120f", "lto_50", "kind-0x200_90"]
    ]
    (only,) = containers(data)
    assert [entry.compression for entry in only.entries[:3]] == ["", "zstd", "lz4"]
    assert [entry.code_size for entry in only.entries[:3]] == [64, 8192, 8192]


@pytest.mark.parametrize("section", [".ldata", ".data", ".cask_resource", ".rodata.cubins"])
def test_containers_are_found_among_other_data(section: str) -> None:
    data = library(b"tables" * 9 + TWO[0] + b"\1" * 13 + TWO[1] + b"more", section=section)
    assert targets(data) == TARGETS


def test_the_sections_of_the_compiler_are_read_also_after_pruning() -> None:
    assert targets(elf(Part(".nv_fatbin", b"".join(TWO), flags=0))) == TARGETS
    assert targets(library(*TWO, section="__nv_relfatbin")) == TARGETS
    assert targets(elf(Part(".text", TWO[0], flags=0x6))) == [], "code is not searched"
    assert targets(library(TWO[0], bytes(3_000_001), TWO[1], bytes(5))) == TARGETS
    assert targets(library(container(), TWO[1])) == [[], ["sm_90a"]]


def test_an_lz4_payload_is_decompressed_within_its_bounds() -> None:
    """A literal run, a match that overlaps itself, and the closing literals."""

    def decompressed(block: bytes, size: int) -> bytes | None:
        data = library(container(entry(PTX, 80, payload=block, code_size=size)))
        (only,) = containers(data)
        return payload(data, only.entries[0])

    closing = bytes([0x50]) + b"12345"
    block = bytes([0x35]) + b"abc" + b"\x03\x00" + closing
    assert decompressed(block, 17) == b"abcabcabcabc12345"
    with pytest.raises(Malformed, match="can't be decompressed"):
        decompressed(bytes([0x10]) + b"a" + b"\x09\x00" + closing, 99)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def section_header(data: bytes, name: str) -> int:
    """Where the section header of a section lies."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    names = [".text", ".rodata", ".nv_fatbin", ".shstrtab"]
    return int(table) + 64 * (names.index(name) + 1)


ENTRY = 16  # where a container's first entry begins
LIES: list[tuple[str, int, bytes, str]] = [
    ("container", 0, b"\x51", "not a fatbin container"),
    ("container", 4, b"\x02", "not a fatbin container"),
    ("container", 6, b"\x18", "not a fatbin container"),
    ("container", 8, struct.pack("<Q", 1 << 20), "does not fit"),
    ("container", 8, b"\0\0\0\x80", "does not fit"),  # negative, as the driver reads it
    ("container", 8, b"\xff" * 8, "does not fit"),
    ("container", 8, struct.pack("<Q", 40), "cut off"),
    ("container", ENTRY + 2, b"\x02\x01", "contradicts"),  # the version of another format
    ("container", ENTRY + 4, b"\0\0\0\0", "contradicts"),
    ("container", ENTRY + 4, b"\x3f\0\0\0", "contradicts"),
    ("container", ENTRY + 4, struct.pack("<IQ", 56, 72), "contradicts"),  # the sum fits
    ("container", ENTRY + 8, struct.pack("<Q", 9999), "contradicts"),
    ("container", ENTRY + 8, b"\xff" * 8, "contradicts"),
    ("container", ENTRY + 0x10, b"\xff\xff", "contradicts"),  # more compressed bytes than payload
    ("container", ENTRY + 0x1C, b"\0\0\0\0", "contradicts"),  # architecture 0
    ("container", ENTRY + 0x1C, b"\xff\xff\0\0", "contradicts"),
    ("container", ENTRY + 0x28, b"\x11\xa0", "contradicts"),  # two compressions at once
    ("section", 0x18, struct.pack("<Q", 64), "overlap"),
    ("section", 0x18, struct.pack("<Q", 1 << 40), "cut off"),
    ("section", 0x20, struct.pack("<Q", 1 << 62), "cut off"),
    ("section", 0x00, struct.pack("<I", 1 << 20), "section name"),
    ("file", 4, b"\x01", "64-bit"),
    ("file", 5, b"\x02", "little-endian"),
    ("file", 0x3A, b"\x28\0", "40 bytes"),
    ("file", 0x3C, struct.pack("<H", 65_000), "cut off"),
    ("file", 0x3E, struct.pack("<H", 77), "section names"),
    ("file", 0x28, struct.pack("<Q", 1 << 63), "cut off"),
    ("file", 0x28, bytes(8), "without a section table"),
]


@pytest.mark.parametrize(("header", "at", "value", "message"), LIES)
def test_a_lying_header_is_an_error(header: str, at: int, value: bytes, message: str) -> None:
    data = library(*TWO)
    begins = {"container": data.index(TWO[0][:8]), "section": section_header(data, ".nv_fatbin")}
    with pytest.raises(Malformed, match=message):
        targets(patched(data, begins.get(header, 0) + at, value))


def test_a_file_cut_off_anywhere_and_bytes_between_containers_are_errors() -> None:
    data = library(*TWO)
    for length in range(len(data)):
        with pytest.raises(Malformed):
            targets(data[:length])
    moved = patched(
        data, section_header(data, ".nv_fatbin") + 0x18, struct.pack("<QQ", len(data), 8)
    )
    with pytest.raises(Malformed, match="a container cut off"):
        targets(moved + TWO[0][:8])
    with pytest.raises(Malformed, match="not a fatbin container"):
        targets(library(TWO[0], b"\0\0\0\0junk", TWO[1]))
