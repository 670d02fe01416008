"""Files on this machine: written whole, locked between processes, kept in the user's cache."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final, TypeVar

from builder.core.errors import InputError, OutsideError

T = TypeVar("T")
V = TypeVar("V")

LARGEST: Final = 16 << 20
"""Bytes of a person's file that are read."""

EPOCH = 315532800
"""Date of every file in an image, in seconds since 1970: 1980-01-01, the earliest of a zip file."""


def write(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a file whole or not at all; text as UTF-8. A reader sees the old file or the new one.

    mode: the file's permissions. None keeps those of the file that is there; a new one gets 0o644.
    """
    with replacing(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def append(path: Path, text: str) -> None:
    """Add a text to the end of a file in one piece, as UTF-8; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` at the end of the block; an error discards it.

    The folder is made where it is missing. The content goes to a name of its own beside `path`,
    which is then renamed. A device or a pipe (`/dev/stdout`) is written to directly.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)
        raise
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        if mode is None:
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        new.chmod(mode)
        new.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (None, name):
            error.filename = str(path)  # so that the error of a full disk names it
        new.unlink(missing_ok=True)
        raise


_LOOK_AGAIN: Final = 0.1
"""Seconds between two looks whether a lock is free."""


@contextlib.contextmanager
def locked(
    path: Path, wait: bool = True, check: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold a lock file; the kernel frees it when the process ends, however it ends.

    Waits for another process that holds it; without `wait` it raises BlockingIOError. check: is
    called while it waits, in a thread that no signal reaches; what it raises ends the waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait and not check else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if not check:
                    raise
                check()
                time.sleep(_LOOK_AGAIN)
        yield


def locked_for(kind: str, path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a file that lies in a project: the lock itself lies in the user's cache."""
    return locked(cache_home() / "locks" / f"{kind}-{hash_of(str(path.resolve()))[:16]}")


def remove_older(paths: Iterable[Path], seconds: float) -> None:
    """Remove files and folders that nobody changed for so long: what killed runs left."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another run was faster
            if time.time() - path.stat().st_mtime > seconds:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def opened(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, so that nobody leads it elsewhere meanwhile, or lets it
    wait. Raises OSError for a link, a folder, a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return open(handle, "rb")  # noqa: PTH123


def parsed(parse: Callable[[T], V], data: T) -> V:
    """Return what `json.loads` or `tomllib.loads` makes of data from outside. Raises ValueError,
    also for what is nested too deeply."""
    try:
        return parse(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def text_of(path: Path) -> str | None:
    """Return the text of a person's file, None where there is none; as pip reads it, by its mark.

    Raises InputError for more than LARGEST bytes.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InputError(f"{path}: more than {LARGEST >> 20} MiB of text", "write a smaller file")
    marks = dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32")  # PowerShell's
    marks |= dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16")
    encoding = next((marks[mark] for mark in marks if data.startswith(mark)), "utf-8-sig")
    text = data.decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads text


def data_home() -> Path:
    """Return the folder of what this user's factory keeps: the private engine, and what it made."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "training-image-factory"


def cache_home() -> Path:
    """Return the folder of what the factory can fetch or make again; only this user may enter it.

    Raises OutsideError where another user may write to it: what lies there goes into images.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "training-image-factory"
    with contextlib.suppress(OSError):  # who writes to it gets the error
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise OutsideError(
                f"{folder}: another user may write to this cache, and so into images",
                f"chmod 700 {folder}, or name another folder in XDG_CACHE_HOME",
            )
    return folder


def sizes(folder: Path) -> dict[str, int]:
    """Return the name of each folder below `folder`, sorted -> bytes of the files in it."""
    return {
        part.name: sum(path.lstat().st_size for path in part.rglob("*") if path.is_file())
        for part in sorted(folder.iterdir() if folder.is_dir() else ())
        if part.is_dir()
    }


def hash_of(*parts: str) -> str:
    """Return a SHA-256 in hex over texts; it also covers where each text ends."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
