"""The verdict's oracle: destroy what a GPU would need, and "native" must never come."""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.devicecode.inventory import from_folder, from_wheel, read
from builder.devicecode.pruning import prune as pruning
from builder.devicecode.pruning.fatbin import containers
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit, Support, judge

from .writer import Part, container, elf, install, library, ptx, sass

V100 = compute_capability("7.0")


def code(size: int, seed: int = 1) -> bytes:
    """Bytes as a compressor leaves them: no zeros in a row."""
    return bytes(byte or 1 for byte in random.Random(seed).randbytes(size))


def pointers(number: int) -> Part:
    """What the compiler leaves beside the containers: a pointer to each."""
    return Part(".nvFatBinSegment", struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) * number, flags=3)


MADE = tuple(
    container(*(sass(sm, payload=code(6000 + sm, sm * seed)) for sm in (70, 80)), ptx(80))
    for seed in (1, 2, 3)
)
WHOLE = library(*MADE, more=(pointers(3),))
BARE = library(*MADE)


def status(data: bytes, name: str = "libkernels.so.1") -> Support:
    return judge(read(data, name), V100).status


def zeroed(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


def test_the_library_that_is_destroyed_here_is_native_when_it_is_whole() -> None:
    assert status(WHOLE) == status(BARE) == Support.NATIVE


@pytest.mark.parametrize("data", [WHOLE, BARE], ids=["with pointers", "without"])
def test_a_preallocated_download_that_was_torn_is_broken(data: bytes) -> None:
    """Its first bytes, then zeros to its full size: there are no sections in it, and no code."""
    for kept in (*range(1, 80), *range(80, len(data) - 200, 97)):
        assert status(zeroed(data, kept, len(data))) == Support.BROKEN, kept


@pytest.mark.parametrize("data", [WHOLE, BARE], ids=["with pointers", "without"])
def test_a_container_that_was_zeroed_is_never_native(data: bytes) -> None:
    for one in containers(data):
        assert status(zeroed(data, one.offset, one.end)) >= Support.UNKNOWN
        for entry in one.entries:
            code_at = entry.offset + entry.header_size
            assert status(zeroed(data, code_at, entry.offset + entry.size)) == Support.BROKEN


@pytest.mark.parametrize("data", [WHOLE, BARE], ids=["with pointers", "without"])
def test_a_hole_that_ends_among_the_names_of_sections_is_broken(data: bytes) -> None:
    """Without its name, a section of device code is one of the many others."""
    first, *_, last = containers(data)
    for end in range(last.end, len(data)):
        assert status(zeroed(data, first.offset - 64, end)) == Support.BROKEN, end


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_hole_in_device_code_is_never_native(draw: st.DataObject) -> None:
    """A hole of at least 128 bytes, anywhere in the containers."""
    data = draw.draw(st.sampled_from([WHOLE, BARE]))
    first, *_, last = containers(data)
    start = draw.draw(st.integers(first.offset - 64, last.end - 128))
    end = draw.draw(st.integers(start + 128, len(data)))
    assert status(zeroed(data, start, end)) >= Support.UNKNOWN


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_one_byte_that_is_not_the_wheels_is_never_native(at: int, change: int) -> None:
    """RECORD says what the library was; every one of its bytes counts."""
    data = WHOLE[:at] + bytes([WHOLE[at] ^ change]) + WHOLE[at + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "nvidia-x", "1.0", {"nvidia/libkernels.so.1": WHOLE})
        Path(folder, "nvidia/libkernels.so.1").write_bytes(data)
        (only,) = from_folder(Path(folder))
    assert judge(only, V100).status >= Support.UNKNOWN


@pytest.mark.parametrize("size", [1, 17, 4000])
def test_a_section_of_containers_that_holds_none_is_broken(size: int) -> None:
    assert status(library(bytes(size))) == Support.BROKEN


def test_an_uncompressed_cubin_without_its_machine_code_is_broken() -> None:
    text = Part(".text.kernel", code(512), flags=6)
    cubin = elf(text)
    whole = library(container(sass(70, compression="", payload=cubin)))
    assert status(whole) == Support.NATIVE
    at = whole.index(text.data)
    assert status(zeroed(whole, at, at + 300)) == Support.BROKEN
    assert status(zeroed(whole, at - 64, at - 60)) == Support.BROKEN  # the ELF magic


def test_the_sections_of_a_cubin_may_share_bytes() -> None:
    """As in the cubins of bitsandbytes 0.50.2."""
    cubin = elf(
        Part(".text.kernel", code(512), flags=6),
        Part(".nv.constant3", b"1234"),
        Part(".nv.merc", b"34"),
    )
    second, third = (struct.unpack_from("<Q", cubin, 0x28)[0] + 64 * number for number in (2, 3))
    (at,) = struct.unpack_from("<Q", cubin, second + 0x18)
    sharing = bytearray(cubin)
    struct.pack_into("<Q", sharing, third + 0x18, at + 2)
    whole = library(container(sass(70, compression="", payload=bytes(sharing))))
    assert status(whole) == Support.NATIVE


@pytest.mark.parametrize(
    ("what", "field", "value"),
    [
        ("names that are no names", 0x3E, b"\0\0"),
        ("a table that is nowhere", 0x28, bytes(8)),
    ],
)
def test_a_section_table_of_nothing_is_broken(what: str, field: int, value: bytes) -> None:
    plain = elf(Part(".text", b"\x90" * 99, flags=6))
    assert status(plain) == Support.NO_DEVICE_CODE
    assert status(plain[:field] + value + plain[field + len(value) :]) == Support.BROKEN


def test_a_library_with_zeroed_section_headers_is_broken() -> None:
    table = struct.unpack_from("<Q", WHOLE, 0x28)[0]
    for number in range(1, 6):
        at = table + 64 * number
        assert status(zeroed(WHOLE, at, at + 64)) == Support.BROKEN


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("libcudnn_ops.so.9", Support.UNKNOWN),
        ("nvidia/cublas/lib/libcublasLt.so.12", Support.UNKNOWN),
        ("libnccl.so.2.27.7", Support.UNKNOWN),
        ("libcudnn.so.9", Support.NO_DEVICE_CODE),  # it only loads the others
        ("cuda/lib64/stubs/libcublas.so", Support.NO_DEVICE_CODE),  # to link against
        ("libm.so.6", Support.NO_DEVICE_CODE),
    ],
)
def test_a_cuda_library_without_device_code_is_not_known(name: str, found: Support) -> None:
    assert status(elf(Part(".text", b"\x90" * 99, flags=6)), name) == found


@pytest.mark.parametrize(
    ("section", "found"),
    [
        (Part(".text2", code(4096) + bytes(4096), flags=6), Support.UNKNOWN),
        (Part(".dynstr", b"a" + bytes(4096), type=3), Support.UNKNOWN),
        (Part(".rela.dyn", b"a" + bytes(4096), type=4), Support.UNKNOWN),
        (Part(".rodata2", b"a" + bytes(70_000)), Support.UNKNOWN),
        (Part(".rodata2", b"a" + bytes(60_000)), Support.NATIVE),  # TensorFlow's has
    ],
)
def test_a_hole_beside_the_device_code_is_not_known(section: Part, found: Support) -> None:
    assert status(library(*MADE, more=(pointers(3), section))) == found


def site(folder: Path, data: bytes = WHOLE) -> Path:
    install(folder, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": WHOLE})
    library = folder / "tensorflow/libtensorflow_cc.so.2"
    library.write_bytes(data)
    return library


def verdict(folder: Path) -> Support:
    return Audit(tuple(from_folder(folder))).verdict(V100).status


def test_a_library_that_we_pruned_is_what_our_record_says(tmp_path: Path) -> None:
    path = site(tmp_path)
    pruning.prune(tmp_path, V100)
    assert (tmp_path / pruning.PRUNED).stat().st_mode & 0o444 == 0o444
    assert path.read_bytes() != WHOLE
    assert verdict(tmp_path) == Support.NATIVE
    pruned = path.read_bytes()
    pruning.prune(tmp_path, V100)  # again changes nothing
    assert verdict(tmp_path) == Support.NATIVE
    at = pruned.index(MADE[0][90:200])
    path.write_bytes(pruned[:at] + b"\1" + pruned[at + 1 :])
    assert verdict(tmp_path) == Support.UNKNOWN
    path.write_bytes(pruned)
    (tmp_path / pruning.PRUNED).unlink()
    assert verdict(tmp_path) == Support.UNKNOWN, "the wheel says other bytes"


def test_a_second_folder_of_libraries_keeps_the_first_ones_lines(tmp_path: Path) -> None:
    """A base prunes the same folder after each of its locks."""
    site(tmp_path)
    pruning.prune(tmp_path, V100)
    install(tmp_path, "tensorflow-text", "2.21.0", {"tensorflow/more.so": WHOLE})
    pruning.prune(tmp_path, V100)
    lines = (tmp_path / pruning.PRUNED).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "tensorflow/libtensorflow_cc.so.2",
        "tensorflow/more.so",
    ]
    assert verdict(tmp_path) == Support.NATIVE


def test_a_library_of_another_size_than_its_wheel_says_is_not_known(tmp_path: Path) -> None:
    site(tmp_path, WHOLE + bytes(16))
    assert verdict(tmp_path) == Support.UNKNOWN


def test_a_stripped_library_without_device_code_is_no_alarm(tmp_path: Path) -> None:
    install(tmp_path, "numpy", "2.0", {"numpy/core.so": elf(Part(".text", b"\x90" * 99, flags=6))})
    (tmp_path / "numpy/core.so").write_bytes(elf(Part(".text", b"\x90" * 64, flags=6)))
    assert verdict(tmp_path) == Support.NO_DEVICE_CODE


def test_a_wheel_whose_library_is_not_the_recorded_one_is_not_known(tmp_path: Path) -> None:
    """The archive is whole, by its own checksums: it was made of a damaged library."""
    site(tmp_path / "x")
    (tmp_path / "x/tensorflow/libtensorflow_cc.so.2").write_bytes(WHOLE[:-1] + b"\1")
    packed = shutil.make_archive(str(tmp_path / "tensorflow"), "zip", tmp_path / "x")
    wheel = Path(packed).rename(tmp_path / "tensorflow-2.21.0-py3-none-any.whl")
    (only,) = from_wheel(wheel)
    assert judge(only, V100).status >= Support.UNKNOWN
