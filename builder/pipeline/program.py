"""The files of a program that its image gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.core import outgoing
from builder.core.errors import InputError

LEFT_OUT = frozenset({"__pycache__", "tests", "test", "node_modules"})
"""Folders of a trainer that no training run reads. Hidden files and folders are left out, too."""

MOST_FILES, MOST_BYTES = 20_000, 2_000_000_000
"""What a program may have: its files are held in memory, and become one layer."""

_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", "~", ".swp")


def walk(folder: Path) -> Iterator[Path]:
    """The files of a program's folder that its image gets, sorted.

    Raises InputError for a link back to a folder above it, and for more files or bytes than a
    program has.
    """
    total = 0
    for number, path in enumerate(_below(folder, (folder.resolve(),)), 1):
        total += path.stat().st_size if path.is_file() else 0
        if number > MOST_FILES or total > MOST_BYTES:
            much = f"more than {MOST_FILES:,} files or {MOST_BYTES / 1e9:g} GB"
            raise InputError(
                f"{folder.name}: the program's folder holds {much} (up to {path.name})",
                "keep data out of it: a job reads records, and writes to its job folder",
            )
        yield path


def _below(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if _left_out(path.name):
            continue
        if not path.is_dir():
            yield path
        elif path.name not in LEFT_OUT:
            real = path.resolve()
            if real in above:
                raise InputError(
                    f"{path}: this link leads back to a folder above it", "remove the link"
                )
            yield from _below(path, (*above, real))


def check(root: Path, path: Path) -> None:
    """Refuse a file of a program that must not be in an image. Raises InputError.

    A link must not bring in what is left out, such as `../.git/config`.
    """
    outgoing.check(root, path, lambda real: any(map(_left_out, real.parts)))


def _left_out(name: str) -> bool:
    return name.startswith(".") or name.endswith(_LEFT_OUT_ENDINGS)
