"""The verdict's oracle: destroy what a GPU would need, and "native" must never come."""

from __future__ import annotations

import random
import struct

import pytest

from builder.devicecode.pruning.fatbin import containers
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.reader import read
from builder.devicecode.verdict import Support, judge

from .writer import Part, container, elf, library, ptx, sass

V100 = compute_capability("7.0")


def code(size: int, seed: int = 1) -> bytes:
    """Bytes as a compressor leaves them: no zeros in a row."""
    return bytes(byte or 1 for byte in random.Random(seed).randbytes(size))


def pointers(number: int) -> Part:
    """What the compiler leaves beside the containers: a pointer to each."""
    return Part(".nvFatBinSegment", struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) * number, flags=3)


CONTAINERS = tuple(
    container(*(sass(sm, payload=code(6000 + sm, sm * seed)) for sm in (70, 80)), ptx(80))
    for seed in (1, 2, 3)
)
WHOLE = library(*CONTAINERS, more=(pointers(3),))
BARE = library(*CONTAINERS)
PLAIN = elf(Part(".text", b"\x90" * 99, flags=6))

with_and_without_pointers = pytest.mark.parametrize("data", [WHOLE, BARE], ids=["with", "without"])


def status(data: bytes, name: str = "libkernels.so.1") -> Support:
    return judge(read(data, name), V100).status


def zeroed(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


def test_what_is_whole_is_native_and_sections_of_nothing_are_broken() -> None:
    assert status(WHOLE) == status(BARE) == Support.NATIVE
    assert status(PLAIN) == Support.NO_DEVICE_CODE
    for size in (1, 17, 4000):
        assert status(library(bytes(size))) == Support.BROKEN
    table = struct.unpack_from("<Q", WHOLE, 0x28)[0]
    for number in range(1, 6):
        at = table + 64 * number
        assert status(zeroed(WHOLE, at, at + 64)) == Support.BROKEN
    assert status(zeroed(PLAIN, 0x3E, 0x40)) == Support.BROKEN, "names that are no names"
    assert status(zeroed(PLAIN, 0x28, 0x30)) == Support.BROKEN, "a table that is nowhere"


@with_and_without_pointers
def test_a_preallocated_download_that_was_torn_is_broken(data: bytes) -> None:
    """Its first bytes, then zeros to its full size: there are no sections in it, and no code."""
    for kept in (*range(1, 80), *range(80, len(data) - 200, 397)):
        assert status(zeroed(data, kept, len(data))) == Support.BROKEN, kept


@with_and_without_pointers
def test_zeroed_containers_entries_and_names_are_never_native(data: bytes) -> None:
    present = list(containers(data))
    for each in present:
        assert status(zeroed(data, each.offset, each.end)) >= Support.NOT_KNOWN
        for entry in each.entries:
            payload = entry.offset + entry.header_size
            assert status(zeroed(data, payload, entry.offset + entry.size)) == Support.BROKEN
    # without its name, a section of device code is one of the many others
    for end in range(present[-1].end, len(data), 3):
        assert status(zeroed(data, present[0].offset - 64, end)) == Support.BROKEN, end


def test_a_payload_with_some_zeros_is_whole_if_it_decompresses() -> None:
    """As in cuDNN 9.20 for CUDA 13. A frame with one block, which is stored as it is."""
    content = code(60) + bytes(100) + code(60)
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)]) + block + content
    right, broken = len(content), Support.BROKEN
    for size, expected in ((right, Support.NATIVE), (right + 1, broken), (0, broken)):
        entry = sass(70, compression="zstd", payload=frame, code_size=size)
        assert status(library(container(entry))) == expected
    torn = sass(70, compression="zstd", payload=zeroed(frame, 4, 9), code_size=len(content))
    assert status(library(container(torn))) == Support.BROKEN
    text = Part(".text.kernel", code(512), flags=6)
    whole = library(container(sass(70, compression="", payload=elf(text))))
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
    ("name", "expected"),
    [
        ("libcudnn_ops.so.9", Support.NOT_KNOWN),
        ("nvidia/cublas/lib/libcublasLt.so.12", Support.NOT_KNOWN),
        ("libnccl.so.2.27.7", Support.NOT_KNOWN),
        ("libcudnn.so.9", Support.NO_DEVICE_CODE),  # it only loads the others
        ("cuda/lib64/stubs/libcublas.so", Support.NO_DEVICE_CODE),  # to link against
        ("libm.so.6", Support.NO_DEVICE_CODE),
    ],
)
def test_a_cuda_library_without_device_code_is_not_known(name: str, expected: Support) -> None:
    assert status(PLAIN, name) == expected


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (Part(".text2", code(4096) + bytes(4096), flags=6), Support.NOT_KNOWN),
        (Part(".dynstr", b"a" + bytes(4096), type=3), Support.NOT_KNOWN),
        (Part(".rela.dyn", b"a" + bytes(4096), type=4), Support.NOT_KNOWN),
        (Part(".rodata2", b"a" + bytes(70_000)), Support.NOT_KNOWN),
        (Part(".rodata2", b"a" + bytes(60_000)), Support.NATIVE),  # TensorFlow's has
        (Part(".data", b"a" + bytes(600_000), flags=3), Support.NOT_KNOWN),
        (Part(".data.rel.ro", b"a" + bytes(600_000), flags=3), Support.NATIVE),  # cuSPARSELt's
        (Part(".data.rel.ro.local", bytes(70_000)), Support.NATIVE),
        (Part(".got.plt", bytes(600_000), flags=3), Support.NATIVE),
        (Part(".data.relic", bytes(600_000), flags=3), Support.NOT_KNOWN),
    ],
)
def test_a_hole_beside_the_device_code_is_not_known(section: Part, expected: Support) -> None:
    assert status(library(*CONTAINERS, more=(pointers(3), section))) == expected
