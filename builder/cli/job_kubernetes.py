"""A job for a cluster: as YAML for kubectl, or ready to be submitted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder.cli.common import reporter, root

if TYPE_CHECKING:
    from builder.core.events import OnEvent
    from builder.core.settings import Settings
    from builder.jobs.images import ProgramFolder
    from builder.jobs.places.kubernetes.place import Kubernetes
    from builder.jobs.places.protocol import Place
    from builder.jobs.ready import Ready

FORMAT = "jobset"


def rendered(
    job: str, chosen: "Settings", flags: Mapping[str, str | None], pushed: bool
) -> tuple[str, tuple[str, ...]]:
    """The YAML of a job's JobSet, and notes."""
    from builder.core import yamlfile
    from builder.jobs.places.kubernetes import cluster, jobset
    from builder.jobs.places.kubernetes.prepare import prepare

    where = cluster.load(root(), flags)
    with reporter() as shown:
        ready = prepare(root(), job, chosen, where, pushed, on_event=shown.on_event)
    return yamlfile.dump(jobset.jobset(ready, where)), ready.notes


def prepared(
    job: str,
    chosen: "Settings",
    flags: Mapping[str, str | None],
    package: "ProgramFolder | None",
    arguments: tuple[str, ...],
    on_event: "OnEvent",
) -> "tuple[Kubernetes, Ready]":
    """The cluster, and the job as it is sent there."""
    from builder.jobs.places.kubernetes import cluster, place
    from builder.jobs.places.kubernetes.prepare import prepare

    there = place.connect(cluster.load(root(), flags))
    ready = prepare(root(), job, chosen, there.cluster, True, package, arguments, on_event=on_event)
    return there, ready


def dry_run(there: "Place[Any]", ready: "Ready") -> str:
    """The YAML of a JobSet that the cluster takes. Nothing is created.

    Raises InputError for another place than a cluster.
    """
    from builder.core import yamlfile
    from builder.core.errors import InputError
    from builder.jobs.places.kubernetes.place import Kubernetes

    if not isinstance(there, Kubernetes):
        raise InputError(
            f"--dry-run: {there.title} has none", "builder job render shows what would be sent"
        )
    there.check(ready)
    return yamlfile.dump(there.render(ready))
