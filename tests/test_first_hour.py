"""docs/first-hour.md: each command is run in an empty repository, and prints what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.registry.server import RegistryServer

PAGE = Path(__file__).parents[1] / "docs/first-hour.md"


@dataclass(frozen=True)
class Command:
    """A command of the page, with the lines of its input, and what it prints."""

    text: str
    printed: tuple[str, ...]

    @property
    def engine(self) -> bool:
        """Whether it takes an engine."""
        return bool(re.match(r"builder (image|job local)|ls build/|.* --pushed$", self.text))


def commands(host: str = "HOST") -> Iterator[Command]:
    """Yield the commands of the page in their order. host: of the registry."""
    page = PAGE.read_text().replace("HOST", host)
    for block in re.findall(r"^    \$ (?:.+\n|\n(?=    ))+", page, re.M):
        for text in re.split(r"^\$ ", textwrap.dedent(block), flags=re.M)[1:]:
            typed, *printed = re.sub(r"^> ?", "\0", text, flags=re.M).splitlines()
            while printed and printed[0].startswith("\0"):
                typed += "\n" + printed.pop(0).removeprefix("\0")
            yield Command(typed, tuple(printed))


def compare(command: Command, output: str) -> None:
    """Ask for the lines of the page, in their order; `...` stands for anything."""
    lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in command.printed]
    pattern = "".join("(.*\n)*?" if line == ".*" else f"{line}\n" for line in lines)
    assert re.fullmatch(pattern, output), f"{command.text} printed:\n{output}"


def run(repository: Path, chosen: tuple[Command, ...]) -> None:
    """Run commands in a shell, where `builder` is that of this tree."""
    shown = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in chosen:
        done = subprocess.run(
            ["/bin/bash", "-c", command.text],
            cwd=repository,
            env=shown | {"PYTHONPATH": str(PAGE.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        compare(command, done.stdout)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository, with the program of the page once its folder is there."""
    root = tmp_path / "flowers-repository"
    subprocess.run(["git", "init", "--quiet", root], check=True)
    match = re.search(r"^And a program, .*:\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)
    assert match
    run(root, tuple(commands())[:1])
    program = textwrap.dedent(match[1]).strip()
    assert len(program.splitlines()) <= 60
    (root / "flowers/train.py").write_text(program + "\n")
    return root


def test_every_command_that_needs_no_engine(repository: Path) -> None:
    chosen = tuple(command for command in commands() if not command.engine)
    assert len(chosen) >= 9
    run(repository, chosen[1:])


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
def test_every_command(repository: Path, registry_server: RegistryServer) -> None:
    run(repository, tuple(commands(registry_server.host))[1:])
