"""`builder job why`: why a job ended."""

from typing import Annotated

import typer

from builder.cli.common import Json, out, say
from builder.cli.job_sent import backend_of
from builder.cli.option_groups import Where, expanded


@expanded
def why(
    where: Where,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="A job that runs or ran, here or elsewhere."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="The log of any program; - reads stdin."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why a job ended: what happened, the line that shows it, what to do.

    \b
    builder job why cats
    builder job why --log train.log
    kubectl logs trainer-0 | builder job why --log -

    An ending that is not in the table of known endings is said to be unknown.
    """
    from builder.core.errors import InputError
    from builder.jobs.why import answer, jobs, logs
    from builder.jobs.why.diagnose import diagnose

    if (job is None) == (log is None):
        raise InputError("name a job or a log", "builder job why JOB, or --log FILE")
    if job is None:
        run = logs.of_log(log or "")
    else:
        backend = backend_of(where, job)
        run = jobs.of_job(backend, backend.find(job))
    diagnosis = diagnose(run)
    for line in answer.lines(run.name, diagnosis):
        say(line)
    if as_json:
        out(answer.values(run.name, diagnosis))


def register(app: typer.Typer) -> None:
    """Put the command into `builder job`."""
    app.command()(why)
