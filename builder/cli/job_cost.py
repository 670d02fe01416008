"""`builder job cost`: what a job costs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import Json, out, root, say, settings
from builder.cli.job_sent import backend_of
from builder.cli.option_groups import Where, expanded
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.jobs.cost import Work

Job = Annotated[
    str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml; with --after a job that was sent.")
]
Lasting = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long it will run, such as 22m.")
]
After = Annotated[bool, typer.Option("--after", help="What a job that was sent has used.")]
OwnPrices = Annotated[
    Path | None, typer.Option("--prices", help="Rows that override the table and prices.yaml.")
]


@expanded
def cost(
    job: Job,
    backends: Where,
    lasting: Lasting = None,
    after: After = False,
    prices: OwnPrices = None,
    as_json: Json = False,
) -> None:
    """Show what a job costs, before it runs or after, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    builder job cost cats-and-dogs --after
    """
    from builder.jobs import cost as costs
    from builder.jobs.description import length
    from builder.jobs.prices import load

    table, seconds = load(root(), prices), length("--for", lasting)
    if after:
        work = costs.after(backend_of(backends, job).find(job))
    elif seconds is None:
        raise InputError(f"how long {job} runs is not known", "give --for 22m, or --after")
    else:
        work = _before(job, backends, seconds)
    bill = costs.bill(work, table)
    for line in costs.as_text(bill):
        say(line)
    if as_json:
        out(costs.as_json(bill))


def _before(job: str, where: Where, seconds: float) -> "Work":
    """Return the work of a job that is not sent yet."""
    from builder.jobs import cost as costs
    from builder.jobs import description
    from builder.jobs.backends import choose
    from builder.jobs.prepare import SendOptions, prepare

    described = description.load(root(), job)
    backend = choose.remote(root(), described, asdict(where))
    ready = prepare(root(), described, settings(), backend, SendOptions())
    return costs.before(ready, seconds)
