"""The folders of the templates for Dockerfiles: a project's own, which win, and the factory's."""

from __future__ import annotations

from pathlib import Path

DOCKERFILE = "Dockerfile"
EPOCH = 315532800
"""Date of every file in an image, in seconds since 1970: 1980-01-01, the earliest of a zip file."""

TEMPLATES = "templates"
PACKAGED = Path(__file__).parents[1] / "image" / TEMPLATES


def folder_of(root: Path) -> Path | None:
    """Return the folder of the project's own templates, None where it has none."""
    folder = root / TEMPLATES
    return folder if folder.is_dir() else None
