"""`builder job`: its commands that send nothing and run nothing."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from builder.cli import job_local, job_sent
from builder.cli.common import EngineChoice, Json, Registry, out, reporter, root, say, settings
from builder.cli.job_sent import JobName, as_text, backend_of, notes
from builder.cli.option_groups import Cluster, Where, expanded

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, on Vertex AI (now called Gemini Enterprise"
    " Agent Platform), or on Kubernetes.",
    no_args_is_help=True,
)
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
]


def _write(text: str, output: Path | None) -> None:
    """Write to a file, or to stdout."""
    from builder.core.files import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
        say(f"wrote {output}")


@expanded
def render(
    job: JobName,
    where: Where,
    cluster: Cluster,
    program: job_sent.Program = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    pushed: Annotated[
        bool,
        typer.Option("--pushed", help="Ask the registry for the image, as submit does."),
    ] = False,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --on kubernetes --pushed | kubectl apply -f -

    Without --pushed an image stands by its tag, and a note says so. With --program, the program's
    image is built, proven and pushed first, as submit does.
    """
    from builder.engine.discovery import connect
    from builder.jobs import description, images
    from builder.jobs.backends import choose

    described = description.load(root(), job)
    backend = choose.remote(root(), described, {**asdict(where), **asdict(cluster)})
    chosen = settings(registry=registry, engine=engine)
    with reporter() as shown:
        ready = images.ready(
            *(root(), described, chosen, backend),
            program=program,
            connect=lambda: connect(chosen),
            pushed=pushed,
            on_event=shown.on_event,
        )
    notes(ready.notes)
    _write(as_text(backend, ready), output)


def schema() -> None:
    """Write jobs/schema.json, with which editors complete jobs/*.yaml."""
    from builder.core.files import write
    from builder.jobs import description

    write(root() / description.JOBS / description.SCHEMA, description.schema_text())
    say("wrote jobs/schema.json")


def convert(
    config: Annotated[
        Path | None, typer.Argument(help="AI Platform's config.yaml; none: a command alone.")
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- WORDS]",
            help="The gcloud command that sent it, or the trainer's arguments.",
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="A target, or an image.")] = None,
    region: Annotated[str | None, typer.Option(help="Such as us-central1.")] = None,
    output: Output = None,
) -> None:
    """Turn a job of AI Platform, its config.yaml and its gcloud command, into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    builder job convert -o jobs/cats.yaml -- gcloud ai-platform jobs submit training cats \\
        --config config.yaml --region us-central1 -- --epochs 10

    It ends with what is not as it was, and with each field and flag that is not taken over.
    """
    from builder.jobs import images
    from builder.jobs.convert import convert as converted

    rest = list(words or ())
    if config is not None and (config.name == "gcloud" or str(config).startswith("-")):
        config, rest = None, [str(config), *rest]  # what stands after --, without a file
    targets = images.targets(root())
    job = converted(config, rest, image=image, region=region, targets=targets)
    for line in job.changes:
        say(line)
    for line in job.left_out:
        say(f"not taken over: {line}")
    _write(job.text, output)


@expanded
def cost(
    job: JobName,
    backends: Where,
    lasting: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it runs, such as 22m.")
    ],
    as_json: Json = False,
) -> None:
    """Show what a job costs, line by line.

    \b
    builder job cost cats-and-dogs --for 22m
    """
    from builder.jobs import cost as costs
    from builder.jobs import description, images
    from builder.jobs.backends import choose
    from builder.jobs.description.values import length

    described, seconds = description.load(root(), job), length("--for", lasting)
    basis = "the time given"
    if described.study is not None:
        seconds *= described.study.trials
        basis += f", {described.study.trials} trials"
    backend = choose.remote(root(), described, asdict(backends))
    ready = images.ready(root(), described, settings(), backend)
    bill = costs.bill(ready, seconds, basis)
    for line in costs.as_text(bill):
        say(line)
    if as_json:
        out(costs.as_json(bill))


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
    from builder.jobs.why import diagnose, logs

    if (job is None) == (log is None):
        raise InputError("name a job or a log", "builder job why JOB, or --log FILE")
    if job is None:
        run = logs.of_log(log or "")
    else:
        backend = backend_of(where, job)
        run = logs.of_job(backend, backend.find(job))
    diagnosis = diagnose.diagnose(run)
    for line in diagnose.as_text(run.name, diagnosis):
        say(line)
    if as_json:
        out(diagnose.as_json(run.name, diagnosis))


for command in (
    job_local.local,
    render,
    convert,
    schema,
    job_sent.submit,
    job_sent.status,
    job_sent.logs,
    job_sent.cancel,
    why,
    cost,
):
    job_app.command()(command)
job_app.command(name="list")(job_sent.list_jobs)
