"""`builder job why`: parse, call one function, print. No logic."""

from typing import Annotated

import typer

from builder.cli.common import Json, out, say


def why(
    log: Annotated[
        str,
        typer.Option("--log", metavar="FILE", help="The log of any program; - reads stdin."),
    ],
    as_json: Json = False,
) -> None:
    """Say why a job ended: what happened, the line that shows it, what to do.

    \b
    builder job why --log train.log
    kubectl logs trainer-0 | builder job why --log -

    An ending that is not in the table of known endings is said to be unknown.
    """
    from builder.jobs.why import logs, told
    from builder.jobs.why.diagnose import diagnose

    run = logs.of_log(log)
    found = diagnose(run)
    for line in told.lines(run.name, found):
        say(line)
    if as_json:
        out(told.values(run.name, found))


def register(app: typer.Typer) -> None:
    """Put the command into `builder job`."""
    app.command()(why)
