"""docs/first-hour.md: each command is run in an empty repository, and prints what stands there."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

from tests import ROOT
from tests.pages import commands, run

PAGE = ROOT / "docs/first-hour.md"
ENGINE = r"builder (image|job local)|ls build/|.* --pushed$"
"""What takes an engine."""


def write(repository: Path) -> None:
    """Write the program of the page into its folder, which is there."""
    match = re.search(r"^And a program, .*:\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)
    assert match
    program = textwrap.dedent(match[1]).strip()
    assert len(program.splitlines()) <= 60
    (repository / "flowers/train.py").write_text(program + "\n")


def test_every_command_that_needs_no_engine(tmp_path: Path) -> None:
    """The others are run with the wheel: tests/test_wheel.py."""
    repository = tmp_path / "flowers-repository"
    subprocess.run(["git", "init", "--quiet", repository], check=True)
    first, *chosen = (one for one in commands(PAGE) if not re.match(ENGINE, one.text))
    assert len(chosen) >= 8
    run(repository, [first])
    write(repository)
    run(repository, chosen)
