"""For tests: the commands that a page of docs/ shows behind a `$`, run in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.commands import environment


@dataclass(frozen=True)
class Command:
    """A command of a page, with the lines of its input, and what it prints."""

    text: str
    printed: tuple[str, ...]


def commands(page: Path, **other: str) -> Iterator[Command]:
    """Yield the commands of a page in their order. other: what stands in the place of a word."""
    text = page.read_text()
    for word, own in other.items():
        text = text.replace(word, own)
    for block in re.findall(r"^    \$ (?:.+\n|\n(?=    ))+", text, re.M):
        for shown in re.split(r"^\$ ", textwrap.dedent(block), flags=re.M)[1:]:
            typed, *printed = re.sub(r"^> ?", "\0", shown, flags=re.M).splitlines()
            while printed and printed[0].startswith("\0"):
                typed += "\n" + printed.pop(0).removeprefix("\0")
            yield Command(typed, tuple(printed))


def compare(command: Command, output: str) -> None:
    """Ask for the lines of the page, in their order; `...` stands for anything."""
    lines = [re.escape(line).replace(r"\.\.\.", ".*") for line in command.printed]
    pattern = "".join("(.*\n)*?" if line == ".*" else f"{line}\n" for line in lines)
    assert re.fullmatch(pattern, output), f"{command.text} printed:\n{output}"


def shell() -> dict[str, str]:
    """Return the environment of a shell where `builder` and `python` are those of this tree."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment(PATH=path)


def ours(repository: Path, text: str) -> str:
    """Run a command of this tree in a shell. Return all that it printed; it has to succeed."""
    done = subprocess.run(
        ["/bin/bash", "-c", text],
        cwd=repository,
        env=shell(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run(
    repository: Path, chosen: Iterable[Command], call: Callable[[Path, str], str] = ours
) -> list[str]:
    """Run commands, by default of this tree. Return what each printed."""
    printed = []
    for command in chosen:
        printed.append(call(repository, command.text))
        compare(command, printed[-1])
    return printed
