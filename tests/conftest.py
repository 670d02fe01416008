"""What every test may use: the repository itself, and small projects made on the spot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def root() -> Path:
    """The repository: a real project."""
    return ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project: builder.toml, and a trainer that does nothing."""
    (tmp_path / "builder.toml").touch()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "task.py").touch()
    return tmp_path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project with this repository's targets and templates and a small trainer, not checked."""
    root = tmp_path / "project"
    for name in ("images", "templates"):
        shutil.copytree(ROOT / name, root / name)
    (root / "trainer").mkdir()
    for name, text in {"__init__.py": "", "task.py": "print('trained')\n"}.items():
        (root / "trainer" / name).write_text(text)
    shutil.copy(ROOT / "trainer" / "requirements.txt", root / "trainer")
    (root / "builder.toml").write_text("")
    return root


@pytest.fixture
def write_target(project: Path) -> Callable[..., Path]:
    """Writes images/<name>/image.yaml of `project`."""

    def write(text: str, name: str = "v100") -> Path:
        path = project / "images" / name / "image.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
