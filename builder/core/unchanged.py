"""A check that held is not made again before a file changes that it read, as make does not build
again.

Python tells which files a check opens. What is there decides it, too: the name of each file counts,
whoever reads it. A file is known by its size and its ctime, which the kernel sets at each change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import source_from_cache
from itertools import islice
from pathlib import Path
from typing import Final

from builder.core import files, project

_MOST: Final = 20_000
"""How many files are looked at. Where there are more, every check is made."""
_LIBRARY: Final = Path(os.__file__).parent

_read: dict[str, str] = {}
"""The state of each file that was opened, before it was, by its path."""


def once(check: str, root: Path, make: Callable[[], object]) -> None:
    """Make a check, which raises where it does not hold; where it held and nothing has changed that
    decides it, do not."""
    held, names = root / project.BUILD / "held" / check, ""
    paths = [Path(path) for path in sys.path if Path(path).is_dir()]
    installed = [p for p in paths if _LIBRARY in (p, *p.parents) or p.name.endswith("-packages")]
    with contextlib.suppress(OSError):
        names = _names(root, [path for path in paths if path not in installed], installed)
        was, *states = os.fsdecode(held.read_bytes()).split("\n")
        if was == names and all(state == _state(state.rsplit(" ", 2)[0]) for state in states):
            return
    if not _read:  # else the hook of an earlier check is there: Python removes none
        sys.addaudithook(_note)
    _read.clear()
    for module in [*sys.modules.values()]:
        _note("open", (getattr(module, "__file__", None),))
    make()
    if names:
        apart = tuple(f"{path}/" for path in (*installed, _LIBRARY))
        states = [state for path, state in _read.items() if not path.startswith(apart)]
        with contextlib.suppress(OSError):
            files.write(held, os.fsencode("\n".join([names, *states])))


def _names(root: Path, sources: list[Path], installed: list[Path]) -> str:
    """Return a hash over the names of a project's files, and of those on Python's path, and over
    Python itself; "" for too many files. Installed packages count by their folder, which an
    installer changes."""
    build = str(root / project.BUILD)
    found = (name for folder in dict.fromkeys([root, *sources]) for name in _below(folder, build))
    seen = [sys.version, *(_state(str(path)) for path in installed), *islice(found, _MOST)]
    return hashlib.sha256(os.fsencode("\n".join(seen))).hexdigest() if len(seen) < _MOST else ""


def _below(folder: Path | str, build: str) -> Iterator[str]:
    """Yield the path of all in a folder; hidden files, bytecode and builds decide nothing."""
    for entry in os.scandir(folder):
        if entry.name[0] == "." or entry.name == "__pycache__" or entry.path == build:
            continue
        kind = "/" if entry.is_dir() else "" if entry.is_file() else "?"
        yield f"{entry.path}{kind} {Path(entry).readlink() if entry.is_symlink() else ''}"
        if entry.is_dir():
            yield from _below(entry.path, build)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    """Note the file that Python opens; of bytecode its source, by whose date Python judges it."""
    if event == "open" and isinstance(arguments[0], str):
        path = arguments[0] if arguments[0][:1] == "/" else str(Path(arguments[0]).absolute())
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # it has no source
                path = source_from_cache(path)
        if path not in _read:
            _read[path] = _state(path)


def _state(path: str) -> str:
    try:
        status = os.stat(path)  # noqa: PTH116  (a Path takes longer than the call)
    except OSError:  # it is not there
        return f"{path} - -"
    return f"{path} {status.st_size} {status.st_ctime_ns}"
