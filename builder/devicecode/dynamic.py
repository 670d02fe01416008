"""What the dynamic loader reads of a library or a program, before it maps it.

Layout: System V gABI, chapter 5 ("Dynamic Section", "Hash Table"); the GNU hash table and symbol
versions as glibc reads them (elf/dl-lookup.c, elf/dl-version.c). All of it is found through the
program headers: a stripped library may have no table of sections. Every number read from the file
is checked against the file's size before it is used.
"""

from __future__ import annotations

import base64
import struct
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from builder.devicecode.pruning import elf
from builder.devicecode.pruning.elf import Buffer
from builder.devicecode.pruning.errors import Malformed

X86_64: Final = 62
"""The machine (e_machine) of an image for amd64."""
AARCH64: Final = 183
"""That of arm64."""

_ENTRY, _SYMBOL = struct.Struct("<qQ"), struct.Struct("<IBBHQQ")
_PROGRAM, _SECTION = struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # PT_
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ = 1, 4, 5, 6, 10  # DT_
_SONAME, _RPATH, _RUNPATH, _GNU_HASH = 14, 15, 29, 0x6FFFFEF5
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_BASE, _WEAK = 1, 2  # flags of a version: the library's own name; may be missing
_GLOBAL, _GNU_UNIQUE = 1, 10  # bindings of a symbol
_DYNSYM = 11  # a type of section
_32_BIT = 1


class Wanted(NamedTuple):
    """A version of symbols that a library needs of another: `GLIBC_2.34` of `libc.so.6`."""

    file: str
    version: str


class Dynamic(NamedTuple):
    """What a library is linked to, what it needs of it, and what it offers."""

    machine: int
    """e_machine, 0 for a file of 32 bits, of which nothing else is read."""
    interpreter: str = ""
    """A program's loader."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str = ""
    runpath: str = ""
    """`rpath` and `runpath`: as they are written."""
    wanted: tuple[Wanted, ...] = ()
    """Versions without which it is not loaded."""
    versions: tuple[str, ...] = ()
    """Those that it defines."""
    undefined: tuple[str, ...] = ()
    """Symbols that something else has to define; those that may stay undefined (STB_WEAK) are left
    out."""
    defined: str = ""
    """The hashes of those that it defines, which `hashes` unpacks: names would be 50 MB of
    TensorFlow."""

    @property
    def hashes(self) -> frozenset[int]:
        """The hashes of the symbols that it defines, each as `hashed` makes it."""
        return frozenset(array("I", base64.b64decode(self.defined)))


def hashed(name: str) -> int:
    """Return the GNU hash of a symbol without its lowest bit, which a hash table overwrites.

    Of 500,000 symbols, one that is missing is taken for another once in 4,000 times.
    """
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value >> 1


def read(data: Buffer) -> Dynamic | None:
    """Return what the loader reads of a file, None where there is nothing that it could read."""
    if data[:4] == elf.MAGIC and data[4:5] == bytes([_32_BIT]):
        return Dynamic(0)
    if data[:6] != elf.MAGIC + b"\x02\x01":
        return None
    try:
        return _File(data).dynamic()
    except (Malformed, struct.error):
        return None


class _File:
    """A file of 64 bits, little-endian, and what its dynamic section says."""

    def __init__(self, data: Buffer) -> None:
        self.data, self.steps = data, 0
        at, size, count = struct.unpack_from("<Q14xHH", data, 0x20)
        if size != _PROGRAM.size:
            raise Malformed(f"program headers of {size} bytes", "")
        headers = [_PROGRAM.unpack_from(data, at + size * each) for each in range(count)]
        self.loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _LOAD]
        interpreters = [(h[2], h[5]) for h in headers if h[0] == _INTERPRETER]
        self.interpreter = b"".join(self._bytes(*each)[:-1] for each in interpreters).decode(
            "utf-8", "replace"
        )
        self.needed: list[int] = []
        self.tags: dict[int, int] = {}
        for header in (h for h in headers if h[0] == _DYNAMIC):
            whole = self._bytes(header[2], header[5] - header[5] % _ENTRY.size)
            for tag, value in _ENTRY.iter_unpack(whole):
                if tag == 0:
                    break
                if tag == _NEEDED:
                    self.needed.append(value)
                self.tags[tag] = value
        names = self.tags.get(_STRTAB)
        self.names = self._at(names, self.tags.get(_STRSZ, 0)) if names else b""

    def dynamic(self) -> Dynamic | None:
        if not self.tags:
            return None
        (machine,) = struct.unpack_from("<H", self.data, 18)
        undefined, defined = self._symbols()
        return Dynamic(
            machine,
            self.interpreter,
            self._name(self.tags.get(_SONAME, 0)),
            tuple(map(self._name, self.needed)),
            self._name(self.tags.get(_RPATH, 0)),
            self._name(self.tags.get(_RUNPATH, 0)),
            tuple(self._wanted()),
            tuple(self._versions()),
            tuple(undefined),
            base64.b64encode(array("I", sorted(set(defined))).tobytes()).decode(),
        )

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise Malformed("cut off", "")
        return bytes(self.data[offset : offset + size])

    def _at(self, address: int, size: int) -> bytes:
        """Return the bytes that are mapped to an address."""
        for start, offset, length in self.loads:
            if start <= address and address + size <= start + length:
                return self._bytes(address - start + offset, size)
        raise Malformed(f"nothing is mapped to {address:#x}", "")

    def _name(self, at: int) -> str:
        return self.names[at : self.names.find(b"\0", at)].decode("utf-8", "replace")

    def _chain(self, at: int, entry: str, most: int) -> Iterator[tuple[int, ...]]:
        """Yield entries that each end with the way to the next: the address of one, and its
        fields. Raises Malformed for more than the file could hold."""
        size = struct.calcsize(entry)
        for _ in range(most):
            self.steps += 1
            if self.steps > len(self.data) // size:
                raise Malformed("its versions go round in a circle", "")
            fields = struct.unpack(entry, self._at(at, size))
            yield at, *fields
            if not fields[-1]:
                return
            at += fields[-1]

    def _wanted(self) -> Iterator[Wanted]:
        start, files = self.tags.get(_VERNEED, 0), self.tags.get(_VERNEEDNUM, 0)
        for at, _, count, file, first, _ in self._chain(start, "<HHIII", files if start else 0):
            for _, _, flags, _, name, _ in self._chain(at + first, "<IHHII", count):
                if not flags & _WEAK:
                    yield Wanted(self._name(file), self._name(name))

    def _versions(self) -> Iterator[str]:
        start, count = self.tags.get(_VERDEF, 0), self.tags.get(_VERDEFNUM, 0)
        for at, _, flags, _, _, _, first, _ in self._chain(
            start, "<HHHHIII", count if start else 0
        ):
            if not flags & _BASE:
                yield self._name(struct.unpack("<II", self._at(at + first, 8))[0])

    def _symbols(self) -> tuple[list[str], list[int]]:
        """Return the names of those that are undefined, and the hashes of those that are not."""
        if _SYMTAB not in self.tags:
            return [], []
        defined: list[int] = []
        if _GNU_HASH in self.tags:  # all that it holds are defined, and stand last in the table
            count, defined = self._hash_table(self.tags[_GNU_HASH])
            if not defined:
                count = self._symbols_without_hash()
        elif _HASH in self.tags:
            count = struct.unpack("<II", self._at(self.tags[_HASH], 8))[1]
        else:
            count = self._symbols_without_hash()
        undefined = []
        table = self._at(self.tags[_SYMTAB], count * _SYMBOL.size)
        for name, info, _, section, *_ in _SYMBOL.iter_unpack(table):
            if section and info >> 4 and _GNU_HASH not in self.tags:
                defined.append(hashed(self._name(name)))
            elif not section and name and info >> 4 in (_GLOBAL, _GNU_UNIQUE):
                undefined.append(self._name(name))
        return undefined, defined

    def _hash_table(self, address: int) -> tuple[int, list[int]]:
        """Return how many symbols stand before those of a GNU hash table, and its hashes."""
        buckets, first, bloom, _ = struct.unpack("<IIII", self._at(address, 16))
        at = address + 16 + 8 * bloom
        last = max(array("I", self._at(at, 4 * buckets)), default=0)
        if last < first:
            return first, []
        start = at + 4 * buckets
        while not struct.unpack("<I", self._at(start + 4 * (last - first), 4))[0] & 1:
            last += 1  # the lowest bit ends a chain
        chain = array("I", self._at(start, 4 * (last - first + 1)))
        return first, [value >> 1 for value in chain]

    def _symbols_without_hash(self) -> int:
        """Return the number of symbols of a file that says it nowhere: a linker leaves those of a
        library out of the GNU hash table that defines none. The table of sections has it, else
        the names follow the symbols."""
        table, count = struct.unpack_from("<Q12xH", self.data, 0x28)
        start = self.tags[_SYMTAB]
        for number in range(count if table else 0):
            header = _SECTION.unpack_from(self.data, table + number * _SECTION.size)
            if header[1] == _DYNSYM and header[3] == start:
                return int(header[5]) // _SYMBOL.size
        return max(0, self.tags.get(_STRTAB, 0) - start) // _SYMBOL.size
