"""`builder job local` and `watch`: parse, call one function, print. No logic."""

from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli.common import OPTIONS, EngineChoice, Json, out, reporter, root, say, settings

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, a file, or a target of images/.")
]
Package = Annotated[
    Path | None,
    typer.Option("--package", help="A folder with a Python program: no Dockerfile is needed."),
]
Module = Annotated[
    str | None, typer.Option("--module", help="What is started of it, as after python -m.")
]


def local(
    job: JobName,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="A folder of data: /records in the containers, passed as --records."),
    ] = None,
    job_dir: Annotated[
        Path | None, typer.Option(help="Where the job writes (default: build/jobs/JOB).")
    ] = None,
    buckets: Annotated[
        Path | None,
        typer.Option(help="A folder whose folders stand for buckets (default: build/buckets)."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Another image than the job's.")] = None,
    package: Package = None,
    module: Module = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE:INDEX@STEP", help="Kill a replica at a step (or @20s)."),
    ] = None,
    preempt: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE:INDEX@STEP", help="The same with SIGTERM and its grace first."),
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds between SIGTERM and SIGKILL.")] = 30.0,
    shm_size: Annotated[
        str | None, typer.Option(help="Of /dev/shm, such as 64m (default: half of the memory).")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Of a study: how many trials at once.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a study: what its choices begin with.")] = 0,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Run a job as containers on this machine, as Vertex AI would.

    \b
    builder job local cats --records data/records
    builder job local cats --records data/records --kill worker:0@50
    builder job local cpu --package my-script --module train -- --epochs 3

    One container a replica with TF_CONFIG, CLUSTER_SPEC and AIP_*, restarts as the service does
    them, an end when the chief ends. The exit code is the job's. A job with a study is run once
    for each trial, a few at a time; the same command goes on where a study was interrupted.
    """
    from dataclasses import asdict

    from builder.core.errors import InputError
    from builder.engine import connect
    from builder.jobs import package as packages
    from builder.jobs.places.local import prepare as here
    from builder.jobs.places.local import run as runner

    where = settings(engine=engine)
    strikes = here.kills(kill or (), preempt or ())
    shm = here.parse_size(shm_size) if shm_size else None
    described = here.load(root(), job)
    if described.study is not None and strikes:
        raise InputError(
            f"{job} is a study: --kill and --preempt strike a replica of a single run",
            "leave them out, or take study: out of a copy of the job",
        )
    program = packages.program(package, module) if package else None
    with reporter() as shown:
        docker = connect(where, on_event=shown.on_event)
        if program is not None:
            target = here.target_of(root(), described.image)
            made = packages.build(root(), where, docker, target, program, shown.on_event)
            image = made.record.image_id
        options = here.Options(
            image=image,
            records=records,
            job_dir=job_dir,
            buckets=buckets,
            arguments=tuple(arguments or ()),
            grace=grace,
            shm=shm,
            pass_job_dir=program is not None,
            name=program.slug if program and job not in here.names(root()) else None,
        )
        prepared = here.prepare(root(), docker, described, options)
    if described.study is not None:
        study(docker, prepared, described.study, parallel, seed, as_json)
    tell = teller([f"{pool.role}-{n}" for pool in prepared.pools for n in range(pool.count)])
    outcome = runner.run(docker, prepared, kills=strikes, on_event=tell)
    told(outcome)
    if as_json:
        out(asdict(outcome))
    raise typer.Exit(outcome.exit_code)


def watch(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A job that runs or ran here, or on Vertex AI.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write the job as one HTML page once it is over.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it as it is now, and leave.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="The one on Vertex AI, where one has run here, too.")
    ] = False,
    poll: Annotated[
        float, typer.Option(help="Seconds between two looks at Vertex AI.", min=0.05)
    ] = 10.0,
    project: Annotated[str | None, typer.Option(help="The Google Cloud project.")] = None,
    region: Annotated[str | None, typer.Option(help="Such as us-central1.")] = None,
    as_json: Json = False,
) -> None:
    """One page of a job: state, step, loss, speed, input wait, CPU, memory, GPU.

    A job of this machine is watched by its folder. Any other one on Vertex AI, by its status and
    its log: they tell state, step, loss and speed.

    Ends when the job does; Ctrl-C leaves the job alone.
    """
    import time
    from dataclasses import asdict

    from rich.console import Console
    from rich.live import Live

    from builder.core.files import write
    from builder.jobs.watch import html as report
    from builder.jobs.watch import reader as watching

    reader, pause = watched(job, remote, project, region, poll)
    view = reader.view()
    console = Console(stderr=True, highlight=False)
    if not (once or as_json or view.over):
        with Live(watching.page(view), console=console, auto_refresh=False) as live:
            while not view.over:
                time.sleep(pause)
                view = reader.view()
                live.update(watching.page(view), refresh=True)
    elif not as_json and not OPTIONS.quiet:
        console.print(watching.page(view))
    if html is not None:
        write(html, report.html(view))
        say(f"wrote {html}")
    if as_json:
        out(asdict(view))


def watched(
    job: str, remote: bool, project: str | None, region: str | None, poll: float
) -> tuple[Any, float]:
    """What reads a job of this machine, else of Vertex AI, and the seconds between two looks."""
    from builder.core.errors import InputError
    from builder.jobs import images as service
    from builder.jobs import submission
    from builder.jobs.places.local import prepare as here
    from builder.jobs.places.vertex import logs
    from builder.jobs.watch import reader as watching
    from builder.jobs.watch import remote as watch_remote

    folder = here.folder_of(root(), job)
    if not remote and watching.has_run(folder):
        return watching.Reader(folder), 1.0
    try:
        where = service.of_job(root(), job, project, region)
    except InputError as error:
        if remote:
            raise
        raise InputError(
            f"{job} has not run here, and Vertex AI cannot be asked: {error.message}",
            f"builder job local {job}; or {error.fix}",
        ) from None
    client = service.jobs_client(where)
    found = submission.find(client, where, job)
    follower = logs.Follower(service.logging_client(where), where.project or "", found.id)
    look = lambda: submission.get(client, found.name, found.kind)  # noqa: E731
    return watch_remote.RemoteReader(look, follower), poll


def study(docker: Any, job: Any, asked: Any, parallel: int | None, seed: int, json: bool) -> None:
    """Run a study, show its table, and leave with its exit code."""
    from dataclasses import asdict

    from rich.console import Console

    from builder.cli.console import duration
    from builder.jobs import show
    from builder.jobs.studies import loop as studies

    tell = teller([f"trial {number}" for number in range(1, asked.trials + 1)])
    outcome = studies.run(docker, job, asked, parallel=parallel, seed=seed, on_event=tell)
    if not OPTIONS.quiet:
        say()
        Console(stderr=True, highlight=False).print(show.study_table(outcome))
        say(f"{outcome.job}: {outcome.state} in {duration(outcome.seconds)}: {outcome.message}")
        say(f"  {outcome.folder}; builder tensorboard {outcome.job} shows it, HParams too")
    if json:
        out({**asdict(outcome), "exit_code": outcome.exit_code})
    raise typer.Exit(outcome.exit_code)


def teller(names: list[str]) -> Any:
    """A callback that writes each line with its replica's name and colour to stderr."""
    from rich.console import Console

    from builder.jobs import show

    console = Console(stderr=True, highlight=False)
    colours = show.colours(names)
    width = max(len(name) for name in (*names, "job"))

    def tell(event: Any) -> None:
        if not OPTIONS.quiet:
            console.print(show.event_text(event, colours, width), soft_wrap=True)

    return tell


def told(outcome: Any) -> None:
    """The summary of a run, for a person."""
    if OPTIONS.quiet:
        return
    from rich.console import Console

    from builder.cli.console import duration
    from builder.jobs import show

    say()
    Console(stderr=True, highlight=False).print(show.summary(outcome))
    say(f"{outcome.job}: {outcome.state} in {duration(outcome.seconds)}: {outcome.message}")
    say(f"  {outcome.folder}")


def register(app: typer.Typer) -> None:
    """Add the commands to `builder job`."""
    app.command()(local)
    app.command()(watch)


def image_of_package(
    targets: tuple[str, ...], package: Path, module: str | None, push: bool, where: Any, json: bool
) -> None:
    """`builder image TARGET --package DIR --module NAME`."""
    from dataclasses import asdict

    from builder.engine import connect
    from builder.jobs import package as packages

    program = packages.program(package, module)
    with reporter() as shown:
        docker = connect(where, on_event=shown.on_event)
        made = [
            packages.build(root(), where, docker, target, program, shown.on_event)
            for target in targets
        ]
        pushed = [packages.push_built(where, docker, one, shown.on_event) for one in made if push]
    for one in made:
        state = "up to date" if one.unchanged else "built and proven"
        checks = ", ".join(check.name for check in one.receipt.checks)
        say(f"{one.target}: {one.record.reference}, {state} ({checks})")
        say(f"  {one.record.image_id}")
    for two in pushed:
        say(f"{two.reference}: {'already there' if two.unchanged else 'pushed'}")
    if json:
        out([asdict(one.record) for one in made])
