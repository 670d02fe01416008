"""docs/first-hour.md: each command is run in an empty repository, and prints what stands there."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.pages import commands, run
from tests.registry.server import RegistryServer

PAGE = ROOT / "docs/first-hour.md"
ENGINE = r"builder (image|job local)|ls build/|.* --pushed$"
"""What takes an engine."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository, with the program of the page once its folder is there."""
    root = tmp_path / "flowers-repository"
    subprocess.run(["git", "init", "--quiet", root], check=True)
    match = re.search(r"^And a program, .*:\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)
    assert match
    run(root, tuple(commands(PAGE))[:1])
    program = textwrap.dedent(match[1]).strip()
    assert len(program.splitlines()) <= 60
    (root / "flowers/train.py").write_text(program + "\n")
    return root


def test_every_command_that_needs_no_engine(repository: Path) -> None:
    chosen = tuple(one for one in commands(PAGE) if not re.match(ENGINE, one.text))
    assert len(chosen) >= 9
    run(repository, chosen[1:])


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
def test_every_command(repository: Path, registry_server: RegistryServer) -> None:
    run(repository, tuple(commands(PAGE, HOST=registry_server.host))[1:])
