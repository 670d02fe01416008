"""`builder job doctor`: what prevents a job on Vertex AI or in a cluster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import Json, Registry, reporter, root, settings
from builder.cli.job_place import (
    Context,
    Namespace,
    Nodes,
    On,
    Project,
    PullSecret,
    Queue,
    Region,
    ServiceAccount,
)

if TYPE_CHECKING:
    from builder.core.checkup import Finding
    from builder.core.settings import Settings


def doctor(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Also whether this one can run there.")
    ] = None,
    on: On = "vertex",
    project: Project = None,
    region: Region = None,
    context: Context = None,
    namespace: Namespace = None,
    queue: Queue = None,
    service_account: ServiceAccount = None,
    nodes: Nodes = None,
    pull_secret: PullSecret = None,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Check what a job needs on Vertex AI, or in a cluster of Kubernetes.

    \b
    builder job doctor --project my-project --region us-central1
    builder job doctor cats                          and what this job needs
    builder job doctor cats --on kubernetes --queue gpus

    Vertex AI: credentials, APIs, each right, who reads the image, the bucket, quota. A cluster:
    access, JobSet, each right, queue, accounts, nodes. Nothing is changed. Each finding that
    prevents a job has the command that mends it; then the exit code is 4.
    """
    from builder.cli.machine import report
    from builder.jobs.places import choose

    there = {"queue": queue, "service_account": service_account}
    there |= {"nodes": nodes, "pull_secret": pull_secret}
    asked = choose.Asked(on, project, region, context, namespace, there).known()
    chosen = settings(registry)
    if asked.on == choose.KUBERNETES:
        flags = {"context": context, "namespace": namespace, **there}
        found = _of_cluster(job, chosen, flags)
    else:
        found = _of_vertex(job, chosen, project, region)
    report(found, "a job there", as_json)


def _of_cluster(
    job: str | None, chosen: "Settings", flags: Mapping[str, str | None]
) -> "tuple[Finding, ...]":
    from builder.jobs.places.kubernetes import checkup, cluster, place
    from builder.jobs.places.kubernetes.prepare import prepare

    there = place.connect(cluster.load(root(), flags))
    ready = None
    if job is not None:
        with reporter() as shown:
            ready = prepare(root(), job, chosen, there.cluster, True, on_event=shown.on_event)
    return checkup.examine(there, ready)


def _of_vertex(
    job: str | None, chosen: "Settings", project: str | None, region: str | None
) -> "tuple[Finding, ...]":
    from builder.jobs.places.vertex import checkup, service
    from builder.jobs.places.vertex.prepare import VertexOptions, prepare

    if job is None:
        return checkup.examine(service.load(root(), project=project, region=region))
    with reporter() as shown:
        wanted = VertexOptions(project, region, pushed=True)
        ready, where = prepare(root(), job, chosen, wanted, shown.on_event)
    return checkup.examine(where, ready)
