"""The errors that a user can meet, each with its fix and its exit code.

Exit codes: 2 the user wrote something wrong, 3 the outside world (engine, registry, network)
refused, 4 a check did not pass; 1 is a fault of the factory.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final


class FactoryError(Exception):
    """An error that a person can act on: what is wrong (`message`), how to fix it (`fix`)."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(FactoryError):
    """Something that the user wrote is wrong; names file, line and field where there are any."""

    exit_code = 2


class OutsideError(FactoryError):
    """An engine, a registry or a network refused, or is missing."""

    exit_code = 3


class CheckFailed(FactoryError):
    """A check that did not pass."""

    exit_code = 4


_FIXES: Final = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "free space there; TMPDIR and XDG_CACHE_HOME name folders on another disk",
    ),
    **dict.fromkeys(
        (errno.EFBIG, errno.EMFILE), "raise this user's limits: ulimit -f unlimited -n 4096"
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "let this user read and write there, or name folders in TMPDIR and XDG_CACHE_HOME",
    ),
    **dict.fromkeys(
        (errno.ENFILE, errno.ENOMEM, errno.ETXTBSY), "end other programs, then run this again"
    ),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "look at the disk and its mount"),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.EBUSY, errno.ELOOP, errno.ENAMETOOLONG),
        "look what stands at this path, and move it away",
    ),
}
_FULL: Final = re.compile(f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}")
_NO_TEMPORARY: Final = "No usable temporary directory"


def fix_of(printed: str, otherwise: str) -> str:
    """Return the fix for what another program printed: a full disk's, or `otherwise`."""
    return _FIXES[errno.ENOSPC] if _FULL.search(printed) else otherwise


def refusal(error: OSError, path: str = "") -> OutsideError | None:
    """Return what the operating system refused, with the path; None where it is no refusal.

    path: of the file, if the system's error does not say. This is the only place that tells a full
    disk, a folder of someone else and the like from a fault of the factory.
    """
    if _NO_TEMPORARY in str(error.strerror):
        return OutsideError(str(error.strerror), _FIXES[errno.ENOSPC])
    if error.errno not in _FIXES or type(error).__module__ != "builtins":
        return None  # a library's own error: ssl counts from 1 too
    name = error.filename2 or error.filename or path
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    prefix = f"{name}: " if isinstance(name, str) and name else ""
    return OutsideError(f"{prefix}{error.strerror}", _FIXES[error.errno])
