"""`builder job why`: parse, call one function, print. No logic."""

from dataclasses import asdict
from typing import Annotated

import typer

from builder.cli.common import Json, out, root, say
from builder.cli.job_place import AnyPlace, Context, Namespace, Project, Region


def why(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="A job that runs or ran, here or elsewhere."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="The log of any program; - reads stdin."),
    ] = None,
    on: AnyPlace = None,
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
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
    from builder.jobs.places import choose
    from builder.jobs.room import record
    from builder.jobs.why import jobs, logs, told
    from builder.jobs.why.diagnose import diagnose

    if (job is None) == (log is None):
        raise InputError("name a job or a log", "builder job why JOB, or --log FILE")
    search = None
    if log is not None:
        run = logs.of_log(log)
    else:
        assert job is not None
        search = record.read(root() / choose.SENT, job)
        if search is not None and not search.job:  # no way had room, so there is no job
            for line in record.lines(search):
                say(line)
            if as_json:
                out({"job": job, "search": asdict(search)})
            return
        asked = choose.Asked(on, project, region, context, namespace)
        place, status, _ = choose.watched(root(), job, asked, 0.0)
        run = jobs.of_job(place, status)
    found = diagnose(run)
    for line in told.lines(run.name, found):
        say(line)
    for line in record.lines(search) if search else ():
        say(line)
    if as_json:
        more = {"search": asdict(search)} if search else {}
        out({**told.values(run.name, found), **more})


def register(app: typer.Typer) -> None:
    """Put the command into `builder job`."""
    app.command()(why)
