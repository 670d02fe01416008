"""The commit of a folder: what a trigger takes from git, and whether the tree is that commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def from_git(folder: Path) -> dict[str, str]:
    """The substitutions that a trigger takes from git. {} for a folder without a repository."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {}
    branch = git("symbolic-ref", "--short", "-q", "HEAD")
    tag = git("describe", "--tags", "--exact-match", "HEAD")
    remote = re.sub(r"\.git/?$", "", git("remote", "get-url", "origin")).rstrip("/")
    path = re.split(r"[:/]", remote.partition("://")[2] or remote)
    top = Path(git("rev-parse", "--show-toplevel") or folder)
    name = path[-1] if remote else top.name
    return {
        "COMMIT_SHA": commit,
        "REVISION_ID": commit,
        "SHORT_SHA": commit[:7],
        "BRANCH_NAME": branch,
        "TAG_NAME": tag,
        "REF_NAME": branch or tag,
        "REPO_NAME": name,
        "REPO_FULL_NAME": "/".join(path[-2:]) if len(path) > 1 else name,
    }


def is_clean(root: Path) -> bool:
    """Whether the tree is that of its commit. Only then may a build have the commit's name."""
    command = ["git", "status", "--porcelain", "--", "."]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stdout
