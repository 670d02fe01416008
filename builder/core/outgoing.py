"""Which files may leave this machine: the project's own, without secrets.

Each file of a build context, of a layer that goes to a registry, of a source that goes to Cloud
Build, and each file that is read for a target is checked.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from builder.core.errors import InputError

HAND_OVER: Final = "hand it to the build or the job as a secret, or leave it out"

_WINDOW: Final = 4 << 20
_OVERLAP: Final = 4096
"""Bytes that two windows of a file share: longer than what a secret is known by."""


def inside(root: Path, path: Path) -> PurePosixPath:
    """Return where a file really is, relative to the project.

    Raises InputError, by name, for what is no regular file of the project: a link out of it, also
    of one of its folders, a pipe. A file that is not there is no link, and passes."""
    shown, real, home = path.relative_to(root).as_posix(), path.resolve(), root.resolve()
    if not real.exists() and path.is_symlink():
        raise InputError(f"{shown}: is a link to a file that is not there", "remove the link")
    if not real.is_relative_to(home):
        raise InputError(
            f"{shown}: is a link to a file outside of the project",
            "copy the file into the project: what is not in it cannot be rebuilt from it",
        )
    if real.exists() and not real.is_dir() and not stat.S_ISREG(real.stat().st_mode):
        raise InputError(f"{shown}: is no regular file", "remove it, or put a file in its place")
    return PurePosixPath(real.relative_to(home))


def check(
    root: Path, path: Path, left_out: Callable[[PurePosixPath], bool], fix: str = HAND_OVER
) -> None:
    """Raise InputError, by name, for a file that must not leave: a secret, or a link out of the
    project or to what is left out of it.

    root: of what is sent; path: below it. left_out: whether a path relative to `root` stays here.
    """
    shown, real = path.relative_to(root).as_posix(), inside(root, path)
    if real.as_posix() != shown and left_out(real):
        raise InputError(f"{shown}: is a link to {real}, which is left out", "remove the link")
    from builder.core import confidential  # its rules take time to load

    for name in {shown, real.as_posix()}:
        with path.open("rb") as file:
            for content in _windows(file):
                if kind := confidential.secret(f"/{name}", content):
                    what = f"{shown}: holds {kind}, which must not leave this machine"
                    raise InputError(what, fix)


def _windows(file: IO[bytes]) -> Iterator[bytes]:
    """Yield at least one window: the name alone may be that of a secret."""
    window = file.read(_WINDOW)
    while True:
        yield window
        more = file.read(_WINDOW)
        if not more:
            return
        window = window[-_OVERLAP:] + more
