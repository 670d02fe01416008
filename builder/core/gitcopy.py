"""A commit of the project's repository in a folder of its own, and a branch made from what changes.

The person's files stay as they are. The branch appears last, so a failure leaves nothing behind.

Source: git-worktree(1).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core import git
from builder.core.errors import InputError


@dataclass(frozen=True)
class GitCopy:
    """The folder. root: of the project in it. commit: that it was made from."""

    folder: Path
    root: Path
    commit: str

    def save(self, branch: str, message: str) -> str:
        """Make a branch of all that changed; the hash of its commit. Raises InputError."""
        _git(self.folder, "add", "--all", "--", ".")
        _git(self.folder, "commit", "--quiet", "--no-verify", "--message", message)
        _git(self.folder, "branch", "--", branch, "HEAD")
        return _git(self.folder, "rev-parse", "HEAD").strip()


def check(root: Path, branch: str) -> None:
    """Raise InputError where the tree is not that of a commit, or a branch cannot be made."""
    if _ask(root, "rev-parse", "--show-toplevel") is None:
        raise InputError(
            f"{root}: no git repository, so no branch can be made", "git init, and commit its files"
        )
    if _ask(root, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        raise InputError(f"{root}: no commit yet", "commit the files first")
    if changed := _git(root, "status", "--porcelain", "--", ".").splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"{changed[0][3:]}{more}: differs from the last commit", "commit or stash it first"
        )
    if _ask(root, "check-ref-format", "--branch", branch) is None:
        raise InputError(f"--branch {branch!r}: no name of a branch", "write letters, digits, - /")
    if _ask(root, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}") is not None:
        raise InputError(
            f"the branch {branch} is there already",
            f"git branch -D {branch}, or name another: --branch NAME",
        )


@contextlib.contextmanager
def of_head(root: Path) -> Iterator[GitCopy]:
    """A copy of the last commit, in a temporary folder that is removed afterwards."""
    commit = _git(root, "rev-parse", "HEAD").strip()
    inside = _git(root, "rev-parse", "--show-prefix").strip()
    with tempfile.TemporaryDirectory(prefix="builder-propose-") as scratch:
        folder = Path(scratch, "project")
        _git(root, "worktree", "add", "--quiet", "--detach", str(folder), commit)
        try:
            yield GitCopy(folder, folder / inside, commit)
        finally:
            _git(root, "worktree", "remove", "--force", str(folder))


def _ask(folder: Path, *words: str) -> str | None:
    """What git prints; None where it refuses."""
    return git.run(folder, *words, of_hook=False).text


def _git(folder: Path, *words: str) -> str:
    answer = git.run(folder, *words, of_hook=False)
    if answer.text is None:
        raise InputError(f"git {words[0]}: {answer.reason}", answer.fix("see git status"))
    return answer.text
