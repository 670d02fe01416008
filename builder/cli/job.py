"""`builder job`: its commands that send nothing: render, schema."""

from dataclasses import asdict
from typing import Annotated

import typer

from builder.cli import job_convert, job_cost, job_local, job_sent, job_why
from builder.cli.common import EngineChoice, Registry, reporter, root, say, settings
from builder.cli.job_convert import Output
from builder.cli.job_sent import JobName, as_text, notes
from builder.cli.option_groups import Cluster, Where, expanded

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, on Vertex AI (now called Gemini Enterprise"
    " Agent Platform), or on Kubernetes.",
    no_args_is_help=True,
)


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
    local: Annotated[
        bool,
        typer.Option("--local", help="Show a job whose image is on this machine only."),
    ] = False,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --on kubernetes | kubectl apply -f -

    With --program, the program's image is built, proven and pushed first, as submit does: a job
    names its image by digest. An image that is on this machine only cannot be sent: --local shows
    its job all the same.
    """
    from builder.jobs import checks, description
    from builder.jobs.backends import choose
    from builder.jobs.prepare import SendOptions, prepare

    described = description.load(root(), job)
    backend = choose.remote(root(), described, {**asdict(where), **asdict(cluster)})
    chosen = settings(registry=registry, engine=engine)
    options = SendOptions(program=job_sent.program_of(program, chosen), pushed=pushed)
    with reporter() as shown:
        ready = prepare(root(), described, chosen, backend, options, shown.on_event)
    if not local:
        checks.require_sendable(ready, by_digest=backend.name == choose.KUBERNETES)
    notes(ready.notes)
    job_convert.write(as_text(backend, ready), output)


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
