"""What a path holds: a folder, a wheel, an image in files, or one library."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path

from builder.core import parallel
from builder.core.errors import InputError
from builder.devicecode import images, inventory, records
from builder.devicecode.images import ImageContent
from builder.devicecode.library import Library


def read(paths: Iterable[Path]) -> ImageContent:
    """Return what these paths hold, taken together. Raises InputError."""
    contents = parallel.each(_read, paths)
    return ImageContent(
        tuple(library for content in contents for library in content.libraries),
        tuple(secret for content in contents for secret in content.secrets),
    )


def libraries(*paths: Path) -> tuple[Library, ...]:
    """Return the libraries that these paths hold. Raises InputError."""
    return read(paths).libraries


def _read(path: Path) -> ImageContent:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", "name a folder, a wheel or a library")
    if images.is_layout(path) or (path.is_file() and _is_archive(path)):
        return images.of_archive(path)
    if path.is_dir():
        return ImageContent(inventory.of_folder(path))
    if path.suffix == ".whl" and path.is_file():
        return ImageContent(_of_wheel(path))
    return ImageContent((inventory.of_file(path),))


def _of_wheel(path: Path) -> tuple[Library, ...]:
    """Return the libraries of a wheel, whose file name says what it is (PEP 427)."""
    parts = path.name.split("-")
    package, version = (records.normal(parts[0]), parts[1]) if len(parts) >= 5 else ("", "")
    with path.open("rb") as file:
        return inventory.of_wheel(file, package, version, path.name)


def _is_archive(path: Path) -> bool:
    return path.suffix != ".whl" and tarfile.is_tarfile(path)
