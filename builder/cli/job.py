"""`builder job`: parse, call one function, print. No logic."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import job_local
from builder.cli.common import Registry, reporter, root, say, settings

if TYPE_CHECKING:
    from builder.jobs.checks import Ready
    from builder.jobs.service import Service

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, or on Vertex AI.",
    no_args_is_help=True,
)
job_local.register(job_app)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="jobs/JOB.yaml, or a file's path.")]
Project = Annotated[str | None, typer.Option("--project", help="The Google Cloud project.")]
Region = Annotated[str | None, typer.Option("--region", help="Such as us-central1.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.")
]


def _ready(
    name: str,
    project: str | None,
    region: str | None,
    registry: str | None,
    pushed: bool,
    on_event: Any = None,
) -> "tuple[Ready, Service]":
    """A job with its image, checked."""
    from dataclasses import replace

    from builder.events import ignore
    from builder.jobs import checks, description, service

    job = description.load(root(), name)
    where = service.load(root(), job, project=project, region=region)
    chosen = settings(registry=registry)
    if pushed:
        image, open_ends = service.pushed_image(root(), job, chosen, on_event or ignore)
    else:
        image, open_ends = service.local_image(root(), job, chosen)
    ready = checks.ready(
        job,
        image,
        where.region,
        project=where.project,
        targets=service.targets(root()),
        cloud=where.endpoint is None and (pushed or chosen.registry is not None),
    )
    return replace(ready, notes=(*open_ends, *ready.notes)), where


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(f"note: {note}")


def _write(text: str, output: Path | None) -> None:
    from builder.project import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
        say(f"wrote {output}")


@job_app.command()
def render(
    job: JobName,
    to: Annotated[
        str,
        typer.Option(
            help="vertex: the REST body. gcloud: its config file. legacy: AI Platform's config.yaml"
            " (shut down). training-input: the whole of AI Platform's REST body."
        ),
    ] = "vertex",
    project: Project = None,
    region: Region = None,
    registry: Registry = None,
    pushed: Annotated[
        bool,
        typer.Option("--pushed", help="Ask the registry for the image, as submit does."),
    ] = False,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --to gcloud -o job.yaml
    builder job render cats-and-dogs --to legacy          AI Platform's config.yaml
    """
    import json

    from builder.errors import InputError
    from builder.jobs import legacy, vertex

    if to not in ("vertex", "gcloud", "legacy", "training-input"):
        raise InputError(
            f"--to {to}: nothing is called so", "vertex, gcloud, legacy or training-input"
        )
    with reporter() as shown:
        ready, _ = _ready(job, project, region, registry, pushed, shown.on_event)
    if to == "gcloud":
        command, config = vertex.gcloud(ready)
        text = vertex.yaml(config, command)
    elif to == "legacy":
        command, config = legacy.config(ready)
        text = vertex.yaml(config, f"{legacy.GONE}\n\n{command}")
    elif to == "training-input":
        text = json.dumps({"trainingInput": legacy.training_input(ready)}, indent=2) + "\n"
        say(f"note: {legacy.GONE}")
    else:
        text = json.dumps(vertex.to_dict(vertex.message(ready)), indent=2) + "\n"
    _tell(ready.notes)
    _write(text, output)


@job_app.command()
def convert(
    config: Annotated[Path, typer.Argument(help="AI Platform's config.yaml.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="For the trainer, after --.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="A target, or an image.")] = None,
    region: Region = None,
    job_dir: Annotated[str | None, typer.Option(help="What --job-dir was.")] = None,
    output: Output = None,
) -> None:
    """Turn an AI Platform config.yaml into a job of today.

    \b
    builder job convert config.yaml --region us-central1 -o jobs/cats.yaml -- --epochs 10
    """
    from builder.errors import InputError
    from builder.jobs import service
    from builder.jobs.convert import convert as converted

    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{config}: {why}", "name the file that gcloud's --config took") from None
    found = converted(
        text,
        config,
        image=image,
        region=region,
        job_dir=job_dir,
        arguments=tuple(arguments or ()),
        targets=service.targets(root()),
    )
    _tell(found.notes)
    _write(found.text, output)


@job_app.command()
def schema(
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is stale.")] = False,
) -> None:
    """Write jobs/schema.json, which editors complete jobs/*.yaml with."""
    from builder.errors import CheckFailed
    from builder.jobs import description
    from builder.project import write

    path = root() / description.JOBS / description.SCHEMA
    if check:
        if not path.is_file() or path.read_text() != description.schema_text():
            raise CheckFailed("jobs/schema.json: not today's schema", "builder job schema")
        return
    write(path, description.schema_text())
    say("wrote jobs/schema.json")
