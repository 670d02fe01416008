"""What each library of a folder, a wheel or a stream of files carries."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from .pruning import elf
from .pruning.elf import LIBRARY_NAME, Buffer
from .pruning.errors import InputError, Malformed
from .pruning.fatbin import COMPILED, HEADER_SIZE, Container, Target, containers, target
from .pruning.fatbin import payload as read_payload

_RECORD_NAME = re.compile(r"(?:^|/)([^/]+)-([^/-]+)\.dist-info/RECORD$")

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
    the file cannot be read; then nothing else is known of it. stub_sections: sections whose
    containers hold no kernel, which nvcc leaves in a library without device code. pruned: whether
    entries were taken out of containers.
    """

    path: str
    size: int
    groups: tuple[Group, ...] = ()
    package: str = ""
    version: str = ""
    broken: str = ""
    stub_sections: frozenset[str] = frozenset()
    pruned: bool = False

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def origin(self) -> str:
        """The distribution and its version, or the path if no distribution is known."""
        return f"{self.package} {self.version}" if self.package else self.path


def read(data: Buffer, path: str) -> Library:
    """The inventory of one library's bytes. A malformed library is returned as broken."""
    try:
        found = tuple(containers(data))
        groups = _groups(found)
        stubs = _stub_sections(data, groups)
    except Malformed as error:
        return Library(path, len(data), broken=error.message)
    return Library(path, len(data), groups, stub_sections=stubs, pruned=_is_pruned(found))


def read_file(path: Path, shown_as: str = "") -> Library:
    """The inventory of a file. It is memory-mapped, so only what holds containers is read."""
    name = shown_as or str(path)
    try:
        with path.open("rb") as file:
            return _read_open(file, name)
    except OSError as error:
        return Library(name, 0, broken=error.strerror or str(error))


def _read_open(file: IO[bytes], path: str) -> Library:
    size = os.fstat(file.fileno()).st_size
    start = file.read(64)
    if not start.startswith(elf.MAGIC):
        if start.lstrip().startswith((b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT")):
            return Library(path, size)  # a linker script: text that names the real library
        reason = "it is empty" if size == 0 else f"not an ELF file: starts with {start[:8]!r}"
        return Library(path, size, broken=reason)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read(data, path)


def from_folder(folder: Path) -> Iterator[Library]:
    """Every library below a folder, each with its distribution. Symbolic links are left out."""
    records: list[Path] = []
    libraries: list[Library] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        records += [Path(parent, name, "RECORD") for name in folders if name.endswith(".dist-info")]
        paths = (Path(parent, name) for name in sorted(names) if LIBRARY_NAME.search(name))
        libraries += [read_file(path) for path in paths if not path.is_symlink()]
    owners: dict[str, tuple[str, str]] = {}
    for record in records:
        if record.is_file():
            owners.update(_owners(record.as_posix(), record.read_text("utf-8", "replace")))
    yield from (_attributed(library, owners) for library in libraries)


def from_wheel(wheel: Path) -> Iterator[Library]:
    """Every library in a wheel that is not installed; each is unpacked to a temporary file."""
    package, version = _wheel_name(wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not LIBRARY_NAME.search(member.filename):
                    continue
                path = f"{wheel.name}/{member.filename}"
                with archive.open(member) as packed:
                    library = _read_stream(packed, path)
                yield replace(library, package=package, version=version)
    except _BROKEN_ARCHIVE as error:
        yield Library(
            str(wheel), wheel.stat().st_size, (), package, version, f"no readable wheel: {error}"
        )


def from_files(files: Iterable[tuple[str, IO[bytes]]]) -> Iterator[Library]:
    """Every library in a stream of (path, open file), such as the members of an image layer's tar.

    Files are read once and in order, so the stream need not be seekable. RECORD files among them
    name the distributions. Pass every member: files that are no libraries are skipped by name.
    """
    owners: dict[str, tuple[str, str]] = {}
    libraries: list[Library] = []
    for path, file in files:
        if LIBRARY_NAME.search(path):
            libraries.append(_read_stream(file, path))
        elif _RECORD_NAME.search(path):
            owners.update(_owners(path, file.read().decode("utf-8", "replace")))
    yield from (_attributed(library, owners) for library in libraries)


def from_paths(paths: Iterable[Path]) -> tuple[Library, ...]:
    """Every library of folders, wheels and single libraries. Raises InputError."""
    paths = tuple(paths)
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{path}: no such file or folder", "name a folder, a wheel or a library"
            )

    def one(path: Path) -> tuple[Library, ...]:
        if path.is_dir():
            return tuple(from_folder(path))
        if path.suffix == ".whl":
            return tuple(from_wheel(path))
        return (read_file(path),)

    if len(paths) == 1:
        return one(paths[0])
    with ThreadPoolExecutor(min(len(paths) or 1, os.cpu_count() or 1)) as pool:
        return tuple(library for found in pool.map(one, paths) for library in found)


def _read_stream(file: IO[bytes], path: str) -> Library:
    with tempfile.TemporaryFile() as unpacked:
        try:
            shutil.copyfileobj(file, unpacked, 1 << 20)
        except _BROKEN_ARCHIVE as error:
            return Library(path, 0, broken=f"cannot be unpacked: {error}")
        except OSError as error:
            if error.errno is None:  # gzip's word for damage
                return Library(path, 0, broken=f"cannot be unpacked: {error}")
            raise  # this machine's fault, which says nothing of the library
        unpacked.seek(0)
        return _read_open(unpacked, path)


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
    return (_normal(parts[0]), parts[1]) if len(parts) >= 5 else ("", "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _owners(record: str, text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The libraries that a distribution's RECORD lists, with its name and version."""
    match = _RECORD_NAME.search(record)
    if not match:
        return
    site = PurePosixPath(record).parent.parent
    for line in text.splitlines():
        path = line.split(",", 1)[0]
        if LIBRARY_NAME.search(path):
            yield str(site / path), (_normal(match[1]), match[2])


def _attributed(library: Library, owners: dict[str, tuple[str, str]]) -> Library:
    package, version = owners.get(library.path, ("", ""))
    return replace(library, package=package, version=version) if package else library
