"""`builder job render --to jobset`: a job as YAML for kubectl. There is no submit for it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import reporter, root

if TYPE_CHECKING:
    from builder.core.settings import Settings

FORMAT = "jobset"

Namespace = Annotated[str | None, typer.Option(help="jobset: the namespace; else kubectl's own.")]
Queue = Annotated[str | None, typer.Option(help="jobset: a LocalQueue of Kueue.")]
ServiceAccount = Annotated[
    str | None, typer.Option(help="jobset: a ServiceAccount of the namespace.")
]
Nodes = Annotated[
    str | None,
    typer.Option(help="jobset: gke (default) selects GKE's nodes; any asks for nvidia.com/gpu."),
]


def rendered(
    job: str, settings: "Settings", flags: Mapping[str, str | None], pushed: bool
) -> tuple[str, tuple[str, ...]]:
    """The YAML of a job's JobSet, and notes."""
    from builder.core import yamlfile
    from builder.jobs.places.kubernetes import cluster, jobset
    from builder.jobs.places.kubernetes.prepare import prepare

    where = cluster.load(root(), flags)
    with reporter() as shown:
        ready = prepare(root(), job, settings, where, pushed, shown.on_event)
    return yamlfile.dump(jobset.jobset(ready, where)), ready.notes
