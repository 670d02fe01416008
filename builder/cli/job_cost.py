"""`builder job cost`: what a job costs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import Json, out, root, say, settings
from builder.cli.job_sent import backend_of
from builder.cli.option_groups import Where, expanded

if TYPE_CHECKING:
    from builder.jobs.cost import Duration, Work

Job = Annotated[
    str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml; with --after a job that was sent.")
]
Lasting = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long it runs, such as 22m.")
]
Measured = Annotated[
    Path | None,
    typer.Option(help="The folder of a finished run; the rate in its summary.json is used."),
]
Speedup = Annotated[
    float, typer.Option(help="How much faster the job's machines are than the measured one.")
]
Examples = Annotated[
    float | None, typer.Option(help="Examples to train on (default: --steps x --batch-size).")
]
After = Annotated[bool, typer.Option("--after", help="What a job that was sent has used.")]
StorageGb = Annotated[float, typer.Option(help="GB of outputs in the bucket.", min=0)]
ImageGb = Annotated[
    float | None, typer.Option(help="GB of images in the registry (default: the built image's).")
]
Months = Annotated[float, typer.Option(help="How long outputs and images are kept.", min=0)]
BuildMinutes = Annotated[float, typer.Option(help="Minutes of Cloud Build.", min=0)]
BuildMachine = Annotated[str, typer.Option(help="The machine of Cloud Build.")]
CheckpointEvery = Annotated[
    str, typer.Option(help="Time between checkpoints; a preemption loses half of it.")
]
RestartTime = Annotated[str, typer.Option(help="Time from a preemption until training goes on.")]
Preemptions = Annotated[
    float,
    typer.Option("--preemptions-per-day", help="Of one spot machine: your guess.", min=0),
]
OwnPrices = Annotated[
    Path | None, typer.Option("--prices", help="Rows that override the table and prices.yaml.")
]


@expanded
def cost(
    job: Job,
    backends: Where,
    lasting: Lasting = None,
    measured: Measured = None,
    speedup: Speedup = 1.0,
    examples: Examples = None,
    after: After = False,
    storage_gb: StorageGb = 0.0,
    image_gb: ImageGb = None,
    months: Months = 1.0,
    build_minutes: BuildMinutes = 0.0,
    build_machine: BuildMachine = "e2-standard-2",
    checkpoint_every: CheckpointEvery = "10m",
    restart_time: RestartTime = "5m",
    preemptions: Preemptions = 1.0,
    prices: OwnPrices = None,
    as_json: Json = False,
) -> None:
    """Show what a job costs, before it runs or after, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    builder job cost cats-and-dogs --measured build/jobs/cpu --speedup 40
    builder job cost cats-and-dogs --after
    """
    from builder.jobs import cost as costs
    from builder.jobs.description import length
    from builder.jobs.prices import load

    table = load(root(), prices)
    duration = costs.Duration(length("--for", lasting), measured, speedup, examples)
    if after:
        work, built = costs.after(backend_of(backends, job).find(job)), 0.0
    else:
        work, built = _before(job, backends, duration)
    size = built if image_gb is None else image_gb
    extras = costs.Extras(storage_gb, size, months, build_minutes, build_machine.lower())
    bill = costs.bill(work, table, extras)
    spot = costs.spot(
        work,
        table,
        interval=length("--checkpoint-every", checkpoint_every) or 0.0,
        restart=length("--restart-time", restart_time) or 0.0,
        per_day=preemptions,
    )
    for line in costs.as_text(bill):
        say(line)
    for line in costs.compared(work, spot):
        say(line)
    if as_json:
        out(costs.as_json(bill, spot))


def _before(job: str, where: Where, duration: "Duration") -> "tuple[Work, float]":
    """Return the work of a job that is not sent yet, and the GB of its built image."""
    from builder.jobs import cost as costs
    from builder.jobs import description
    from builder.jobs.backends import choose
    from builder.jobs.prepare import SendOptions, prepare

    described = description.load(root(), job)
    backend = choose.remote(root(), described, asdict(where))
    ready = prepare(root(), described, settings(), backend, SendOptions())
    return costs.before(ready, duration), costs.image_gb(root(), ready.image.target)
