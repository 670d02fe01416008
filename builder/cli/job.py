"""`builder job`: its commands that need no place: render, import, schema."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import (
    job_convert,
    job_cost,
    job_doctor,
    job_kubernetes,
    job_local,
    job_sent,
    job_why,
)
from builder.cli.common import Registry, reporter, root, say, settings
from builder.cli.job_convert import Output
from builder.cli.job_place import (
    Namespace,
    Nodes,
    Project,
    PullSecret,
    Queue,
    Region,
    ServiceAccount,
)
from builder.cli.job_sent import JobName, notes

if TYPE_CHECKING:
    from builder.jobs.ready import Ready

job_app = typer.Typer(
    help="Training jobs: on this machine as a cluster, on Vertex AI (now called Gemini Enterprise"
    " Agent Platform), or on Kubernetes.",
    no_args_is_help=True,
)

FORMATS = ("vertex", job_kubernetes.FORMAT, "gcloud", "legacy", "training-input")


def render(
    job: JobName,
    to: Annotated[
        str,
        typer.Option(
            help="vertex: the REST body. jobset: Kubernetes. gcloud: its config file. legacy: the"
            " config.yaml of AI Platform (shut down). training-input: its whole REST body."
        ),
    ] = "vertex",
    project: Project = None,
    region: Region = None,
    registry: Registry = None,
    pushed: Annotated[
        bool,
        typer.Option("--pushed", help="Ask the registry for the image, as submit does."),
    ] = False,
    namespace: Namespace = None,
    queue: Queue = None,
    service_account: ServiceAccount = None,
    nodes: Nodes = None,
    pull_secret: PullSecret = None,
    output: Output = None,
) -> None:
    """Show what would be sent, after every check.

    \b
    builder job render cats-and-dogs                      a Vertex AI CustomJob
    builder job render cats-and-dogs --to jobset | kubectl apply -f -
    builder job render cats-and-dogs --to gcloud -o job.yaml
    builder job render cats-and-dogs --to legacy          AI Platform's config.yaml
    """
    from builder.core.errors import InputError
    from builder.jobs.places.vertex.prepare import VertexOptions, prepare

    if to not in FORMATS:
        raise InputError(f"--to {to}: unknown format", f"write one of {', '.join(FORMATS)}")
    cluster = {
        "namespace": namespace,
        "queue": queue,
        "service_account": service_account,
        "nodes": nodes,
        "pull_secret": pull_secret,
    }
    chosen = settings(registry=registry)
    if to == job_kubernetes.FORMAT:
        _refuse(to, {"project": project, "region": region})
        found = job_kubernetes.rendered(job, chosen, cluster, pushed)
    else:
        _refuse(to, cluster)
        wanted = VertexOptions(project, region, pushed)
        with reporter() as shown:
            ready, _ = prepare(root(), job, chosen, wanted, shown.on_event)
        found = _as_text(to, ready), ready.notes
    notes(found[1])
    job_convert.write(found[0], output)


def _refuse(to: str, flags: dict[str, str | None]) -> None:
    """Raises InputError for a flag that another format takes."""
    from builder.core.errors import InputError

    for name, value in flags.items():
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: --to {to} has no {name.replace('_', ' ')}", f"remove {flag}")


def _as_text(to: str, ready: "Ready") -> str:
    """A job for Vertex AI, or as AI Platform took it."""
    from builder.core import yamlfile
    from builder.jobs.aiplatform import render as legacy
    from builder.jobs.places.vertex import messages

    if to == "gcloud":
        command, config = messages.gcloud(ready)
        return yamlfile.dump(config, command)
    if to == "legacy":
        command, config = legacy.config(ready)
        return yamlfile.dump(config, f"{legacy.GONE}\n\n{command}")
    if to == "training-input":
        say(f"note: {legacy.GONE}")
        return json.dumps({"trainingInput": legacy.training_input(ready)}, indent=2) + "\n"
    return json.dumps(messages.to_dict(messages.message(ready)), indent=2) + "\n"


def import_job(
    job: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CustomJob, HyperparameterTuningJob or JobSet.")
    ],
    region: Region = None,
    output: Output = None,
) -> None:
    """Turn a job of Vertex AI, as the API or gcloud has it, or a JobSet into a job's file.

    \b
    gcloud ai custom-jobs describe NAME --region R > old.yaml
    builder job import old.yaml -o jobs/cats.yaml

    The new file is rendered again, and each field that is not the same is told.
    """
    from builder.core.errors import InputError
    from builder.jobs import ledger
    from builder.jobs.places.kubernetes import importing as of_a_cluster
    from builder.jobs.places.vertex import importing as of_vertex

    given = ledger.read(job)
    if given.get("kind") == "JobSet":
        if region is not None:
            raise InputError("--region: a JobSet runs in a cluster", "remove --region")
        found = of_a_cluster.imported(given, job)
    else:
        found = of_vertex.imported(given, job, region)
    job_convert.tell(found)
    job_convert.write(found.text, output)


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
job_app.command("import")(import_job)
job_sent.register(job_app)
job_why.register(job_app)
job_app.command()(job_doctor.doctor)
job_app.command()(job_cost.cost)
