"""The libraries of folders, wheels and other streams of files, compared with their records."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from builder.core import parallel
from builder.devicecode import reader, records
from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.reader import BROKEN_ARCHIVE
from builder.devicecode.records import WheelRecord


@dataclass(frozen=True)
class Inventory:
    """The libraries among some files, as they were read, and the records by their own paths."""

    libraries: tuple[Library, ...]
    records: Mapping[str, WheelRecord]

    def compared(self) -> tuple[Library, ...]:
        """Return the libraries with their distributions, and with what the records doubt."""
        return records.compare(self.libraries, self.records.values())


def of_stream(files: Iterable[tuple[str, IO[bytes]]]) -> Inventory:
    """Return the libraries in a stream of (path, open file), such as the members of a tar archive.

    Each file is read once and in order, so the stream need not be seekable. Pass every file: those
    that are neither library nor record are skipped by name.
    """
    libraries, recorded = [], {}
    for path, file in files:
        if LIBRARY_NAME.search(path):
            libraries.append(reader.read_stream(file, path))
        elif records.is_record(path):
            recorded[path] = records.parse(path, _text(file))
    return Inventory(tuple(libraries), recorded)


def of_folder(folder: Path) -> tuple[Library, ...]:
    """Return every library below a folder, sorted by path. Symbolic links are left out."""
    paths: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        paths += (Path(parent, name) for name in sorted(names) if is_read(f"{parent}/{name}"))
    paths = [path for path in paths if not path.is_symlink()]
    recorded = {}
    for path in paths:
        if records.is_record(str(path)) and path.is_file():
            with path.open("rb") as file:
                recorded[str(path)] = records.parse(str(path), _text(file))
    libraries = parallel.each(of_file, (path for path in paths if LIBRARY_NAME.search(path.name)))
    return Inventory(libraries, recorded).compared()


def of_wheel(file: IO[bytes], package: str, version: str, folder: str = "") -> tuple[Library, ...]:
    """Return every library in a wheel that is not installed.

    folder: comes before the paths inside the wheel. A wheel that cannot be read is itself returned
    as a broken library.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            libraries = of_stream(_members(archive, folder)).compared()
    except BROKEN_ARCHIVE as error:
        broken = f"no readable wheel: {error}"
        libraries = (Library(folder or package, file.seek(0, os.SEEK_END), broken=broken),)
    return tuple(replace(item, package=package, version=version) for item in libraries)


def of_file(path: Path) -> Library:
    """Return what one file carries. A file that cannot be opened is returned as broken."""
    try:
        # O_NONBLOCK: to open a pipe would wait for ever
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return reader.read_file(file, str(path))
    except OSError as error:
        return Library(str(path), 0, broken=error.strerror or str(error))


def is_read(path: str) -> bool:
    """Tell whether a file of this path is looked into: a library, or a record of libraries."""
    return bool(LIBRARY_NAME.search(path)) or records.is_record(path)


def _members(archive: zipfile.ZipFile, folder: str) -> Iterator[tuple[str, IO[bytes]]]:
    for member in archive.infolist():
        if is_read(member.filename):
            with archive.open(member) as file:
                yield str(PurePosixPath(folder, member.filename)), file


def _text(file: IO[bytes]) -> str:
    return file.read(records.LARGEST).decode("utf-8", "replace")
