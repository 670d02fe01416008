"""A check that held is made again when a file has changed that can decide it, and only then."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.core import unchanged

Ask = Callable[..., bool]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project, beside the folder of installed packages and that of a factory's source."""
    for name in ("project/images", "project/docs", "project/.git", "site-packages", "source"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/images/image.yaml").write_text("accelerator: CPU")
    (tmp_path / "project/docs/page.md").write_text("words")
    (tmp_path / "source/ruling.py").write_text("KEEP = 1")
    (tmp_path / "source/other.py").write_text("KEEP = 1")
    (tmp_path / "project/other").symlink_to("docs")  # so that the same names lie behind both
    (tmp_path / "project/link").symlink_to("docs")
    (tmp_path / "project/program").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/requirements.txt").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), str(tmp_path / "source")])
    yield tmp_path / "project"
    sys.modules.pop("ruling", None)


@pytest.fixture
def is_made(root: Path) -> Ask:
    """Asks for a check that reads files and a module; tells whether it was made."""

    def ask(error: Exception | None = None) -> bool:
        made: list[int] = []

        def check() -> None:
            made.append(1)
            sys.modules.pop("ruling", None)
            importlib.invalidate_caches()
            importlib.import_module("ruling")
            for name in ("images/image.yaml", "program/requirements.txt", "missing.toml"):
                if (root / name).is_file():
                    (root / name).read_text()
            if error:
                raise error

        try:
            unchanged.once("render", root, check)
        except ValueError as raised:
            assert raised is error
        return bool(made)

    return ask


def test_a_check_that_held_is_not_made_again(is_made: Ask) -> None:
    assert [is_made() for _ in range(3)] == [True, False, False]


def test_a_check_that_failed_is_made_again(is_made: Ask) -> None:
    assert [is_made(ValueError()) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "images/image.yaml").write_text("accelerator: GPU"),
        lambda root: (root / "images/image.yaml").unlink(),
        lambda root: (root / "images/image.yaml").rename(root / "image.yaml"),
        lambda root: (root / "missing.toml").touch(),
        lambda root: (root / "templates").mkdir(),
        lambda root: (root / "program/requirements.txt").write_text("pandas"),
        lambda root: [(root / "link").unlink(), (root / "link").symlink_to("other")],
        lambda root: (root.parent / "source/ruling.py").write_text("KEEP = 20"),
        lambda root: (root.parent / "site-packages/jinja2").mkdir(),
    ],
    ids=[
        *("changed", "deleted", "moved", "added", "a folder", "behind a link", "a link"),
        *("the factory's", "installed"),
    ],
)
def test_a_change_of_a_file_makes_it_again(
    root: Path, is_made: Ask, change: Callable[[Path], object]
) -> None:
    is_made()
    change(root)
    assert [is_made(), is_made()] == [True, False]


@pytest.mark.parametrize("prefix", ["", "elsewhere"])
def test_the_source_counts_where_bytecode_was_read(
    root: Path, is_made: Ask, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    folder = root.parent / prefix if prefix else None
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", folder and str(folder))
    is_made()
    (root / "images/image.yaml").touch()
    is_made()  # the second time Python reads what it compiled
    assert [*(folder or root.parent / "source").rglob("ruling.*.pyc")]
    (root.parent / "source/ruling.py").write_text("KEEP = 20")
    assert [is_made(), is_made()] == [True, False]


@pytest.mark.parametrize("name", ["project/docs/page.md", "source/other.py"])
def test_a_file_that_it_did_not_read_decides_nothing(root: Path, is_made: Ask, name: str) -> None:
    is_made()
    (root.parent / name).write_text("other words")
    assert not is_made()


def test_a_change_while_it_is_made_counts(root: Path, is_made: Ask) -> None:
    def check() -> None:
        (root / "images/image.yaml").read_text()
        (root / "images/image.yaml").write_text("accelerator: GPU")

    unchanged.once("render", root, check)
    assert is_made()


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
