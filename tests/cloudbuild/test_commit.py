"""What a trigger takes from git, and whether the tree is that of its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from builder.cloudbuild import commit


def test_values_of_a_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path, *words],
            check=True,
            capture_output=True,
        )

    assert commit.from_git(tmp_path) == {}
    git("init", "--initial-branch=feature/x")
    git("commit", "--allow-empty", "-m", "one")
    git("tag", "v1")
    git("remote", "add", "origin", "git@example.com:team/project.git")
    values = commit.from_git(tmp_path)
    assert values["SHORT_SHA"] == values["COMMIT_SHA"][:7]
    assert values["BRANCH_NAME"] == "feature/x"
    assert values["TAG_NAME"] == "v1"
    assert values["REPO_NAME"] == "project"
    assert values["REPO_FULL_NAME"] == "team/project"


def test_a_new_file_makes_the_tree_differ_from_its_commit(tmp_path: Path) -> None:
    assert not commit.is_clean(tmp_path), "no repository"
    subprocess.run(["git", "-C", tmp_path, "init", "--quiet"], check=True)
    assert commit.is_clean(tmp_path)
    (tmp_path / "new").touch()
    assert not commit.is_clean(tmp_path)
