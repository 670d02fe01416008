"""What belongs to a build's source, and the archive of it."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from builder.cloudbuild import source
from builder.core.errors import InputError


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
    (tmp_path / ".gcloudignore").write_text("/b\n!/b/keep\n.*\n*.log\n")
    (tmp_path / "b").unlink()
    assert files(tree(tmp_path, "b/keep", "c")) == ["c"], "a folder that is left out stays out"


def test_rules_that_cannot_be_and_nothing_left_of_a_source(tmp_path: Path) -> None:
    for line in ("#!include:../x", "#!include:missing"):
        (tmp_path / ".gcloudignore").write_text(f"# ours\n{line}\n")
        with pytest.raises(InputError, match="no such file in this folder") as raised:
            files(tmp_path)
        assert raised.value.message.startswith(f".gcloudignore:2: {line}")
    (tmp_path / ".gcloudignore").write_text("*\n")
    with pytest.raises(InputError, match="nothing is left of the source"):
        packed(tmp_path)


def test_links_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, "real/file")
    (tmp_path / "link").symlink_to("real")
    assert files(tmp_path) == ["link/file", "real/file"]
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(InputError, match="leads back to a folder"):
        files(tmp_path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("key.txt", "holds a private key"),
        ("out", "is a link to a file outside"),
        ("link", "is a link to secret/it, which is left out"),
        ("gone", "is a link to a file that is not there"),
    ],
)
def test_what_must_not_leave_is_refused_before_anything_is_packed(
    tmp_path: Path, name: str, what: str
) -> None:
    folder = tmp_path / "source"
    tree(folder, "a.py", "secret/it")
    (tmp_path / "elsewhere").touch()
    (folder / ".gcloudignore").write_text("/secret\n")
    if name == "key.txt":
        (folder / name).write_text("-----BEGIN PRIVATE " + "KEY-----\nMIIEowIBAAKCAQEA1234\n")
    else:
        to = {"out": "../elsewhere", "link": "secret/it", "gone": "nowhere"}[name]
        (folder / name).symlink_to(to)
    packed = io.BytesIO()
    with pytest.raises(InputError, match=f"^{name}: {what}"):
        source.archive(folder, packed)
    assert packed.getvalue() == b""


def packed(folder: Path) -> bytes:
    file = io.BytesIO()
    source.archive(folder, file)
    return file.getvalue()


def test_the_same_tree_is_the_same_archive(tmp_path: Path) -> None:
    first, second = tree(tmp_path / "1", "b/c", "a"), tree(tmp_path / "2", "a", "b/c")
    (first / "run").write_text("#!/bin/sh\n")
    (first / "run").chmod(0o755)
    (second / "run").write_text("#!/bin/sh\n")
    (second / "run").chmod(0o700)
    os.utime(second / "a", (1, 1))
    assert packed(first) == packed(second)
    with tarfile.open(fileobj=io.BytesIO(packed(first))) as tar:
        members = {member.name: member for member in tar}
    assert list(members) == ["a", "b", "b/c", "run"]
    assert (members["a"].uid, members["a"].uname, members["a"].mtime) == (0, "", 0)
    assert (members["a"].mode, members["run"].mode) == (0o644, 0o755)
    (second / "a").write_text("other")
    assert packed(first) != packed(second)


def test_this_repository_may_leave_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_add", lambda *_: None)  # 20 MB to compress
    assert source.archive(Path(__file__).parents[2], io.BytesIO()) > 500
