"""The files of a program that its image gets, and what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.pipeline import program


def test_a_folder_that_links_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(".")
    with pytest.raises(InputError, match="leads back to a folder above it"):
        list(program.walk(tmp_path))


def test_a_link_to_nothing_does_not_vanish(tmp_path: Path) -> None:
    (tmp_path / "weights").symlink_to("gone")
    (found,) = program.walk(tmp_path)
    with pytest.raises(InputError, match=r"^weights: is a link to a file that is not there"):
        program.check(tmp_path, found)


def test_a_terabyte_of_holes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"more than 20,000 files or 2 GB \(up to data\.bin\)"):
        list(program.walk(tmp_path))


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.py").touch()
    with pytest.raises(InputError, match="more than 3 files"):
        list(program.walk(tmp_path))


def test_the_repository_does_not_come_in_by_a_link(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("url = https://me:token@host/x")
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/notes.txt").symlink_to("../.git/config")
    (found,) = program.walk(tmp_path / "trainer")
    with pytest.raises(InputError, match=r"^trainer/notes\.txt: is a link to \.git/config"):
        program.check(tmp_path, found)
