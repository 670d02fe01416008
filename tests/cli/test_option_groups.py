"""builder/cli/option_groups.py: a group of options becomes flags of a command."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from builder.cli import option_groups


@dataclass(frozen=True)
class Place:
    project: Annotated[str | None, typer.Option(help="The project.")] = None
    zone: Annotated[str, typer.Option("--in", help="The zone.")] = "a"


def test_a_command_gets_its_groups_as_objects_and_its_own_options_as_they_are() -> None:
    app, calls = typer.Typer(), []

    @app.command()
    @option_groups.expanded
    def submit(name: str, place: Place, dry: bool = False) -> None:
        """Submit."""
        calls.append((name, place, dry))

    result = CliRunner().invoke(app, ["cats", "--project", "p", "--in", "b", "--dry"])
    assert result.exit_code == 0, result.output
    assert calls == [("cats", Place("p", "b"), True)]
    assert "--in" in CliRunner().invoke(app, ["--help"]).output
