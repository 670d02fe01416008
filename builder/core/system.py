"""The calls that only Linux has, each with what stands in for it on another system.

No other module makes such a call (tests/test_house.py), but for the private engine, which is for
Linux alone, and for what runs inside images. `fcntl` (builder/core/files.py) is on Linux and macOS;
on Windows the factory runs in WSL, which is a Linux.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

LINUX: Final = sys.platform == "linux"

_ENDING_WITH_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def architecture(machine: str = platform.machine()) -> str:
    """Return a machine's architecture (by default this one's) as images name it: amd64, arm64."""
    return {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def started(pid: int) -> str:
    """Return when a process started, as a text that differs for a later process of this number.

    "0" for a process that does not exist. On Linux the kernel's ticks, elsewhere what ps prints.
    """
    if LINUX:
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return "0"
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    with contextlib.suppress(OSError):
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return "-".join(printed.replace(":", "-").split()) or "0"
    return "0"


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command such that it gets SIGTERM when its parent ends, even by SIGKILL.

    Other systems have nothing like it: there the child goes on until its own end. A Python of a
    hundredth of a second asks for the signal and becomes the command. A `preexec_fn` would ask in
    a fork of this process, in which gRPC's threads may fail.
    """
    return [*([sys.executable, "-I", "-S", "-c", _ENDING_WITH_PARENT] if LINUX else []), *command]


@contextlib.contextmanager
def secret_files(contents: Mapping[str, bytes]) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Yield each content as a file that a child process can read: the paths by name, and the
    descriptors that it has to inherit.

    On Linux the files lie in memory: none stays on a disk, whatever ends this process. Elsewhere
    they lie in a folder that only this user may read, until the block ends.
    """
    with contextlib.ExitStack() as stack:
        if not LINUX:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secrets-")))
            for name, content in contents.items():
                (folder / name).touch(0o600)
                (folder / name).write_bytes(content)
            yield {name: str(folder / name) for name in contents}, ()
            return
        opened: dict[str, int] = {}
        for name, content in contents.items():
            file = stack.enter_context(os.fdopen(os.memfd_create(f"secret-{name}"), "wb"))
            file.write(content)
            file.flush()
            opened[name] = file.fileno()
        paths = {name: f"/proc/self/fd/{number}" for name, number in opened.items()}
        yield paths, tuple(opened.values())
