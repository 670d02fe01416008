"""Every `builder ...` that a document, a comment or the Makefile shows is one that the command line
takes: its name, its options, their values."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from builder.cli.group import app
from cloudbuild_local import cli as cloudbuild_local
from tests import ROOT

FILES = sorted(
    path
    for glob in (
        *("*.md", "docs/**/*.md", "packages/*/README.md", "jobs/*.yaml", "images/*/image.yaml"),
        *("examples/**/*.yaml", "examples/**/*.md", "builder.toml", "cloudbuild.yaml", "Makefile"),
    )
    for path in ROOT.glob(glob)
    if path.name != "CHANGELOG.md"  # what was
)
CALL = r"(?:\.venv/bin/)?builder (?=[a-z-])"
IN_BACKTICKS = re.compile(rf"`{CALL}([^`]+)`")
ON_A_LINE = re.compile(rf"(?:\s{{4,}}|#\s+|\t@?)(?:\$ )?{CALL}(.+)")
ENDS = re.compile(r"  |\s(?:#|\||>|&&|\()")
"""What ends a command on a line of code: its explanation, or the shell's."""
IF = re.compile(r"\$\(if \$\(\w+\),((?:[^()]|\$\(\w+\))*)\)")
"""make's $(if $(X),THEN)."""
COMMANDS: Any = typer.main.get_command(app)
HANDED_ON = {"validate": cloudbuild_local.validate, "run-local": cloudbuild_local.run}


def shown(text: str) -> Iterator[str]:
    """Yield the calls that a text shows, without the word builder."""
    text = IF.sub(r"\1", text.replace("\\\n", " ")).replace("$(BUILDER)", "builder")
    for line in text.splitlines():
        yield from IN_BACKTICKS.findall(line)
        if call := ON_A_LINE.match(line):
            yield ENDS.split(call[1])[0]


def forms(call: str) -> list[list[str]]:
    """Return the words of each form of a call: `[--push]` is there, `a|b` and `a, b` are either."""
    plain = re.sub(r"\.\.\.|[][]", "", re.sub(r"(?<=\w), (?=\w)", "|", call))
    words = [word.split("|") for word in shlex.split(plain)]
    return [list(form) for form in itertools.product(*words)]


def refusal(words: list[str]) -> str:
    """Return why the command line would not take these words, "" if it does. A name without its
    arguments stands for the command."""
    try:
        _parse(words)
    except typer.Exit:  # --help
        return ""
    except Exception as error:  # click's, or the one that typer carries
        if type(error).__name__ == "MissingParameter":
            return ""
        return str(error.format_message())  # type: ignore[attr-defined]
    return ""


def _parse(words: list[str]) -> None:
    command, context, name = COMMANDS, None, "builder"
    while isinstance(command, TyperGroup) and words:
        context = command.make_context(name, list(words), parent=context)
        if words := [*context._protected_args, *context.args]:
            name, command, words = command.resolve_command(context, words)
    if words:
        context = command.make_context(name, list(words), parent=context)
        if name in HANDED_ON:
            HANDED_ON[name].make_context(name, list(context.args))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_is_shown_is_one(path: Path) -> None:
    calls = [*shown(path.read_text(encoding="utf-8"))]
    refused = {call: [*filter(None, map(refusal, forms(call)))] for call in calls}
    assert {call: reasons for call, reasons in refused.items() if reasons} == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("see `builder job render digits --local`", "No such option: --local"),
        ("# builder rendr --check", "No such command 'rendr'"),
        ("    builder job status|sts JOB", "No such command 'sts'"),
        ("    builder cloud validate --stric cloudbuild.yaml", "No such option '--stric'"),
        ("    builder build cpu --engine", "requires an argument"),
        ("\t@$(BUILDER) push $(if $(X),--registri $(X))", "No such option: --registri"),
    ],
)
def test_one_that_is_none_is_seen(text: str, reason: str) -> None:
    (call,) = shown(text)
    assert reason in " ".join(map(refusal, forms(call)))


def test_make_refuses_a_variable_that_it_does_not_know() -> None:
    """`make image gpu=h100` would build the default target."""
    done = subprocess.run(
        ["make", "-n", "image", "gpu=h100"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "gpu is none of make's variables here; known: GPU " in done.stderr
