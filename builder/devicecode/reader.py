"""Reading one library: from its bytes, an open file, or a member of an archive.

`builder audit` reads libraries from folders, wheels and image layers (inventory.py, layers.py).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import IO, Final

from builder.devicecode import damage, dynamic
from builder.devicecode.library import OTHER_FORMAT, Group, Library
from builder.devicecode.pruning import elf
from builder.devicecode.pruning.elf import Buffer
from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import (
    COMPILED,
    HEADER,
    HEADER_SIZE,
    LINK_INPUT,
    Container,
    Entry,
    containers,
)
from builder.devicecode.ptx import Directives, directives, text

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

_READS_FLAGS: Final = re.compile(
    r"/(_jax|libjax_common|xla_extension|xla_cuda_plugin|libtensorflow_(cc|framework)|_pywrap_tensorflow\w*)\.so[^/]*$"
)
_FLAG: Final = re.compile(rb"xla_[a-z0-9_]{3,80}(?=\0)")

_STUB_CODE: Final = 4096
"""Entries of fewer bytes (decompressed) may hold no kernel, so they are looked into."""
_BLOCK: Final = 1 << 20


def read(data: Buffer, path: str) -> Library:
    """Return what one library's bytes carry. A malformed library is returned as broken."""
    digest = hashlib.sha256(data).hexdigest()
    library = Library(
        path, len(data), sha256=digest, dynamic=dynamic.read(data), flags=_flags(data, path)
    )
    try:
        sections = elf.library_sections(data)
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
    pruned = damage.has_gap(sections, present)
    return replace(library, groups=groups, stubs=stubs, pruned=pruned, doubt=doubt)


def _flags(data: Buffer, path: str) -> tuple[str, ...]:
    """Return the words of a library that may be flags of XLA (xla/debug_options_flags.cc)."""
    if not _READS_FLAGS.search(path):
        return ()
    return tuple(sorted({match.decode() for match in _FLAG.findall(data)}))


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


def _has_other_format(data: Buffer) -> bool:
    """Tell whether device code begins with a container's mark, and another version follows."""
    try:
        parts = [part for part in elf.library_sections(data) if part.name in (COMPILED, LINK_INPUT)]
    except Malformed:
        return False
    starts = [bytes(data[part.offset : part.offset + HEADER_SIZE]) for part in parts]
    return any(
        start[:4] == HEADER[:4] and start[4:6] not in (b"\x01\0", b"\0\0") for start in starts
    )


_TOO_LARGE: Final = f"larger than {LARGEST >> 30} GiB: no library is"


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
            1,
            tuple(entry.target for entry in container.entries),
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
    return group._replace(containers=group.containers + other.containers, stored=stored, code=code)


def _stub_sections(data: Buffer, groups: tuple[Group, ...]) -> tuple[str, ...]:
    """Return the sections in which no entry holds a kernel.

    nvcc leaves a container with one empty cubin (sm_52 by default) in a library that has no device
    code of its own, such as libcufftw. Taken for a kernel, it would rule out every newer device.
    """
    small = {group.section for group in groups} - {
        group.section for group in groups if max(group.code, default=_STUB_CODE) >= _STUB_CODE
    }
    if not small:
        return ()
    with_kernels = {
        container.section
        for container in containers(data)
        if container.section in small
        and any(_has_kernel(data, entry) for entry in container.entries)
    }
    return tuple(sorted(small - with_kernels))


def _has_kernel(data: Buffer, entry: Entry) -> bool:
    try:
        code = text(data, entry)
    except Malformed:
        return True  # it cannot be decompressed, so it counts as a kernel
    if code.startswith(elf.MAGIC):
        return any(section.name.startswith(".text.") for section in elf.sections(code))
    return b".entry" in code or b".func" in code or not code.isascii()
