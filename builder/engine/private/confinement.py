"""A root of its own for an engine that is started below a changed root (chroot).

Who joins a container later (`docker exec`) stands at the root of the container's mount namespace.
Below a chroot, that is not the container's root: pivot_root(2) puts the container's files where the
chroot was, and the root of the namespace stays the machine's. The command would run there. So the
engine gets a mount namespace whose root is the folder of the chroot.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS
_RECURSIVE, _SLAVE, _DETACH = 0x4000, 0x80000, 2  # MS_REC, MS_SLAVE, MNT_DETACH
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LIBC = ctypes.CDLL(None, use_errno=True)


def leaving(command: Sequence[str | Path]) -> list[str | Path]:
    """Return the command such that it first makes its root that of its mount namespace.

    A Python of its own does that and becomes the command. It imports nothing of the factory.
    """
    return [sys.executable, "-I", __file__, *command]


def _leave() -> None:
    """Leave the chroot. Does nothing where there is none, or where the kernel refuses."""
    with contextlib.suppress(OSError):
        if _is_confined():
            _check(_LIBC.unshare(_NEW_NAMESPACE))
            with _at_the_root_of_the_namespace() as confined:
                _check(_LIBC.mount(b"none", b"/", None, _RECURSIVE | _SLAVE, None))
                above = os.open("/", os.O_PATH)
                os.fchdir(confined)
                _check(_LIBC.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
                os.fchdir(above)  # the old root now lies on the new one
                _check(_LIBC.umount2(b".", _DETACH))
                os.close(above)


def _is_confined() -> bool:
    """Return whether the root of this process is another one than that of its mount namespace."""
    with _at_the_root_of_the_namespace() as confined:
        top = os.open("/", os.O_PATH)
        try:
            return _mount(top) != _mount(confined)
        finally:
            os.close(top)


@contextlib.contextmanager
def _at_the_root_of_the_namespace() -> Iterator[int]:
    """Step out of the chroot and back in. Yields an open folder: the root of the chroot."""
    confined = os.open("/", os.O_PATH)
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    try:
        _check(_LIBC.setns(own, _NEW_NAMESPACE))  # its own: it only moves to the root
        try:
            yield confined
        finally:
            os.fchdir(confined)
            os.chroot(".")
            os.chdir("/")
    finally:
        os.close(own)
        os.close(confined)


def _mount(opened: int) -> str:
    """Return the kernel's number of the mount that an open folder lies on."""
    text = Path(f"/proc/self/fdinfo/{opened}").read_text()
    match = re.search(r"mnt_id:\s*(\d+)", text)
    return match[1] if match else ""


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    _leave()
    os.execv(sys.argv[1], sys.argv[1:])
