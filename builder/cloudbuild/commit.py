"""The commit of a folder: what a trigger takes from git, and whether the tree is that commit."""

from __future__ import annotations

import re
from pathlib import Path

from builder.core import git


def from_git(folder: Path) -> dict[str, str]:
    """The substitutions that a trigger takes from git. {} for a folder without a repository."""

    def ask(*words: str) -> str:
        return (git.ask(folder, *words) or "").strip()

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return {}
    branch = ask("symbolic-ref", "--short", "-q", "HEAD")
    tag = ask("describe", "--tags", "--exact-match", "HEAD")
    remote = re.sub(r"\.git/?$", "", ask("remote", "get-url", "origin")).rstrip("/")
    path = re.split(r"[:/]", remote.partition("://")[2] or remote)
    top = Path(ask("rev-parse", "--show-toplevel") or folder)
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
    return git.ask(root, "status", "--porcelain", "--", ".") == ""
