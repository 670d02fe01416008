"""git, the program of the host. Each caller says what a refusal means to it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError

_OF_A_HOOK: Final = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")
"""What git sets for a hook: these name the hook's own checkout."""


@dataclass(frozen=True)
class GitAnswer:
    """What git answered. text: its output, None where it refused. error: stderr, in English."""

    text: str | None
    error: str

    @property
    def reason(self) -> str:
        """Why git refused: its fatal line, or the first one."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("fatal: ")]
        return (fatal or lines or ["it said nothing"])[0].removeprefix("fatal: ")

    def fix(self, otherwise: str) -> str:
        """Return the `git config` command that git itself proposes, as for a folder of another
        owner; by default `otherwise`."""
        lines = (line.strip() for line in self.error.splitlines())
        return next((line for line in lines if line.startswith("git config")), otherwise)


def run(folder: Path, *words: str, timeout: float | None = None, of_hook: bool = True) -> GitAnswer:
    """Run git in a folder and return its answer.

    timeout: seconds; longer is a refusal. of_hook: inside a hook git works on the hook's checkout;
    without it, on the folder's. Raises OutsideError where git is not installed.
    """
    dropped = () if of_hook else _OF_A_HOOK
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**kept, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise OutsideError("git is not installed", "install git") from None
    except subprocess.TimeoutExpired:
        return GitAnswer(None, f"no answer within {timeout:g} s")
    return GitAnswer(None if done.returncode else done.stdout, done.stderr)


def ask(folder: Path, *words: str, timeout: float = 60) -> str | None:
    """Return what git prints within `timeout` seconds; None where it refuses or is missing."""
    try:
        return run(folder, *words, timeout=timeout).text
    except (OutsideError, OSError):
        return None
