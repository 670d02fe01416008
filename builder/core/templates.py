"""The folders of the templates for Dockerfiles: a project's own, which win, and the factory's."""

from __future__ import annotations

from pathlib import Path

from builder.core.files import hash_of

DOCKERFILE = "Dockerfile"
EPOCH = 315532800
"""Date of every file in an image, in seconds since 1970: 1980-01-01, the earliest of a zip file."""

TEMPLATES = "templates"
PACKAGED = Path(__file__).parents[2] / TEMPLATES


def folder_of(root: Path) -> Path | None:
    """The folder of the project's own templates, None where it has none."""
    folder = root / TEMPLATES
    return folder if folder.is_dir() else None


def checksum(root: Path) -> str:
    """Checksum of every template that a project's Dockerfiles are rendered from."""
    found: dict[str, Path] = {}
    for folder in (PACKAGED, folder_of(root)):
        if folder:
            found |= {path.name: path for path in folder.glob("*.j2")}
    texts = (f"{name}\n{path.read_text(encoding='utf-8')}" for name, path in sorted(found.items()))
    return "sha256:" + hash_of(*texts)
