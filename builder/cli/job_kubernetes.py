"""A job for a cluster: as YAML for kubectl, or ready to be submitted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder.cli.common import reporter, root, say

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.jobs.images import ProgramFolder
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


def study(
    name: str,
    chosen: "Settings",
    flags: Mapping[str, str | None],
    package: "ProgramFolder | None",
    arguments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a study in a cluster, one JobSet a trial; ends with the study's exit code."""
    from builder.cli.job_local import run_study
    from builder.jobs import description
    from builder.jobs.places.choose import SENT
    from builder.jobs.places.kubernetes import cluster, place, trials
    from builder.jobs.places.kubernetes.prepare import prepare

    job = description.load(root(), name)
    asked, alone = job.study, job.variant((), study=None)
    assert asked is not None
    there = place.connect(cluster.load(root(), flags))
    with reporter() as shown:
        ready = prepare(
            *(root(), alone, chosen, there.cluster, True, package, arguments),
            on_event=shown.on_event,
        )
    for note in ready.notes:
        say(f"note: {note}")
    ours = ready.image.target is not None and package is None and job.command is None
    made = trials.ClusterTrials(there, ready, root() / SENT / f"study-{job.id}", prints=ours)
    run_study(lambda tell: trials.run_study(made, asked, on_event=tell), asked, as_json)


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
