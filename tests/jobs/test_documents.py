"""The documents show what the commands print."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from builder.cli.group import app
from tests import ROOT

SHOWN = re.compile(r"^    \$ builder (job (?:cost|why --log) .*)\n((?:    .+\n)+)", re.MULTILINE)
"""A command that needs nothing but this repository, and the lines below it."""
EXAMPLES = [
    pytest.param(command, re.sub(r"^    ", "", lines, flags=re.MULTILINE), id=command)
    for path in sorted((ROOT / "docs").glob("*.md"))
    if path.name != "from-the-post.md"  # its commands need each other: tests/pipeline/post.py
    for command, lines in SHOWN.findall(path.read_text(encoding="utf-8"))
]
assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(("command", "lines"), EXAMPLES)
def test_a_document_shows_what_the_command_prints(
    command: str, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    assert done.stderr == lines
