"""What the dynamic loader reads: of a library that a compiler made, of written ones, of damage."""

from __future__ import annotations

import random
import struct

import pytest

from builder.devicecode import dynamic
from builder.devicecode.dynamic import Wanted, hashed
from tests.compiler import compile_library
from tests.devicecode.writer import elf, linked

SOURCE = """
#include <stdio.h>
extern int asked_for;
__attribute__((weak)) extern int may_be_missing;
int offered(void) { return printf("%d", asked_for + (&may_be_missing ? 1 : 0)); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = tmp_path_factory.mktemp("dynamic") / "offered.c"
    source.write_text(SOURCE)
    return compile_library(source).read_bytes()


def test_a_compilers_library_says_what_it_needs_and_offers(compiled: bytes) -> None:
    read = dynamic.read(compiled)
    assert read is not None
    assert "libc.so.6" in read.needed
    assert {"printf", "asked_for"} <= set(read.undefined)
    assert not {"may_be_missing", "offered"} & set(read.undefined), "a weak one may stay undefined"
    assert hashed("offered") in read.hashes and hashed("printf") not in read.hashes
    assert any(each.file == "libc.so.6" and each.version[:6] == "GLIBC_" for each in read.wanted)


def test_it_is_read_without_a_table_of_sections(compiled: bytes) -> None:
    stripped = bytearray(compiled)
    stripped[0x28:0x30], stripped[0x3A:0x40] = bytes(8), bytes(6)
    assert dynamic.read(bytes(stripped)) == dynamic.read(compiled)


def test_what_is_written_is_read() -> None:
    data = linked(
        "libb.so.1",
        soname="liba.so.1",
        runpath="$ORIGIN/lib",
        undefined=("f",),
        defined=("g", "h"),
        wanted=(("libb.so.1", "B_2"), ("libc.so.6", "GLIBC_2.34")),
        versions=("A_1", "A_2"),
        interpreter="/lib64/ld-linux-x86-64.so.2",
    )
    read = dynamic.read(data)
    assert read is not None
    assert read._replace(defined="") == dynamic.Dynamic(
        62,
        "/lib64/ld-linux-x86-64.so.2",
        "liba.so.1",
        ("libb.so.1",),
        "",
        "$ORIGIN/lib",
        (Wanted("libb.so.1", "B_2"), Wanted("libc.so.6", "GLIBC_2.34")),
        ("A_1", "A_2"),
        ("f",),
    )
    assert read.hashes == {hashed("g"), hashed("h")}


def test_what_the_loader_cannot_read_is_nothing(compiled: bytes) -> None:
    assert dynamic.read(b"\x7fELF") is None and dynamic.read(b"no library") is None
    assert dynamic.read(elf()) is None, "no dynamic section"
    assert dynamic.read(b"\x7fELF\x01\x01" + bytes(60)) == dynamic.Dynamic(0), "of 32 bits"
    for size in range(0, 4096, 97):
        dynamic.read(compiled[:size])


def test_damage_gives_no_error_and_no_endless_loop(compiled: bytes) -> None:
    """Each number that leads somewhere is one of those that are broken here."""
    chance = random.Random(39)
    for data in (compiled, linked("a", undefined=("f",), wanted=(("a", "A"),), versions=("B",))):
        for _ in range(300):
            broken = bytearray(data)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(0x10, len(broken) - 8) & ~3
                broken[at : at + 4] = struct.pack("<I", chance.choice((0, 1, 0xFFFFFFFF, 1 << 20)))
            dynamic.read(bytes(broken))
