"""What each library of a folder, a wheel or a stream of files carries."""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from . import damage, records
from .pruning import elf
from .pruning.elf import LIBRARY_NAME, Buffer
from .pruning.errors import InputError, Malformed
from .pruning.fatbin import COMPILED, HEADER_SIZE, Container, Target, containers, target
from .pruning.fatbin import payload as read_payload
from .records import Recorded, Records

LARGEST = 8 << 30
"""Bytes of a library that are read; the largest that was seen has 1.5 GB."""

_BROKEN_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)

_STUB_CODE = 4096
"""Entries of fewer bytes (decompressed) are looked into: they may hold no kernel."""


@dataclass(frozen=True)
class Group:
    """Containers of one section that hold code for the same targets, in the same order.

    stored, code: for each target, the bytes in the file and after decompression, of all the
    containers together.
    """

    section: str
    targets: tuple[Target, ...]
    containers: int
    stored: tuple[int, ...]
    code: tuple[int, ...]


@dataclass(frozen=True)
class Library:
    """One library: its path as it was found, its size in bytes, and its device code.

    package, version: the distribution that installed it, "" if no distribution says so. broken: why
    the file cannot be read; then nothing else is known of it. doubt: why it may not be whole; then
    nothing is concluded from what was found. stub_sections: sections whose containers hold no
    kernel, which nvcc leaves in a library without device code. pruned: whether entries were taken
    out of containers. sha256: in hex, "" where no record asks for it.
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

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def origin(self) -> str:
        """The distribution and its version, or the path if no distribution is known."""
        return f"{self.package} {self.version}" if self.package else self.path


def read(data: Buffer, path: str, with_hash: bool = False) -> Library:
    """The inventory of one library's bytes. A malformed library is returned as broken."""
    digest = records.sha256(data) if with_hash else ""
    try:
        sections = elf.library_sections(data)
        found = tuple(containers(data))
        groups = _groups(found)
        stubs = _stub_sections(data, groups)
        gone = damage.damage(data, sections, found)
        doubt = "" if gone else damage.doubt(data, sections, found, path)
    except Malformed as error:
        return Library(path, len(data), broken=error.message, sha256=digest)
    if gone:
        return Library(path, len(data), broken=gone, sha256=digest)
    return Library(path, len(data), groups, "", "", "", stubs, _is_pruned(found), doubt, digest)


def read_file(path: Path, with_hash: bool = False) -> Library:
    """The inventory of a file. It is memory-mapped, so only what holds code is read."""
    name = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for ever
            return Library(name, 0, broken="not a regular file")
        with path.open("rb") as file:
            return _read_open(file, name, with_hash)
    except OSError as error:
        return Library(name, 0, broken=error.strerror or str(error))


def _read_open(file: IO[bytes], path: str, with_hash: bool) -> Library:
    size = os.fstat(file.fileno()).st_size
    start = file.read(64)
    if not start.startswith(elf.MAGIC):
        if start.lstrip().startswith((b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT")):
            return Library(path, size)  # a linker script: text that names the real library
        reason = "it is empty" if size == 0 else f"not an ELF file: starts with {start[:8]!r}"
        return Library(path, size, broken=reason)
    if size > LARGEST:
        return Library(path, size, broken=_too_large())
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read(data, path, with_hash)


def _too_large() -> str:
    return f"larger than {LARGEST >> 30} GiB: no library is"


def from_folder(folder: Path) -> Iterator[Library]:
    """Every library below a folder, each with its distribution, and compared with what its
    distribution recorded of it. Symbolic links are left out."""
    known = Records()
    paths: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if LIBRARY_NAME.search(name) and not path.is_symlink():
                paths.append(path)
            elif records.is_record(path.as_posix()) and path.is_file():
                with path.open("rb") as file:
                    known.add(path.as_posix(), _text(file))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # a hash runs beside another
        read = pool.map(lambda path: read_file(path, known.knows(str(path))), paths)
        yield from (_compared(library, known) for library in read)


def _text(file: IO[bytes]) -> str:
    return file.read(records.LARGEST).decode("utf-8", "replace")


def from_wheel(wheel: Path) -> Iterator[Library]:
    """Every library in a wheel that is not installed; each is unpacked to a temporary file."""
    package, version = _wheel_name(wheel)
    known = Records()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if records.is_record(member.filename):
                    with archive.open(member) as packed:
                        known.add(f"{wheel.name}/{member.filename}", _text(packed))
            for member in archive.infolist():
                if not LIBRARY_NAME.search(member.filename):
                    continue
                path = f"{wheel.name}/{member.filename}"
                with archive.open(member) as packed:
                    library = _compared(_read_stream(packed, path), known)
                yield replace(library, package=package, version=version)
    except _BROKEN_ARCHIVE as error:
        yield Library(
            str(wheel), wheel.stat().st_size, (), package, version, f"no readable wheel: {error}"
        )


def from_files(files: Iterable[tuple[str, IO[bytes]]]) -> Iterator[Library]:
    """Every library in a stream of (path, open file), such as the members of an image layer's tar.

    Files are read once and in order, so the stream need not be seekable. Records among them name
    the distributions, and what a library has to be. Pass every member: files that are no libraries
    are skipped by name.
    """
    known = Records()
    libraries: list[Library] = []
    for path, file in files:
        if LIBRARY_NAME.search(path):
            libraries.append(_read_stream(file, path))
        elif records.is_record(path):
            known.add(path, _text(file))
    yield from (_compared(library, known) for library in libraries)


def _compared(library: Library, known: Records) -> Library:
    """A library with its distribution, and what the records say of its bytes."""
    wheel, doubt = known.wheels.get(library.path), library.doubt
    found = Recorded(library.sha256, library.size)
    if known.confirms(library.path, found):
        doubt = ""
    elif library.groups or doubt or (wheel and found.size == wheel.size):
        # a library without device code may have been stripped or patched after it was installed
        doubt = known.doubt(library.path, found) or doubt
    if wheel:
        library = replace(library, package=wheel.package, version=wheel.version)
    return replace(library, doubt="" if library.broken else doubt)


def from_paths(paths: Iterable[Path]) -> tuple[Library, ...]:
    """Every library of folders, wheels, images in files (images.py) and single libraries.

    Raises InputError.
    """
    from . import images  # which reads its layers with this module

    paths = tuple(paths)
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{path}: no such file or folder", "name a folder, a wheel or a library"
            )

    def one(path: Path) -> tuple[Library, ...]:
        if images.is_layout(path):
            return images.from_layout(path)
        if path.is_dir():
            return tuple(from_folder(path))
        if path.suffix == ".whl" and path.is_file():
            return tuple(from_wheel(path))
        if images.is_archive(path):
            return images.from_archive(path)
        return (read_file(path),)

    if len(paths) == 1:
        return one(paths[0])
    with ThreadPoolExecutor(min(len(paths) or 1, os.cpu_count() or 1)) as pool:
        return tuple(library for found in pool.map(one, paths) for library in found)


def _read_stream(file: IO[bytes], path: str) -> Library:
    with tempfile.TemporaryFile() as unpacked:
        try:
            while block := file.read(1 << 20):
                unpacked.write(block)
                if unpacked.tell() > LARGEST:
                    return Library(path, 0, broken=_too_large())
        except _BROKEN_ARCHIVE as error:
            return Library(path, 0, broken=f"cannot be unpacked: {error}")
        except OSError as error:
            if error.errno is None:  # gzip's word for damage
                return Library(path, 0, broken=f"cannot be unpacked: {error}")
            raise  # this machine's fault, which says nothing of the library
        unpacked.seek(0)
        return _read_open(unpacked, path, with_hash=True)


def _groups(found: Iterable[Container]) -> tuple[Group, ...]:
    sums: dict[tuple[str, tuple[tuple[int, int, int], ...]], list[list[int]]] = {}
    for container in found:
        key = (
            container.section,
            tuple((entry.kind, entry.architecture, entry.flags) for entry in container.entries),
        )
        stored = [entry.size for entry in container.entries]
        code = [entry.code_size for entry in container.entries]
        if key in sums:
            total = sums[key]
            total[0][0] += 1
            total[1] = [a + b for a, b in zip(total[1], stored)]  # noqa: B905
            total[2] = [a + b for a, b in zip(total[2], code)]  # noqa: B905
        else:
            sums[key] = [[1], stored, code]
    return tuple(
        Group(section, tuple(target(*flags) for flags in key), n[0], tuple(stored), tuple(code))
        for (section, key), (n, stored, code) in sums.items()
    )


def _is_pruned(found: tuple[Container, ...]) -> bool:
    """Whether entries were taken out: linkers put containers side by side, so zeros after a
    container show that it was longer."""
    return any(
        before.section == after.section == COMPILED and after.offset - before.end > HEADER_SIZE
        for before, after in zip(found, found[1:])  # noqa: B905, RUF007 - Python 3.9
    )


def _stub_sections(data: Buffer, groups: tuple[Group, ...]) -> frozenset[str]:
    """Sections in which no entry holds a kernel.

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
        return True  # it cannot be looked into, so it counts as a kernel
    if code.startswith(elf.MAGIC):
        return any(section.name.startswith(".text.") for section in elf.sections(code))
    return b".entry" in code or b".func" in code or not code.isascii()


def _wheel_name(wheel: Path) -> tuple[str, str]:
    parts = wheel.name.split("-")
    return (records.normal(parts[0]), parts[1]) if len(parts) >= 5 else ("", "")
