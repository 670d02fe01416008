"""What belongs to a build's source, and the archive of it."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cloudbuild import source
from builder.cloudbuild.clients import Clients
from builder.core.errors import InputError
from tests.emulators.cloud_build import PROJECT

BUCKET = f"{PROJECT}_cloudbuild"
Connect = Callable[..., Clients]


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_without_git_and_rules_everything_belongs_to_it(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b/c", ".hidden")
    assert source.files(tmp_path) == (".hidden", "a", "b/c")


def test_with_git_and_without_rules_what_gitignore_names_is_left_out(tmp_path: Path) -> None:
    tree(tmp_path, "a", ".git/HEAD", "build/x", "deep/build/y")
    (tmp_path / ".gitignore").write_text("build/\n# #!include:nothing here\n")
    assert source.files(tmp_path) == ("a",)
    assert not (tmp_path / ".gcloudignore").exists(), "gcloud would have written one"


def test_an_include_stands_where_it_is_written(tmp_path: Path) -> None:
    tree(tmp_path, "a.log", "keep.log", ".git/HEAD", "b")
    (tmp_path / ".gitignore").write_text("*.log\n#!include:.gcloudignore\n")
    (tmp_path / ".gcloudignore").write_text(".*\n#!include:.gitignore\n!keep.log\n")
    assert source.files(tmp_path) == ("b", "keep.log")
    (tmp_path / ".gcloudignore").write_text("!keep.log\n#!include:.gitignore\n")
    assert "keep.log" not in source.files(tmp_path), "what comes later wins"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#!include:../x", "only a file of the same folder"),
        ("#!include:missing", "there is no such file"),
    ],
)
def test_an_include_that_cannot_be_names_its_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / ".gcloudignore").write_text(f"# ours\n{line}\n")
    with pytest.raises(InputError, match=said) as raised:
        source.files(tmp_path)
    assert raised.value.message.startswith(f".gcloudignore:2: {line}")


def test_a_folder_that_is_left_out_stays_out(tmp_path: Path) -> None:
    tree(tmp_path, "data/keep", "a")
    (tmp_path / ".gcloudignore").write_text("/data\n!/data/keep\n.gcloudignore\n")
    assert source.files(tmp_path) == ("a",)


def test_links_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, "real/file")
    (tmp_path / "link").symlink_to("real")
    assert source.files(tmp_path) == ("link/file", "real/file")
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(InputError, match="leads back to a folder"):
        source.files(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("key.txt", "holds a private key"),
        ("out", "is a link to a file outside"),
        ("link", "is a link to secret/it, which is left out"),
        ("gone", "is a link to a file that is not there"),
    ],
)
def test_what_must_not_leave_is_refused_before_anything_is_packed(
    tmp_path: Path, name: str, said: str
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
    with pytest.raises(InputError, match=f"^{name}: {said}"):
        source.archive(folder, packed)
    assert packed.getvalue() == b""


WORDS = """a /a *.log build/ a/** **/b !a/b [ab] b/* !b/ [!a] a/**/c [a-b] x*y */c \\a [ c\\
/build/* a/b #a \\#a ? **/build/** !*.log"""
PATTERNS = [*WORDS.split(), "x\\ y", "c "]


def test_patterns_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    """Random trees and patterns; git itself says what is ignored."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    names = ["a", "b", "a.log", "build", "x y", "c"]
    seen = set()
    for seed in range(60):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        paths = {"/".join(chance.choices(names, k=chance.randint(1, 4))) for _ in range(20)}
        for path in paths:
            with_file = folder / path / "file"
            with_file.parent.mkdir(parents=True, exist_ok=True)
            with_file.touch()
        rules = "\n".join(chance.choices(PATTERNS, k=chance.randint(1, 4)))
        (folder / ".gcloudignore").write_text(f"{rules}\n.gitignore\n")
        (folder / ".gitignore").write_text(rules)
        listed = subprocess.run(
            ["git", "-c", "core.quotePath=false", "ls-files", "--others", "--exclude-standard"],
            cwd=folder, capture_output=True, text=True, check=True,
        ).stdout.split("\n")  # fmt: skip
        wanted = sorted(name for name in listed if name and name != ".gitignore")
        assert sorted(source.files(folder)) == wanted, rules
        seen.add(len(wanted))
    assert len(seen) > 5


def packed(folder: Path) -> bytes:
    file = io.BytesIO()
    source.archive(folder, file)
    return file.getvalue()


def test_the_same_tree_is_the_same_archive(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "1", "b/c", "a"), tree(tmp_path / "2", "a", "b/c")
    (one / "run").write_text("#!/bin/sh\n")
    (one / "run").chmod(0o755)
    (two / "run").write_text("#!/bin/sh\n")
    (two / "run").chmod(0o700)
    os.utime(two / "a", (1, 1))
    assert packed(one) == packed(two)
    with tarfile.open(fileobj=io.BytesIO(packed(one))) as tar:
        members = {member.name: member for member in tar}
    assert list(members) == ["a", "b/c", "run"]
    assert (members["a"].uid, members["a"].uname, members["a"].mtime) == (0, "", 0)
    assert (members["a"].mode, members["run"].mode) == (0o644, 0o755)
    (two / "a").write_text("other")
    assert packed(one) != packed(two)


def test_nothing_left_of_a_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".gcloudignore").write_text("*\n")
    with pytest.raises(InputError, match="nothing is left of the source"):
        packed(tmp_path)
