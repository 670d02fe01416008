"""The options with which every command about a job names the place, and the place itself."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import root

if TYPE_CHECKING:
    from builder.jobs.places.protocol import Place

On = Annotated[
    str | None,
    typer.Option("--on", metavar="PLACE", help="vertex (default) or kubernetes."),
]
AnyPlace = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="here, vertex or kubernetes (default: here where it ran here, else vertex).",
    ),
]
Project = Annotated[str | None, typer.Option("--project", help="vertex: the project.")]
Region = Annotated[str | None, typer.Option("--region", help="vertex: such as us-central1.")]
Context = Annotated[
    str | None, typer.Option("--context", help="kubernetes: of kubeconfig (default: the current).")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="kubernetes: default: the context's own.")
]
Queue = Annotated[str | None, typer.Option(help="kubernetes: a LocalQueue of Kueue.")]
ServiceAccount = Annotated[
    str | None, typer.Option(help="kubernetes: a ServiceAccount of the namespace.")
]
Nodes = Annotated[
    str | None,
    typer.Option(help="kubernetes: gke (default) selects GKE's nodes; any asks for GPUs alone."),
]
PullSecret = Annotated[
    str | None, typer.Option(help="kubernetes: a Secret with which the nodes pull the image.")
]


def place(
    on: str | None,
    project: str | None,
    region: str | None,
    context: str | None,
    namespace: str | None,
    name: str | None = None,
) -> "Place[Any]":
    """Where to ask about a job that was sent."""
    from builder.jobs.places import choose

    asked = choose.Asked(on, project, region, context, namespace)
    return choose.remote(root(), asked, name)
