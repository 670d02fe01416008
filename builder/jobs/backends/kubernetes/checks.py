"""The checks before a job is rendered for Kubernetes: what a JobSet cannot say is refused here.

The API server and JobSet's webhook check the rest. What only the webhook checks, names, holds by
the way they are made (jobset.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from builder.core.errors import InputError
from builder.core.settings import KubernetesSettings
from builder.jobs.backends.kubernetes import nodes
from builder.jobs.backends.kubernetes.nodes import TPUS
from builder.jobs.backends.kubernetes.pod import INDEX, buckets
from builder.jobs.checks import check_no_plain_secrets, common
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Image, Ready


def ready(job: Job, image: Image, cluster: KubernetesSettings, targets: Mapping[str, str]) -> Ready:
    """Return the job with its machines. targets: the accelerator of each target of the project.

    Raises InputError with every problem, each at its line.
    """
    problems, placements, notes = common(job, image, targets)
    with problems.at(("machine",)):
        _check_tpus(placements, cluster)
    with problems.at(("study",)):
        if job.study is not None:
            raise InputError(
                "a study is not one JobSet, and no controller of Kubernetes runs it",
                "builder job local runs it here, Vertex AI as a service; or remove study",
            )
    with problems.at(("kubernetes",)):
        if job.kubernetes.topology and not cluster.queue:
            raise InputError("topology is Kueue's, and no queue is named", "give --queue")
    with problems.at(("environment",)):
        _check_environment(job)
    problems.stop()
    notes += _notes(job, image, placements, cluster)
    return Ready(job, image, "", placements, None, tuple(notes))


def _check_tpus(placements: tuple[Placement, ...], cluster: KubernetesSettings) -> None:
    for placement in filter(nodes.on_tpu, placements):
        name = placement.device.name if placement.device else ""
        if name not in TPUS:
            raise InputError(
                f"{name} is not rendered for GKE",
                f"write a machine of {', '.join(TPUS)}: ct5lp-hightpu-4t, topology: 2x2",
            )
        if cluster.nodes != "gke":
            raise InputError("a TPU needs nodes of GKE, and nodes is any", "give --nodes gke")


def _check_environment(job: Job) -> None:
    if INDEX in job.environment:
        raise InputError(f"{INDEX} cannot be set: Kubernetes sets it", "remove it")
    for name, secret in job.secrets.items():
        if secret.key is None:
            what = f"{name}: a Secret of Kubernetes has a name and a key"
            raise InputError(what, f"write {name}: {{secret: NAME, key: KEY}}")
    check_no_plain_secrets(
        job,
        "write {name}: {{secret: NAME, key: KEY}}, and make it: kubectl create secret generic NAME "
        "--from-literal=KEY=...",
    )


def _notes(
    job: Job, image: Image, placements: tuple[Placement, ...], cluster: KubernetesSettings
) -> list[str]:
    """Return notes about what the description says and a JobSet does not, and about what the
    cluster has to bring."""
    plan, any_node = job.scheduling, cluster.nodes != "gke"
    unused = {
        **{name: getattr(job, name) for name in ("network", "tensorboard")},
        **{f"vertex.{name}": True for name in job.vertex.written},
        "disk.type": job.disk.type,
        "scheduling.max_wait": plan.max_wait,
        "service_account": job.service_account and not cluster.service_account,
        f"strategy: {plan.strategy}": any_node and plan.strategy != "standard",
        "kubernetes.reservation": any_node and job.kubernetes.reservation,
        "/gcs": any_node and buckets(job),
    }
    notes = [
        f"{name}: not rendered, this cluster has no such thing" for name in unused if unused[name]
    ]
    if image.accelerator is None:
        notes.append("not an image of ours: it may run as root, and may write anywhere")
    if any(map(nodes.on_tpu, placements)) and not (job.command or image.entrypoint):
        notes.append(
            "a TPU's driver locks memory, and what the image starts is not known: write command, "
            "or let the program raise the limit itself (resource.RLIMIT_MEMLOCK)"
        )
    return notes
