"""Where a project is (the folder that holds builder.toml), and how its files are written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder.core.errors import InputError

MARKER = "builder.toml"
IMAGES = "images"
"""The folder with a folder for each target."""
BUILD = "build"
"""The folder of what builds leave; it may be deleted."""


def find_root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` (else the working directory) that holds builder.toml.

    Raises InputError where there is none.
    """
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (folder / MARKER).is_file():
            return folder
    raise InputError(
        f"no {MARKER} in {here} or in any folder above it",
        f"run this inside a project, or create an empty {MARKER} where the project begins",
    )


def is_module(path: Path) -> bool:
    """Whether `python -m` can start what lies there: path.py, or the folder's __main__.py."""
    return path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: to a name of its own beside it, then renamed."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: a second run waits here until the first is through, or has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hash_of(*parts: str) -> str:
    """SHA-256 in hex over texts; where one ends and the next begins counts too."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
