"""What one library carries: its device code by section and target, and whether the file is whole.

`builder audit` reads libraries from folders, wheels and image layers (inventory.py, layers.py).
`as_json` and `from_json` are the form in which a cache entry and images/device-code.lock hold one.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import IO, Any, Final

from builder.devicecode import damage, linking
from builder.devicecode.pruning import elf
from builder.devicecode.pruning.elf import Buffer
from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import (
    COMPILED,
    HEADER_SIZE,
    LINK_INPUT,
    PTX,
    Container,
    Target,
    containers,
)
from builder.devicecode.pruning.fatbin import payload as read_payload
from builder.devicecode.ptx import Directives, directives

LARGEST: Final = 8 << 30
"""Bytes of a library that are read; the largest that was seen has 1.5 GB."""

BROKEN_ARCHIVE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""What reading a member of a damaged wheel or layer raises."""

OTHER_FORMAT: Final = "its device code is in containers of a version that is not known"
"""The doubt about a library of a newer format than this reader's."""

_STUB_CODE: Final = 4096
"""Entries of fewer bytes (decompressed) may hold no kernel, so they are looked into."""
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Group:
    """Containers of one section that hold code for the same targets, in the same order.

    stored, code: for each target, the bytes in the file and after decompression, of all the
    containers together. ptx: for each target, what its PTX text says; None for other code.
    """

    section: str
    targets: tuple[Target, ...]
    containers: int
    stored: tuple[int, ...]
    code: tuple[int, ...]
    ptx: tuple[Directives | None, ...] = ()


@dataclass(frozen=True)
class Library:
    """One library: its path, its size in bytes, and its device code.

    package, version: the distribution that installed it, "" if no record names one. broken: why the
    file cannot be read; then nothing else is known of it. doubt: why it may not be whole; then no
    verdict is drawn from its device code. stub_sections: sections whose containers hold no kernel,
    which nvcc leaves in a library without device code. pruned: whether entries were taken out of
    containers. sha256: in hex, "" where it was not taken. needed: the libraries that it is linked
    to; a lock does not keep them.
    """

    path: str
    size: int
    groups: tuple[Group, ...] = ()
    package: str = ""
    version: str = ""
    broken: str = ""
    stub_sections: frozenset[str] = frozenset()
    pruned: bool = False
    doubt: str = ""
    sha256: str = ""
    needed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def origin(self) -> str:
        """The distribution and its version, or the path if no distribution is known."""
        return f"{self.package} {self.version}" if self.package else self.path

    @property
    def device_code(self) -> int:
        """Bytes of kernels, as they are stored."""
        return sum(sum(group.stored) for group in self.groups)


def read(data: Buffer, path: str) -> Library:
    """Return what one library's bytes carry. A malformed library is returned as broken."""
    library = Library(path, len(data), sha256=_sha256(data))
    try:
        sections = elf.library_sections(data)
        library = replace(library, needed=linking.needed(data, sections))
        present = tuple(containers(data))
        groups = _groups(data, present)
        stubs = _stub_sections(data, groups)
        broken = damage.broken(data, sections, present)
        doubt = "" if broken else damage.doubt(data, sections, present, path)
    except Malformed as error:
        if _has_other_format(data):
            return replace(library, doubt=OTHER_FORMAT)
        return replace(library, broken=error.message)
    if broken:
        return replace(library, broken=broken)
    return replace(
        library, groups=groups, stub_sections=stubs, pruned=_is_pruned(present), doubt=doubt
    )


def read_file(file: IO[bytes], path: str) -> Library:
    """Return what an open file carries; it is memory-mapped. `path` is the library's name."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return Library(path, 0, broken="not a regular file")
    start = file.read(64)
    if not start.startswith(elf.MAGIC):
        if start.lstrip().startswith((b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT")):
            return Library(path, status.st_size)  # a linker script, which names the real library
        reason = f"not an ELF file: starts with {start[:8]!r}" if start else "it is empty"
        return Library(path, status.st_size, broken=reason)
    if status.st_size > LARGEST:
        return Library(path, status.st_size, broken=_TOO_LARGE)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read(data, path)


def read_stream(stream: IO[bytes], path: str) -> Library:
    """Return what a member of an archive carries. It goes through a temporary file.

    Raises OSError for what this machine refuses, such as a full disk.
    """
    with tempfile.TemporaryFile() as unpacked:
        try:
            while block := stream.read(_BLOCK):
                unpacked.write(block)
                if unpacked.tell() > LARGEST:
                    return Library(path, 0, broken=_TOO_LARGE)
        except BROKEN_ARCHIVE as error:
            return Library(path, 0, broken=f"cannot be unpacked: {error}")
        except OSError as error:
            if error.errno is None:  # gzip reports damage so
                return Library(path, 0, broken=f"cannot be unpacked: {error}")
            raise
        unpacked.seek(0)
        return read_file(unpacked, path)


def as_json(library: Library) -> dict[str, Any]:
    """Return the JSON-ready fields of a library. Fields that say nothing are left out."""
    optional = {
        "broken": library.broken,
        "doubt": library.doubt,
        "stubs": sorted(library.stub_sections),
        "pruned": library.pruned,
        "sha256": library.sha256,
    }
    return {
        "path": library.path,
        "size": library.size,
        **{name: value for name, value in optional.items() if value},
        "groups": [
            [
                group.section,
                group.containers,
                [list(target) for target in group.targets],
                group.stored,
                group.code,
                [text and [text.version, *text.target[1:]] for text in group.ptx],
            ]
            for group in library.groups
        ],
    }


def from_json(value: Mapping[str, Any], package: str = "", version: str = "") -> Library:
    """Return the library of these fields. Raises KeyError, TypeError or ValueError."""
    return Library(
        path=str(value["path"]),
        size=int(value["size"]),
        groups=tuple(
            Group(
                str(section),
                tuple(Target(int(kind), int(number), str(end)) for kind, number, end in targets),
                int(count),
                tuple(map(int, stored)),
                tuple(map(int, code)),
                tuple(
                    text and Directives(str(text[0]), Target(PTX, int(text[1]), str(text[2])))
                    for text in ptx
                ),
            )
            for section, count, targets, stored, code, ptx in value["groups"]
        ),
        package=package,
        version=version,
        broken=str(value.get("broken", "")),
        stub_sections=frozenset(value.get("stubs", ())),
        pruned=bool(value.get("pruned", False)),
        doubt=str(value.get("doubt", "")),
        sha256=str(value.get("sha256", "")),
    )


def _has_other_format(data: Buffer) -> bool:
    """Tell whether device code begins with a container's mark, and another version follows."""
    try:
        parts = [part for part in elf.library_sections(data) if part.name in (COMPILED, LINK_INPUT)]
    except Malformed:
        return False
    starts = [bytes(data[part.offset : part.offset + HEADER_SIZE]) for part in parts]
    return any(start[:4] == _MARK and start[4:6] not in (b"\x01\0", b"\0\0") for start in starts)


_MARK: Final = b"\x50\xed\x55\xba"

_TOO_LARGE: Final = f"larger than {LARGEST >> 30} GiB: no library is"


def _sha256(data: Buffer) -> str:
    total = hashlib.sha256()
    for at in range(0, len(data), _BLOCK):
        total.update(data[at : at + _BLOCK])
    return total.hexdigest()


def _groups(data: Buffer, present: Iterable[Container]) -> tuple[Group, ...]:
    """Return the containers in groups that hold code for the same targets."""
    groups: dict[tuple[object, ...], Group] = {}
    for container in present:
        if container.section == LINK_INPUT:  # it never decides, so its texts are not read
            ptx: tuple[Directives | None, ...] = (None,) * len(container.entries)
        else:
            ptx = tuple(directives(data, entry) for entry in container.entries)
        group = Group(
            container.section,
            tuple(entry.target for entry in container.entries),
            1,
            tuple(entry.size for entry in container.entries),
            tuple(entry.code_size for entry in container.entries),
            ptx,
        )
        key = (group.section, group.targets, ptx)
        known = groups.get(key)
        groups[key] = _sum(known, group) if known else group
    return tuple(groups.values())


def _sum(group: Group, other: Group) -> Group:
    stored = tuple(a + b for a, b in zip(group.stored, other.stored, strict=True))
    code = tuple(a + b for a, b in zip(group.code, other.code, strict=True))
    return replace(group, containers=group.containers + other.containers, stored=stored, code=code)


def _is_pruned(present: tuple[Container, ...]) -> bool:
    """Tell whether entries were taken out: linkers put containers side by side, so zeros after a
    container show that it was longer."""
    return any(
        before.section == after.section == COMPILED and after.offset - before.end > HEADER_SIZE
        for before, after in itertools.pairwise(present)
    )


def _stub_sections(data: Buffer, groups: tuple[Group, ...]) -> frozenset[str]:
    """Return the sections in which no entry holds a kernel.

    nvcc leaves a container with one empty cubin (sm_52 by default) in a library that has no device
    code of its own, such as libcufftw. Taken for a kernel, it would rule out every newer device.
    """
    small = {group.section for group in groups} - {
        group.section for group in groups if max(group.code, default=_STUB_CODE) >= _STUB_CODE
    }
    if not small:
        return frozenset()
    with_kernels = {
        container.section
        for container in containers(data)
        if container.section in small
        and any(_has_kernel(read_payload(data, entry)) for entry in container.entries)
    }
    return frozenset(small - with_kernels)


def _has_kernel(code: bytes | None) -> bool:
    if code is None:
        return True  # it cannot be decompressed here, so it counts as a kernel
    if code.startswith(elf.MAGIC):
        return any(section.name.startswith(".text.") for section in elf.sections(code))
    return b".entry" in code or b".func" in code or not code.isascii()
