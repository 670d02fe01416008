"""The committed Dockerfiles of the targets: written, and compared with what would be rendered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from builder.core import files
from builder.core.templates import DOCKERFILE
from builder.render.dockerfiles import Rendered, RenderedTarget, load_all
from builder.spec import catalogue


@dataclass(frozen=True)
class Difference:
    """A committed file that is not what would be rendered; `diff` is a unified diff."""

    file: str
    diff: str


def check(root: Path, made: Iterable[RenderedTarget] | None = None) -> tuple[Difference, ...]:
    """Every committed Dockerfile that differs from the rendered one.

    made: the targets to look at; all of the project where none are given.
    """
    return tuple(
        difference
        for one in (load_all(root) if made is None else made)
        for difference in differences(root, one.spec.name, one.rendered)
    )


def differences(root: Path, target: str, rendered: Rendered) -> tuple[Difference, ...]:
    """The committed Dockerfile of a target, if it differs from the rendered one."""
    path = _path(root, target)
    committed, name = text_of(path), catalogue.shown(path)
    if committed == rendered.dockerfile:
        return ()
    return (Difference(name, unified(committed, rendered.dockerfile, name)),)


def write(root: Path, targets: Iterable[str] | None = None) -> tuple[Path, ...]:
    """Render and write the Dockerfiles. Returns the paths of those that changed."""
    changed = [
        (path, one.rendered.dockerfile)
        for one in load_all(root, targets)
        if text_of(path := _path(root, one.spec.name)) != one.rendered.dockerfile
    ]
    for path, text in changed:
        files.write(path, text)
    return tuple(path for path, _ in changed)


def _path(root: Path, target: str) -> Path:
    return root / catalogue.IMAGES / target / DOCKERFILE


def text_of(path: Path) -> str | None:
    """The text of a committed file, None where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def unified(old: str | None, new: str | None, name: str) -> str:
    """The difference between a committed file and what would be rendered, as a unified diff."""
    before, after = ((text or "").splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"{name} (committed)", f"{name} (rendered)")
    return "".join(lines)
