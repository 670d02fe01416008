"""A check that held is made again when a file has changed that can decide it, and only then."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core import unchanged

Ask = Callable[..., bool]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder of installed packages and that of a factory's source."""
    for name in ("project/images", "project/.git", "site-packages", "source"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/images/image.yaml").write_text("accelerator: CPU")
    (tmp_path / "source/rule.py").write_text("KEEP = 1")
    (tmp_path / "project/program").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/requirements.txt").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), str(tmp_path / "source")])
    return tmp_path / "project"


@pytest.fixture
def is_made(root: Path) -> Ask:
    """Asks for a check that ends with a code; tells whether it was made."""

    def ask(code: int = 0) -> bool:
        made: list[int] = []

        def check() -> None:
            made.append(code)
            raise SystemExit(code)

        try:
            unchanged.once("render", root, check)
        except SystemExit as end:
            assert end.code == code
        return bool(made)

    return ask


def test_a_check_that_held_is_not_made_again(is_made: Ask) -> None:
    assert [is_made() for _ in range(3)] == [True, False, False]


def test_a_check_that_failed_is_made_again(is_made: Ask) -> None:
    assert [is_made(4) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "images/image.yaml").write_text("accelerator: GPU"),
        lambda root: (root / "images/image.yaml").unlink(),
        lambda root: (root / "images/image.yaml").rename(root / "image.yaml"),
        lambda root: (root / "templates").symlink_to("nowhere"),
        lambda root: (root / "program/requirements.txt").write_text("pandas"),
        lambda root: (root.parent / "source/rule.py").write_text("KEEP = 2"),
        lambda root: (root.parent / "site-packages/jinja2").mkdir(),
    ],
    ids=["changed", "deleted", "moved", "added", "behind a link", "the factory's", "installed"],
)
def test_a_change_of_a_file_makes_it_again(
    root: Path, is_made: Ask, change: Callable[[Path], object]
) -> None:
    is_made()
    change(root)
    assert [is_made(), is_made()] == [True, False]


def test_a_change_that_keeps_size_and_date_makes_it_again(root: Path, is_made: Ask) -> None:
    file = root / "images/image.yaml"
    date = file.stat().st_mtime_ns
    is_made()
    file.write_text("accelerator: TPU")
    os.utime(file, ns=(date, date))
    assert is_made()


def test_hidden_files_builds_and_bytecode_decide_nothing(root: Path, is_made: Ask) -> None:
    is_made()
    for name in (".git/index", "build/image.json", "images/__pycache__/a.pyc"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("new")
    assert not is_made()


def test_a_project_of_too_many_files_is_checked_each_time(
    is_made: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "_MOST", 2)
    assert [is_made(), is_made()] == [True, True]


def test_where_nothing_can_be_written_it_is_made_each_time(root: Path, is_made: Ask) -> None:
    (root / "build").write_text("a file in the place of the folder")
    assert [is_made(), is_made()] == [True, True]
