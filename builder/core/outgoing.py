"""Which files may leave this machine: the project's own, without secrets.

Each file of a build context, of a layer that goes to a registry, of a source that goes to Cloud
Build, and each file that is read for a target is checked.
"""

from __future__ import annotations

import gzip
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from builder.core import confidential
from builder.core.errors import InputError

HAND_OVER: Final = "hand it to the build or the job as a secret, or leave it out"

_WINDOW: Final = 4 << 20
_OVERLAP: Final = 4096
"""Bytes that two windows of a file share: longer than what a secret is known by."""
_PACKED: Final = (EOFError, OSError, zlib.error, zipfile.BadZipFile, RuntimeError, ValueError)
"""What a file raises that begins as a gzip or zip, and is none."""


def inside(root: Path, path: Path) -> None:
    """Raise InputError, by name, for what is no regular file of the project: a link out of it, a
    pipe. A file that is not there is no link, and passes."""
    shown, real = path.relative_to(root).as_posix(), path.resolve()
    if not real.exists():
        if path.is_symlink():
            raise InputError(f"{shown}: is a link to a file that is not there", "remove the link")
        return
    if not real.is_relative_to(root.resolve()):
        raise InputError(
            f"{shown}: is a link to a file outside of the project",
            "copy the file into the project: what is not in it cannot be rebuilt from it",
        )
    if not real.is_dir() and not stat.S_ISREG(real.stat().st_mode):
        raise InputError(f"{shown}: is no regular file", "remove it, or put a file in its place")


def check(
    root: Path,
    path: Path,
    left_out: Callable[[PurePosixPath], bool],
    fix: str = HAND_OVER,
) -> None:
    """Raise InputError, by name, for a file that must not leave: a secret, or a link out of the
    project or to what is left out of it.

    root: of what is sent; path: below it. left_out: whether a path relative to `root` stays here.
    """
    inside(root, path)
    shown = path.relative_to(root).as_posix()
    real = PurePosixPath(path.resolve().relative_to(root.resolve()))
    if real.as_posix() != shown and left_out(real):
        raise InputError(f"{shown}: is a link to {real}, which is left out", "remove the link")
    for name in (shown, real.as_posix()):
        for inside_it, content in _contents(path):
            if kind := confidential.secret(f"/{name}{inside_it}", content):
                within = f" (in it, {inside_it[1:]})" if inside_it else ""
                raise InputError(
                    f"{shown}: holds {kind}{within}, which must not leave this machine", fix
                )


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what a file holds, in windows that overlap; then what a gzip or a zip holds, each with
    its name in it. What is packed twice is not looked into."""
    with path.open("rb") as file:
        begin = file.read(4)
        file.seek(0)
        yield from (("", window) for window in _windows(file))
        try:
            if begin[:2] == b"\x1f\x8b":
                file.seek(0)
                yield from (("", window) for window in _windows(gzip.GzipFile(fileobj=file)))
            elif begin == b"PK\3\4":
                with zipfile.ZipFile(file) as archive:
                    for name in archive.namelist():
                        with archive.open(name) as member:
                            yield from ((f"/{name}", window) for window in _windows(member))
        except _PACKED:
            return


def _windows(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """Yield at least one window: the name alone may be that of a secret."""
    window = file.read(_WINDOW)
    while True:
        yield window
        more = file.read(_WINDOW)
        if not more:
            return
        window = window[-_OVERLAP:] + more
