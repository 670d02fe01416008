"""A check that held is not made again before a file changes, as make does not build again.

A file is known by its size and its ctime, which the kernel sets at each change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from builder.core import files, project

_MOST: Final = 20_000
"""How many files are looked at. Where there are more, every check is made."""
_LIBRARY: Final = Path(os.__file__).parent


def stamp(root: Path) -> str:
    """Return a hash over what can decide a check of a project: its files, those on Python's path,
    and Python itself; "" for too many files. Installed packages count by their folder, which an
    installer changes."""
    paths = [Path(path) for path in sys.path if Path(path).is_dir()]
    installed = [p for p in paths if _LIBRARY in (p, *p.parents) or p.name.endswith("-packages")]
    folders = dict.fromkeys([root, *(path for path in paths if path not in installed)])
    build = str(root / project.BUILD)
    states = (state for folder in folders for state in _states(folder, build))
    seen = [sys.version, *(_state(str(path), path) for path in installed), *islice(states, _MOST)]
    return hashlib.sha256(os.fsencode("\n".join(seen))).hexdigest() if len(seen) < _MOST else ""


def once(check: str, root: Path, make: Callable[[], object]) -> None:
    """Make a check, which ends with SystemExit; where it held and nothing has changed, do not."""
    held, now = root / project.BUILD / "held" / check, ""
    with contextlib.suppress(OSError):
        now = stamp(root)
        if now and held.read_bytes() == now.encode():
            return
    try:
        make()
    except SystemExit as end:
        if now and not end.code:
            with contextlib.suppress(OSError):
                files.write(held, now)
        raise


def _states(folder: Path | str, build: str) -> Iterator[str]:
    """Yield the state of each file of a folder; hidden ones, bytecode and builds decide nothing."""
    for entry in os.scandir(folder):
        if entry.name[0] == "." or entry.name == "__pycache__" or entry.path == build:
            continue
        if entry.is_dir():
            yield from _states(entry.path, build)
        else:
            yield _state(entry.path, entry)


def _state(path: str, file: Path | os.DirEntry[str]) -> str:
    with contextlib.suppress(OSError):  # a link that leads nowhere
        status = file.stat()
        return f"{path} {status.st_size} {status.st_ctime_ns}"
    return path
