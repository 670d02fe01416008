"""`builder job local`: a job or a study on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import OPTIONS, EngineChoice, Json, out, reporter, root, say, settings
from builder.cli.console import duration
from builder.cli.job_sent import Arguments, Program

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.jobs.backends.local.replicas import LocalJob
    from builder.jobs.description import Study
    from builder.jobs.running import JobEvent

Job = Annotated[
    str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, a file, or a target of images/.")
]
Records = Annotated[
    Path | None,
    typer.Option(help="A folder of data: /records in the containers, passed as --records."),
]
JobDir = Annotated[
    Path | None, typer.Option(help="Where the job writes (default: build/jobs/JOB).")
]
EnvFile = Annotated[
    Path | None,
    typer.Option(help="NAME=VALUE lines: the values of variables that name a secret."),
]


def local(
    job: Job,
    arguments: Arguments = None,
    records: Records = None,
    job_dir: JobDir = None,
    env_file: EnvFile = None,
    program: Program = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Run a job as containers on this machine, as Vertex AI would.

    \b
    builder job local cats --records data/records
    builder job local cpu --program my-script:train -- --epochs 3

    Each replica is a container with TF_CONFIG, CLUSTER_SPEC and AIP_*. Restarts are the service's;
    the job ends when the chief ends, with the chief's exit code. A job with a study runs once for
    each trial, a few at a time; the same command continues an interrupted study.
    """
    from builder.engine.discovery import connect
    from builder.jobs.backends.local import prepare

    given = prepare.LocalOptions(
        records=records,
        job_dir=job_dir,
        env_file=env_file,
        arguments=tuple(arguments or ()),
        program=program,
    )
    where = settings(engine=engine)
    with reporter() as shown:
        docker, prepared, study = prepare.described(
            root(),
            job,
            given,
            where,
            lambda: connect(where, on_event=shown.on_event),
            shown.on_event,
        )
    if study is not None:
        _study(docker, prepared, study, as_json)
    _run(docker, prepared, as_json)


def _run(docker: "Engine", job: "LocalJob", as_json: bool) -> None:
    """Run one job, show its table, and end with its exit code."""
    from builder.jobs import show
    from builder.jobs.backends.local import run
    from builder.jobs.pools import replica_names

    tell = _line_writer(replica_names(job.pools))
    outcome = run.run(docker, job, on_event=tell)
    _show(outcome, show.summary(outcome), outcome.folder)
    if as_json:
        out(asdict(outcome))
    raise typer.Exit(outcome.exit_code)


def _study(docker: "Engine", job: "LocalJob", wanted: "Study", as_json: bool) -> None:
    """Run a study here, show its table, and end with its exit code."""
    from builder.jobs import show
    from builder.jobs.backends.local import study

    tell = _line_writer([f"trial {number}" for number in range(1, wanted.trials + 1)])
    outcome = study.run_study(docker, job, wanted, on_event=tell)
    shows = f"{outcome.folder}; builder tensorboard {outcome.job} shows it"
    _show(outcome, show.study_table(outcome), shows)
    if as_json:
        out(asdict(outcome))
    raise typer.Exit(outcome.exit_code)


def _line_writer(names: list[str]) -> Any:
    """Return a callback that writes each line with its replica's name and colour to stderr."""
    from builder.jobs import show
    from builder.jobs.running import Note

    write = show.writer(names)

    def tell(event: "JobEvent") -> None:
        if not OPTIONS.quiet:
            write(event.replica, "*" if isinstance(event, Note) else "|", event.text)

    return tell


def _show(outcome: Any, table: Any, where: str) -> None:
    """Show the table of a run or of a study, how it ended, and where its files are."""
    if OPTIONS.quiet:
        return
    from rich.console import Console

    say()
    Console(stderr=True, highlight=False).print(table)
    say(f"{outcome.job}: {outcome.state} in {duration(outcome.seconds)}: {outcome.message}")
    say(f"  {where}")


def register(app: typer.Typer) -> None:
    """Add the command to `builder job`."""
    app.command()(local)


def image_of_package(
    targets: tuple[str, ...], name: str, push: bool, where: Any, json: bool
) -> None:
    """Run `builder image TARGET --program FOLDER:MODULE`."""
    from builder.engine.discovery import connect
    from builder.jobs import package as packages

    program = packages.find(name)
    with reporter() as shown:
        docker = connect(where, on_event=shown.on_event)
        made = [
            packages.build(root(), where, docker, target, program, shown.on_event)
            for target in targets
        ]
        pushed = [
            packages.push_built(where, docker, built, shown.on_event) for built in made if push
        ]
    for built in made:
        state = "up to date" if built.unchanged else "built and proven"
        checks = ", ".join(check.name for check in built.receipt.checks)
        say(f"{built.target}: {built.record.reference}, {state} ({checks})")
        say(f"  {built.record.image_id}")
    for image in pushed:
        say(f"{image.reference}: {'already there' if image.unchanged else 'pushed'}")
    if json:
        out([asdict(built.record) for built in made])
