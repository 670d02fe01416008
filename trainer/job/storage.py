"""Files on a disk or in a bucket, whole or not at all."""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from trainer.config import UsageError
from trainer.event_lines import say

gfile = tf.io.gfile
NOT_FOUND = (tf.errors.NotFoundError, FileNotFoundError)
FAILURES = (tf.errors.OpError, OSError)
"""What reading and writing raise."""
_OUTSIDE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ESTALE, errno.ENOTDIR),
)
"""Errors that come from the disk or its owner, not from the program."""


WAITS = (1.0, 4.0)
"""Seconds before each time that reading is tried again."""
_LASTING = (
    *(tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.InvalidArgumentError),
    *(tf.errors.UnimplementedError, tf.errors.UnauthenticatedError, tf.errors.DataLossError),
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
)
"""Failures that another try does not mend."""
_Found = TypeVar("_Found")


def patiently(work: Callable[[], _Found]) -> _Found:
    """Return what `work` does, which only reads; where a store fails, it is tried again, after
    WAITS."""
    for seconds in WAITS:
        try:
            return work()
        except FAILURES as error:
            if isinstance(error, _LASTING):
                raise
            say("store", f"{words(error)}: tried again in {seconds:g} s", "WARNING")
            time.sleep(seconds)
    return work()


def remote(path: str) -> bool:
    """Return whether it is not on a disk of this machine: a URL, or a bucket that Vertex AI mounts
    below /gcs.
    """
    return "://" in path or path.startswith("/gcs/")


def write(path: str, content: bytes) -> None:
    """Put `content` at `path` in one move, so that no reader ever sees a part of it.

    A bucket has no rename, but an object appears there only when it is complete.
    """
    gfile.makedirs(path.rpartition("/")[0])
    if path.startswith("gs://"):
        with gfile.GFile(path, "wb") as file:
            file.write(content)
        return
    temporary = f"{path}.tmp-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    try:
        with gfile.GFile(temporary, "wb") as file:
            file.write(content)
        gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        if gfile.exists(temporary):
            gfile.remove(temporary)
        raise


def attempt(path: str, content: bytes) -> bool:
    """Write a file that a run can do without: a failure, such as a full disk, is a warning. Returns
    whether it is there.
    """
    try:
        write(path, content)
    except FAILURES as error:
        say("summary", f"{path} cannot be written: {error}", "WARNING")
        return False
    return True


def read(path: str) -> bytes:
    """Return all of a file. Raises tf.errors.NotFoundError if there is none."""

    def content() -> bytes:
        with gfile.GFile(path, "rb") as file:
            return bytes(file.read())

    return patiently(content)


def opened(path: str) -> Any:
    """Open a file to read a few bytes at many places.

    TensorFlow's file reads half a megabyte at each place, and so all of it: right for a bucket.
    """
    return gfile.GFile(path, "rb") if remote(path) else Path(path).open("rb", 0)


def replace_folder(temporary: str, path: str) -> None:
    """Rename the finished folder `temporary` to `path`, in place of what is there."""
    if gfile.exists(path):
        gfile.rmtree(path)
    gfile.makedirs(path.rpartition("/")[0])
    gfile.rename(temporary, path)


def unwritable(error: Exception) -> str:
    """Return one line with the system's words, if `error` comes from a disk that is full or closed
    to this program; otherwise "". TensorFlow passes on the system's words, not its error
    numbers.
    """
    text = words(error)
    if isinstance(error, tf.errors.OpError):
        return text if any(os.strerror(number) in text for number in _OUTSIDE) else ""
    return text if isinstance(error, OSError) and error.errno in _OUTSIDE else ""


def words(error: Exception) -> str:
    """Return what the system said, in a line, without the name of TensorFlow's operation."""
    text = " ".join(str(getattr(error, "message", None) or error).split())
    text = text.partition("}} ")[2] if text.startswith("{{") else text
    return text.partition(" [Op:")[0].partition(" [[{")[0][:300]


def size(count: float) -> str:
    """Return a number of bytes in words: 310 kB, 12.4 MB."""
    return f"{count / 1e3:,.0f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def check_writable(folder: str) -> None:
    """Write a file to `folder`, read it back, remove it. Raises UsageError."""
    probe = f"{folder}/.writable-{uuid.uuid4().hex[:8]}"
    try:
        write(probe, b"written")
        whole = read(probe) == b"written"
        gfile.remove(probe)
    except FAILURES as error:
        reason = str(getattr(error, "message", None) or error).split("\n")[0][:200]
        raise UsageError(f"cannot write to {folder}: {reason}") from error
    if not whole:
        raise UsageError(f"cannot write to {folder}: what was written there does not read back")


def check_space(folder: str, needed: int, what: str) -> None:
    """Raise UsageError if a disk has less than `needed` bytes free. A bucket always has space."""
    if remote(folder):
        return
    free = shutil.disk_usage(next(p for p in (Path(folder), *Path(folder).parents) if p.is_dir()))
    if free.free < needed:
        raise UsageError(
            f"{folder} has {size(free.free)} free, {what} need {size(needed)}: "
            "free some, keep fewer (--keep-checkpoints) or give another --job-dir"
        )
