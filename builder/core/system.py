"""The calls that only Linux has, each with what stands in for it on another system.

No other module makes such a call (tests/test_house.py), but for the private engine, which is for
Linux alone, and for what runs inside images. `fcntl` (builder/core/files.py) is on Linux and macOS;
on Windows the factory runs in WSL, which is a Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LINUX: Final = sys.platform == "linux"

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if LINUX else None


def architecture(machine: str = platform.machine()) -> str:
    """A machine's architecture (by default this one's) by its name in images: amd64, arm64."""
    return {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def started(pid: int) -> str:
    """When a process started, as a text that differs for a later process of the same number.

    "0" for a process that does not exist. On Linux the kernel's ticks, elsewhere what ps says.
    """
    if LINUX:
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return "0"
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    with contextlib.suppress(OSError):
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return "-".join(said.replace(":", "-").split()) or "0"
    return "0"


def ends_with_parent() -> Callable[[], None] | None:
    """For a child's `preexec_fn`: it gets SIGTERM when this process ends, even by SIGKILL.

    None on other systems, which know nothing like it: there the child goes on until its own end.
    """
    return _set_death_signal if _LIBC else None


def _set_death_signal() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True)
class HandedFiles:
    """Files for a child process. paths: by name. descriptors: those that it has to inherit."""

    paths: Mapping[str, str]
    descriptors: tuple[int, ...] = ()


@contextlib.contextmanager
def handed(contents: Mapping[str, bytes]) -> Iterator[HandedFiles]:
    """Each content as a file that a child process can read.

    On Linux the files lie in memory: none stays on a disk, whatever ends this process. Elsewhere
    they lie in a folder that only this user may read, until the block ends.
    """
    with contextlib.ExitStack() as stack:
        if not LINUX:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secrets-")))
            for name, content in contents.items():
                (folder / name).touch(0o600)
                (folder / name).write_bytes(content)
            yield HandedFiles({name: str(folder / name) for name in contents})
            return
        opened: dict[str, int] = {}
        for name, content in contents.items():
            file = stack.enter_context(os.fdopen(os.memfd_create(f"secret-{name}"), "wb"))
            file.write(content)
            file.flush()
            opened[name] = file.fileno()
        paths = {name: f"/proc/self/fd/{number}" for name, number in opened.items()}
        yield HandedFiles(paths, tuple(opened.values()))
