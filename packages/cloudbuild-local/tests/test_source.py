"""What belongs to a build's source, and the values that a trigger takes from git."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from cloudbuild_local.errors import InputError
from cloudbuild_local.runner import source


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def files(folder: Path) -> list[str]:
    return [name for name in source.entries(folder) if not name.endswith("/")]


def test_without_git_and_rules_everything_belongs_to_it(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b/c", ".hidden")
    (tmp_path / "empty").mkdir()
    assert source.entries(tmp_path) == [".hidden", "a", "b/", "b/c", "empty/"]


def test_with_git_and_without_rules_what_gitignore_names_is_left_out(tmp_path: Path) -> None:
    tree(tmp_path, "a", ".git/HEAD", "build/x", "deep/build/y")
    (tmp_path / ".gitignore").write_text("build/\n# #!include:nothing here\n")
    assert files(tmp_path) == ["a"]
    assert not (tmp_path / ".gcloudignore").exists(), "gcloud would have written one"


def test_an_include_stands_where_it_is_written(tmp_path: Path) -> None:
    tree(tmp_path, "a.log", "keep.log", ".git/HEAD", "b")
    (tmp_path / ".gitignore").write_text("*.log\n#!include:.gcloudignore\n")
    (tmp_path / ".gcloudignore").write_text(".*\n#!include:.gitignore\n!keep.log\n")
    assert files(tmp_path) == ["b", "keep.log"]
    (tmp_path / ".gcloudignore").write_text("!keep.log\n#!include:.gitignore\n")
    assert "keep.log" not in files(tmp_path), "what comes later wins"
    (tmp_path / ".gcloudignore").write_text("# ours\n#!include:../x\n")
    with pytest.raises(InputError, match=r"^.gcloudignore:2: #!include:../x: no such file"):
        files(tmp_path)


def test_an_ignored_folder_stays_out_with_everything_in_it(tmp_path: Path) -> None:
    tree(tmp_path, "data/keep", "a")
    (tmp_path / ".gcloudignore").write_text("/data\n!/data/keep\n.gcloudignore\n")
    assert files(tmp_path) == ["a"]


def test_links_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, "real/file")
    (tmp_path / "link").symlink_to("real")
    assert files(tmp_path) == ["link/file", "real/file"]
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(InputError, match="leads back to a folder"):
        files(tmp_path)


def test_the_archive(tmp_path: Path) -> None:
    tree(tmp_path, "a", "run")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "empty").mkdir()
    packed = io.BytesIO()
    assert source.archive(tmp_path, packed) == 2
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        assert {member.name: (member.isdir(), member.mode & 0o111) for member in tar} == {
            "a": (False, 0), "empty": (True, 0o111), "run": (False, 0o111),
        }  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "broken link", "nothing"])
def test_what_cannot_be_packed_is_named(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "pipe")
    elif kind == "broken link":
        (tmp_path / "broken link").symlink_to("gone")
    with pytest.raises(InputError, match=kind):
        source.archive(tmp_path, io.BytesIO())


def test_values_of_a_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path, *words]
        subprocess.run(command, check=True, capture_output=True)

    assert source.commit(tmp_path) == {}
    git("init", "--initial-branch=feature/x")
    git("commit", "--allow-empty", "-m", "one")
    assert source.commit(tmp_path)["REPO_NAME"] == tmp_path.name
    git("tag", "v1")
    git("remote", "add", "origin", "git@example.com:team/project.git")
    values = source.commit(tmp_path)
    assert values["SHORT_SHA"] == values["COMMIT_SHA"][:7]
    assert (values["BRANCH_NAME"], values["TAG_NAME"]) == ("feature/x", "v1")
    assert (values["REPO_NAME"], values["REPO_FULL_NAME"]) == ("project", "team/project")
