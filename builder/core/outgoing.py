"""Which files may leave this machine: the project's own, without secrets.

Each file of a build context, of a layer that goes to a registry, of a source that goes to Cloud
Build, and each file that is read for a target is checked.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from builder.core import confidential
from builder.core.errors import InputError

HAND_OVER: Final = "hand it to the build or the job as a secret, or leave it out"


def inside(root: Path, path: Path, shown: str = "") -> None:
    """Raise InputError, by name, for what is no regular file of the project: a link out of it, a
    pipe. A file that is not there is no link, and passes."""
    shown = shown or path.relative_to(root).as_posix()
    real = path.resolve()
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
    content = path.read_bytes() if path.stat().st_size <= confidential.READ_AT_MOST else b""
    for name in (shown, real.as_posix()):
        if kind := confidential.secret(f"/{name}", content):
            raise InputError(f"{shown}: holds {kind}, which must not leave this machine", fix)
