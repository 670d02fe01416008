"""git, the program of the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def ask(folder: Path, *words: str, timeout: float = 60) -> str | None:
    """Return what git prints in a folder; None where it refuses, takes longer or is missing."""
    command, english = ["git", *words], {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=english, capture_output=True, timeout=timeout, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
