"""`builder job local`: a job or a study on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli.common import EngineChoice, Json, out, reporter, root, say, settings
from builder.cli.job_sent import Arguments, Program, end, line_writer

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
    from builder.jobs.backends.local import prepare, run
    from builder.jobs.backends.local.study import run_study

    options = prepare.LocalOptions(records, job_dir, env_file, tuple(arguments or ()), program)
    where = settings(engine=engine)
    with reporter() as shown:
        docker, prepared, study = prepare.described(
            root(),
            job,
            options,
            where,
            lambda: connect(where, on_event=shown.on_event),
            shown.on_event,
        )
    tell = line_writer(prepared.pools)
    if study is None:
        end(run.run(docker, prepared, on_line=tell), as_json)
    else:
        end(run_study(docker, prepared, study, on_line=tell), as_json)


def image_of_package(
    targets: tuple[str, ...], name: str, push: bool, where: Any, json: bool
) -> None:
    """Run `builder image TARGET --program FOLDER:MODULE`."""
    from builder.engine.discovery import connect
    from builder.frameworks import suites
    from builder.jobs import package

    program = package.find(name)
    with reporter() as shown:
        docker = connect(where, on_event=shown.on_event)
        images = [
            package.build(root(), where, docker, target, program, shown.on_event)
            for target in targets
        ]
        pushed = [image.push(where, docker, shown.on_event) for image in images if push]
    for built in images:
        state = "up to date" if built.unchanged else "built and proven"
        checks = ", ".join(check.name for check in built.receipt.checks)
        say(f"{built.target}: {built.record.reference}, {state} ({checks})")
        say(f"  {built.record.image_id}")
        say(f"  {suites.unproven(built.receipt.suite)}")
    for image in pushed:
        say(f"{image.reference}: {'already there' if image.unchanged else 'pushed'}")
    if json:
        out([asdict(built.record) for built in images])
