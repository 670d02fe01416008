"""Where a project is: the folder that holds builder.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from builder.core.errors import InputError

MARKER = "builder.toml"
DOCKERFILE = "Dockerfile"
TEMPLATES = "templates"
"""The folder of a project's own templates, which win over the factory's."""
IMAGES = "images"
"""The folder with a folder for each target."""
BUILD = "build"
"""The folder that builds write to; it may be deleted."""
PACKAGES: Final = f"{BUILD}/packages"
"""The folder with the locks of the images that hold a `--program`, each in a folder of its own."""
INSTALLED: Final = Path(__file__).parents[2]
"""The folder that the packages `builder` and `trainer` lie in: a checkout, or site-packages."""


def factory() -> Path:
    """Return the factory's own project, whose images/ holds the locks that it was tested with.

    A wheel carries it below builder/ (setup.py).
    """
    shipped = INSTALLED / "builder" / "factory"
    return shipped if shipped.is_dir() else INSTALLED


def find_root(start: Path | None = None) -> Path:
    """Return the nearest folder at or above `start` (else the working directory) with builder.toml.

    Raises InputError where there is none.
    """
    begin = (start or Path.cwd()).absolute()
    for folder in (begin, *begin.parents):
        if (folder / MARKER).is_file():
            return folder
    raise InputError(
        f"no {MARKER} in {begin} or in any folder above it",
        f"run this inside a project, or create an empty {MARKER} where the project begins",
    )


def tag_of(root: Path, target: str) -> str:
    """Return the tag of a target's image on the engine, which several projects share: it has the
    name of the project's folder."""
    folder = re.sub(r"[^a-z0-9_.]+", "-", root.absolute().name.lower()).strip("-._")[:40]
    return f"{folder}-{target}" if folder else target


def templates_of(root: Path) -> Path | None:
    folder = root / TEMPLATES
    return folder if folder.is_dir() else None


def is_module(path: Path) -> bool:
    """Return whether `python -m` can start this path: path.py, or a folder with __main__.py."""
    return path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()
