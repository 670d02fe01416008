"""A folder of each build that is under way, by which a later run knows what a killed one left.

The process of a build holds a lock in its folder. The system releases the lock when the process
ends, however it ends.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudbuild_local.errors import OutsideError


@contextlib.contextmanager
def folder_of(build_id: str, engine: str) -> Iterator[Path]:
    """Make the folder of a build for the time of the block. engine: the address of its engine."""
    folder = _home() / build_id
    with contextlib.ExitStack() as stack:
        with _alone():
            folder.mkdir(mode=0o700)
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(engine)
            lock.flush()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def abandoned(engine: str) -> Iterator[tuple[str, ...]]:
    """Give the ids of this user's builds on an engine whose process has ended.

    The block removes what they left; then their folders are removed.
    """
    with _alone():
        folders = [folder for folder in _home().iterdir() if _is_abandoned(folder, engine)]
        yield tuple(folder.name for folder in folders)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path, engine: str) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock.read() == engine
    except OSError:  # its process holds the lock, or it is no folder of a build
        return False


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(cache).expanduser() / "cloudbuild-local"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fix = "let this user write there, or name another folder in XDG_CACHE_HOME"
        raise OutsideError(f"{home}: {error.strerror}", fix) from None
    return home


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let no other process make or look at folders."""
    with (_home() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
