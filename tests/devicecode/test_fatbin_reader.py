"""The reader: what it finds, and that it never passes over a contradiction."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import PTX, Target, containers, payload

from .writer import Part, container, elf, entry, library, lto, ptx, sass

TWO = (container(sass(70), sass(80), ptx(80)), container(sass(90, "a")))


def found(data: bytes) -> list[list[str]]:
    return [[str(e.target) for e in c.entries] for c in containers(data)]


def test_entries_are_read_in_order_with_their_suffixes() -> None:
    data = library(container(sass(70), sass(90, "a"), sass(100, "f"), ptx(120, "f"), lto(50)))
    assert found(data) == [["sm_70", "sm_90a", "sm_100f", "compute_120f", "lto_50"]]


def test_both_compressions_are_told_by_their_flags() -> None:
    data = library(container(*(sass(80, compression=c) for c in ("lz4", "zstd", ""))))
    (only,) = containers(data)
    assert [e.compression for e in only.entries] == ["lz4", "zstd", ""]
    assert [e.code_size for e in only.entries] == [8192, 8192, 64]


def test_an_unknown_kind_is_read_and_named() -> None:
    assert found(library(container(entry(0x200, 90)))) == [["kind-0x200_90"]]


@pytest.mark.parametrize("section", [".ldata", ".data", ".cask_resource", ".rodata.cubins"])
def test_containers_are_found_among_other_data(section: str) -> None:
    data = library(b"tables" * 9 + TWO[0] + b"\1" * 13 + TWO[1] + b"more", section=section)
    assert found(data) == [["sm_70", "sm_80", "compute_80"], ["sm_90a"]]


def test_the_inputs_of_device_linking_are_read_too() -> None:
    (only,) = containers(library(TWO[0], section="__nv_relfatbin"))
    assert only.section == "__nv_relfatbin"


def test_zeros_between_containers_are_what_pruning_leaves() -> None:
    assert len(found(library(TWO[0], bytes(3_000_001), TWO[1], bytes(5)))) == 2


def test_an_empty_container_holds_no_entries() -> None:
    assert found(library(container(), TWO[1])) == [[], ["sm_90a"]]


def test_code_sections_are_not_searched() -> None:
    assert found(elf(Part(".text", TWO[0], flags=0x6))) == []


def test_device_code_section_is_read_whatever_its_flags_say() -> None:
    assert found(elf(Part(".nv_fatbin", TWO[0], flags=0))) == found(library(TWO[0]))


def test_lz4_payload() -> None:
    """A literal run, a match that overlaps itself, and the closing literals."""
    block = bytes([0x35]) + b"abc" + b"\x03\x00" + bytes([0x50]) + b"12345"
    code = b"abc" + b"abcabcabc" + b"12345"
    data = library(container(entry(PTX, 80, payload=block, code_size=len(code))))
    (only,) = containers(data)
    assert payload(data, only.entries[0]) == code


def test_lz4_payload_that_reaches_before_its_start_is_refused() -> None:
    block = bytes([0x10]) + b"a" + b"\x09\x00" + bytes([0x50]) + b"12345"
    data = library(container(entry(PTX, 80, payload=block, code_size=99)))
    (only,) = containers(data)
    with pytest.raises(Malformed, match="can't be decompressed"):
        payload(data, only.entries[0])


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def start_of(data: bytes) -> int:
    return data.index(TWO[0][:8])


@pytest.mark.parametrize(
    ("what", "at", "value", "message"),
    [
        ("a container larger than its section", 8, struct.pack("<Q", 1 << 20), "does not fit"),
        ("a container that the driver reads as negative", 8, b"\0\0\0\x80", "does not fit"),
        ("a container of 16 EiB", 8, b"\xff" * 8, "does not fit"),
        ("a container that ends inside an entry header", 8, struct.pack("<Q", 40), "cut off"),
        ("an entry that runs over its container", 16 + 8, struct.pack("<Q", 9999), "contradicts"),
        ("an entry of 16 EiB", 16 + 8, b"\xff" * 8, "contradicts"),
        ("an entry header shorter than its fields", 16 + 4, b"\x3f\0\0\0", "contradicts"),
        (
            "an entry header shorter than its fields, and the payload longer by as much",
            16 + 4,
            struct.pack("<IQ", 56, 72),
            "contradicts",
        ),
        ("an entry header of no bytes", 16 + 4, b"\0\0\0\0", "contradicts"),
        ("an entry version of another format", 16 + 2, b"\x02\x01", "contradicts"),
        ("more compressed bytes than payload", 16 + 0x10, b"\xff\xff", "contradicts"),
        ("architecture 0", 16 + 0x1C, b"\0\0\0\0", "contradicts"),
        ("architecture 65535", 16 + 0x1C, b"\xff\xff\0\0", "contradicts"),
        ("two compressions at once", 16 + 0x28, b"\x11\xa0", "contradicts"),
        ("another magic", 0, b"\x51", "not a fatbin container"),
        ("another container version", 4, b"\x02", "not a fatbin container"),
        ("another container header size", 6, b"\x18", "not a fatbin container"),
    ],
)
def test_a_lying_header_is_an_error(what: str, at: int, value: bytes, message: str) -> None:
    data = library(*TWO)
    with pytest.raises(Malformed, match=message):
        found(patched(data, start_of(data) + at, value))


def test_bytes_between_containers_are_an_error() -> None:
    with pytest.raises(Malformed, match="not a fatbin container"):
        found(library(TWO[0], b"\0\0\0\0junk", TWO[1]))


def test_a_lying_header_among_other_data_is_an_error_too() -> None:
    data = library(b"x" * 32, TWO[0], section=".ldata")
    with pytest.raises(Malformed, match="does not fit"):
        found(patched(data, start_of(data) + 8, b"\xff\xff\xff"))


def header(data: bytes, name: str) -> int:
    """Where the section header of a section lies."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    names = [".text", ".rodata", ".nv_fatbin", ".shstrtab"]
    return int(table) + 64 * (names.index(name) + 1)


@pytest.mark.parametrize(
    ("what", "field", "value", "message"),
    [
        ("overlapping sections", 0x18, struct.pack("<Q", 64), "overlap"),
        ("a section beyond the end", 0x18, struct.pack("<Q", 1 << 40), "cut off"),
        ("a section longer than the file", 0x20, struct.pack("<Q", 1 << 62), "cut off"),
        ("a name outside the names", 0x00, struct.pack("<I", 1 << 20), "section name"),
    ],
)
def test_a_lying_section_header_is_an_error(
    what: str, field: int, value: bytes, message: str
) -> None:
    data = library(*TWO)
    with pytest.raises(Malformed, match=message):
        found(patched(data, header(data, ".nv_fatbin") + field, value))


@pytest.mark.parametrize(
    ("what", "at", "value", "message"),
    [
        ("32-bit", 4, b"\x01", "64-bit"),
        ("big-endian", 5, b"\x02", "little-endian"),
        ("section headers of another size", 0x3A, b"\x28\0", "40 bytes"),
        ("65,000 sections", 0x3C, struct.pack("<H", 65_000), "cut off"),
        ("names in a section that is not there", 0x3E, struct.pack("<H", 77), "section names"),
        ("a section table beyond the end", 0x28, struct.pack("<Q", 1 << 63), "cut off"),
        ("no section table", 0x28, bytes(8), "without a section table"),
    ],
)
def test_a_lying_file_header_is_an_error(what: str, at: int, value: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        found(patched(library(*TWO), at, value))


def test_a_file_cut_off_anywhere_is_an_error() -> None:
    data = library(*TWO)
    for length in range(len(data)):
        with pytest.raises(Malformed):
            found(data[:length])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damage_is_an_error_or_shows(draw: st.DataObject) -> None:
    """Any few bytes overwritten anywhere: Malformed, or the reading is still self-consistent."""
    data = bytearray(library(*TWO, section=draw.draw(st.sampled_from([".nv_fatbin", ".ldata"]))))
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    try:
        result = list(containers(bytes(data)))
    except Malformed as error:
        assert error.message
        assert error.fix
        return
    last_end = 0
    for one in result:
        assert last_end <= one.offset < one.end <= len(data)
        last_end = one.end
        at = one.offset + 16
        for e in one.entries:
            assert e.offset == at
            at += e.size
        assert at == one.end


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_noise_is_an_error(noise: bytes) -> None:
    with pytest.raises(Malformed):
        found(noise)
    with pytest.raises(Malformed):
        found(library(b"\1" + noise))


targets = st.builds(
    Target, st.sampled_from([1, 2, 8, 0x10, 0x40]), st.integers(1, 999), st.sampled_from("af")
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(targets, max_size=5), min_size=1, max_size=5))
def test_what_was_written_is_read(wanted: list[list[Target]]) -> None:
    written = [
        container(*(entry(t.kind, t.architecture, suffix=t.suffix) for t in c)) for c in wanted
    ]
    assert [[e.target for e in c.entries] for c in containers(library(*written))] == wanted


def test_a_container_header_cut_off_by_the_end_of_the_file_is_an_error() -> None:
    data = library(*TWO)
    moved = patched(data, header(data, ".nv_fatbin") + 0x18, struct.pack("<QQ", len(data), 8))
    with pytest.raises(Malformed, match="a container cut off"):
        found(moved + TWO[0][:8])
