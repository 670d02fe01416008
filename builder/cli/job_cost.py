"""`builder job cost`: what a job costs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import Json, out, root, say, settings
from builder.cli.job_sent import backend_of
from builder.cli.option_groups import Where as Backends
from builder.cli.option_groups import expanded

if TYPE_CHECKING:
    from builder.jobs.cost.prices import Prices
    from builder.jobs.cost.quote import Wanted

Job = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="jobs/JOB.yaml; with --after a sent job.")
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
LeftOn = Annotated[str, typer.Option(help="How long a notebook stays on after the work.")]
CheckpointEvery = Annotated[
    str, typer.Option(help="Time between checkpoints; a preemption loses half of it.")
]
RestartTime = Annotated[str, typer.Option(help="Time from a preemption until training goes on.")]
Preemptions = Annotated[
    float,
    typer.Option("--preemptions-per-day", help="Of one spot machine: your guess.", min=0),
]
MlUnits = Annotated[
    float | None, typer.Option(help="What AI Platform charged, in ML units.", min=0)
]
Where = Annotated[str, typer.Option(help="americas or europe-asia; for --ml-units.")]
OwnPrices = Annotated[
    Path | None, typer.Option("--prices", help="Rows that override the table and prices.yaml.")
]


@expanded
def cost(
    backends: Backends,
    job: Job = None,
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
    left_on: LeftOn = "15h",
    checkpoint_every: CheckpointEvery = "10m",
    restart_time: RestartTime = "5m",
    preemptions: Preemptions = 1.0,
    ml_units: MlUnits = None,
    where: Where = "americas",
    prices: OwnPrices = None,
    as_json: Json = False,
) -> None:
    """Show what a job costs, before it runs or after, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    builder job cost cats-and-dogs --measured build/jobs/cpu --speedup 40
    builder job cost cats-and-dogs --after
    builder job cost --ml-units 1.79                      as AI Platform charged
    """
    from builder.jobs.cost import prices as pricing
    from builder.jobs.cost.bill import Extras
    from builder.jobs.cost.quote import Wanted
    from builder.jobs.description import length

    table = pricing.load(root(), prices)
    answer = _ml_units(job, ml_units, where, table)
    if job is not None:
        machine = build_machine.lower()
        wanted = Wanted(
            length("--for", lasting),
            measured,
            speedup,
            examples,
            Extras(storage_gb, image_gb or 0.0, months, build_minutes, machine),
            own_image=image_gb is None,
            left_on=length("--left-on", left_on) or 0.0,
            checkpoint_every=length("--checkpoint-every", checkpoint_every) or 0.0,
            restart=length("--restart-time", restart_time) or 0.0,
            preemptions=preemptions,
        )
        answer |= _quote(job, after, table, wanted, backends)
    if as_json:
        out(answer)


def _ml_units(job: str | None, units: float | None, where: str, table: "Prices") -> dict[str, Any]:
    """AI Platform's own arithmetic. Raises InputError where neither units nor a job are named."""
    from builder.core.errors import InputError
    from builder.jobs.cost import bill, quote

    answer: dict[str, Any] = {"prices_of": table.as_of}
    if units is not None:
        line = bill.ml_units(units, table, where)
        say(quote.legacy(line))
        answer["ml_units"] = asdict(line)
    elif job is None:
        raise InputError(
            "no job is named", "builder job cost JOB --for 22m, or builder job cost --ml-units 1.79"
        )
    return answer


def _quote(
    job: str,
    after: bool,
    table: "Prices",
    wanted: "Wanted",
    where: Backends,
) -> dict[str, Any]:
    """Return the bill of a job, before or after it ran."""
    from builder.jobs import description
    from builder.jobs.backends import choose
    from builder.jobs.cost import quote
    from builder.jobs.prepare import SendOptions, prepare

    if after:
        estimate = quote.after(backend_of(where, job).find(job), table, wanted)
    else:
        described = description.load(root(), job)
        backend = choose.remote(root(), described, asdict(where))
        ready = prepare(root(), described, settings(), backend, SendOptions())
        estimate = quote.before(root(), ready, table, wanted)
    for text in quote.told(estimate, table):
        say(text)
    return quote.as_json(estimate)
