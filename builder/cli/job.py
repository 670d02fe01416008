"""`builder job`: its commands that send nothing: render, schema."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import job_convert, job_cost, job_local, job_sent, job_why
from builder.cli.common import Registry, reporter, root, say, settings
from builder.cli.job_convert import Output
from builder.cli.job_sent import JobName, as_text, notes
from builder.cli.option_groups import Cluster, Where, expanded

if TYPE_CHECKING:
    from builder.jobs.ready import Ready

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, on Vertex AI (now called Gemini Enterprise"
    " Agent Platform), or on Kubernetes.",
    no_args_is_help=True,
)

FORMATS = {"vertex": "vertex", "gcloud": "vertex", "jobset": "kubernetes"}
"""What `render` writes, and the backend that takes it."""


@expanded
def render(
    job: JobName,
    where: Where,
    cluster: Cluster,
    to: Annotated[
        str | None,
        typer.Option(help="vertex: the REST body. gcloud: its config file. jobset: Kubernetes."),
    ] = None,
    registry: Registry = None,
    pushed: Annotated[
        bool,
        typer.Option("--pushed", help="Ask the registry for the image, as submit does."),
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Also a job whose image no registry holds.")
    ] = False,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --to jobset | kubectl apply -f -
    builder job render cats-and-dogs --to gcloud -o job.yaml
    """
    from builder.core.errors import InputError
    from builder.jobs import checks, description
    from builder.jobs.backends import choose
    from builder.jobs.prepare import SendOptions, prepare

    if to is not None:
        if to not in FORMATS:
            raise InputError(f"--to {to}: unknown format", f"write one of {', '.join(FORMATS)}")
        if where.backend not in (None, FORMATS[to]):
            raise InputError(
                f"--to {to} is no format of --on {where.backend}", "remove one of them"
            )
        where = replace(where, backend=FORMATS[to])
    described = description.load(root(), job)
    backend = choose.remote(root(), described, {**asdict(where), **asdict(cluster)})
    options = SendOptions(pushed=pushed)
    with reporter() as shown:
        ready = prepare(
            root(), described, settings(registry=registry), backend, options, shown.on_event
        )
    if backend.name == choose.KUBERNETES:  # kubectl would take the tag
        checks.require_digest(ready)
    elif not local:
        checks.require_registry(ready)
    notes(ready.notes)
    job_convert.write(_gcloud(ready) if to == "gcloud" else as_text(backend, ready), output)


def _gcloud(ready: "Ready") -> str:
    from builder.core import yamlfile
    from builder.jobs.backends.vertex import messages

    command, config = messages.gcloud(ready)
    return yamlfile.dump(config, command)


def schema(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where it is not up to date.")
    ] = False,
) -> None:
    """Write jobs/schema.json, with which editors complete jobs/*.yaml."""
    from builder.core.errors import CheckFailed
    from builder.core.files import write
    from builder.jobs import description

    path = root() / description.JOBS / description.SCHEMA
    if check:
        if not path.is_file() or path.read_text() != description.schema_text():
            raise CheckFailed("jobs/schema.json: not today's schema", "builder job schema")
        return
    write(path, description.schema_text())
    say("wrote jobs/schema.json")


job_local.register(job_app)
for command in (render, job_convert.convert, schema):
    job_app.command()(command)
job_sent.register(job_app)
job_why.register(job_app)
job_app.command()(job_cost.cost)
