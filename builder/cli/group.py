"""The group of all commands, as typer runs it."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from builder.cli import COMMANDS, page


class Commands(TyperGroup):
    """The commands of COMMANDS, each imported when it is called."""

    def list_commands(self, _: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: object, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _imported(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; for another name, the ones that are near."""
        for name in COMMANDS if args[0] not in COMMANDS else ():
            self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_help(self, _: object, formatter: Any) -> None:
        formatter.write(page())


def _imported(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(f"builder.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=None)
    alone.callback()(lambda: None)
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name)(command)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


app = typer.Typer(
    name="builder",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from builder import __version__  # which asks the installed package

        typer.echo(f"builder {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, expose_value=False)
    ] = False,
) -> None:
    """Keep the options that stand before the command."""
    from builder.cli.common import OPTIONS

    OPTIONS.debug, OPTIONS.verbose, OPTIONS.quiet = debug, verbose, quiet
