"""builder/cli/options.py: a group of options becomes flags of a command."""

from dataclasses import dataclass

import typer
from typer.testing import CliRunner

from builder.cli import options


@dataclass(frozen=True)
class Place:
    project: str | None = options.option("The project.")
    zone: str = options.option("The zone.", "--in", default="a")


def test_a_command_gets_its_groups_as_objects_and_its_own_options_as_they_are() -> None:
    app, calls = typer.Typer(), []

    @app.command()
    @options.expanded
    def submit(place: Place, name: str, dry: bool = options.flag("--dry", "Do nothing.")) -> None:
        """Submit."""
        calls.append((name, place, dry))

    result = CliRunner().invoke(app, ["cats", "--project", "p", "--in", "b", "--dry"])
    assert result.exit_code == 0, result.output
    assert calls == [("cats", Place("p", "b"), True)]
    assert "--in" in CliRunner().invoke(app, ["--help"]).output
