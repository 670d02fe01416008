"""The checks before a job is rendered for Kubernetes: what a JobSet cannot say is refused here.

The API server and JobSet's webhook check the rest. What only the webhook checks, names, holds by
the way they are made (jobset.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.core.errors import InputError
from builder.jobs.backends.kubernetes import nodes
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.backends.kubernetes.nodes import TPUS
from builder.jobs.backends.kubernetes.pod import INDEX, buckets
from builder.jobs.checks import check_no_plain_secrets, common, field_of, names_buckets
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import Image, Ready

_FAST_NETWORK = ("a3-highgpu-8g", "a3-megagpu", "a3-ultragpu", "a4-")


def ready(job: Job, image: Image, cluster: Cluster, targets: Mapping[str, str]) -> Ready:
    """Return the job with its machines. targets: the accelerator of each target of the project.

    Raises InputError with every problem, each at its line.
    """
    problems, placements, notes = common(job, image, targets)
    for pool, placement in zip(job.pools, placements, strict=False):
        with problems.at(field_of(pool)):
            _check_node(placement, cluster)
    problems.attempt(("study",), lambda: _check_study(job))
    problems.attempt(("scheduling", "strategy"), lambda: _check_strategy(job, cluster))
    problems.attempt(("kubernetes",), lambda: _check_own(job, cluster))
    problems.attempt(("environment",), lambda: _check_environment(job))
    problems.attempt(("arguments",), lambda: _check_buckets(job, cluster))
    problems.attempt(("image",), lambda: _check_tpus(image, placements))
    problems.stop()
    notes += [*_unused(job, image, cluster), *_hints(job, image, placements, cluster)]
    return Ready(job, image, "", placements, None, tuple(notes))


def _check_node(placement: Placement, cluster: Cluster) -> None:
    """Raise InputError for a placement that no pod can have."""
    device = placement.device
    if device is None or device.kind != "tpu":
        return
    if cluster.nodes != "gke":
        raise InputError(
            "a TPU is a node of GKE, and nodes is any", "give --nodes gke, or name a GPU"
        )
    if device.name not in TPUS:
        raise InputError(
            f"{device.name} is not rendered for GKE",
            f"write a machine of {', '.join(TPUS)}: ct5lp-hightpu-4t, topology: 2x2",
        )


def _check_tpus(image: Image, placements: tuple[Placement, ...]) -> None:
    """Raise InputError where an image with TensorFlow cannot use the TPU."""
    if image.accelerator is None:  # another program, which JAX or PyTorch may run
        return
    for placement in placements:
        if placement.device is None or placement.device.name not in TPUS:
            continue
        if nodes.hosts(placement) > 1:
            raise InputError(
                f"topology {placement.topology} has {placement.count} chips, more than one "
                f"{placement.machine}, and TensorFlow runs on one host of a TPU",
                "write a topology of one machine: 1x1, 2x2, or 2x4 on ct5lp-hightpu-8t; or an "
                "image with JAX",
            )


def _check_study(job: Job) -> None:
    if job.study is not None:
        raise InputError(
            "a study is not one JobSet, and no controller of Kubernetes runs it",
            "builder job local runs it on this machine, Vertex AI as a service; or remove study",
        )


def _check_strategy(job: Job, cluster: Cluster) -> None:
    strategy = job.scheduling.strategy
    if strategy != "standard" and cluster.nodes != "gke":
        raise InputError(
            f"{strategy} nodes have no label outside of GKE, and nodes is any",
            "give --nodes gke, or write strategy: standard",
        )


def _check_own(job: Job, cluster: Cluster) -> None:
    options = job.kubernetes
    if options.reservation and cluster.nodes != "gke":
        raise InputError(
            "a reservation is GKE's, and nodes is any", "give --nodes gke, or remove reservation"
        )
    if options.reservation and job.scheduling.strategy != "standard":
        raise InputError(
            f"reserved machines are not {job.scheduling.strategy}",
            "remove reservation, or write scheduling: {strategy: standard}",
        )
    if options.topology and not cluster.queue:
        raise InputError("topology is Kueue's, and no queue is named", "give --queue")


def _check_buckets(job: Job, cluster: Cluster) -> None:
    named = buckets(job)
    if named and cluster.nodes != "gke":
        raise InputError(
            f"/gcs/{named[0]}: a bucket is a folder on GKE alone, and nodes is any",
            f"write gs://{named[0]}, which the trainer reads itself, or give --nodes gke",
        )


def _check_environment(job: Job) -> None:
    if INDEX in job.environment:
        raise InputError(f"{INDEX} cannot be set: Kubernetes sets it", "remove it")
    for name, secret in job.secrets.items():
        if secret.key is None or not re.fullmatch(r"[a-z0-9.-]+", secret.secret):
            what = f"{name}: a Secret of Kubernetes has a name of a-z, 0-9, - and ., and a key"
            raise InputError(what, f"write {name}: {{secret: NAME, key: KEY}}")
    check_no_plain_secrets(
        job,
        "write {name}: {{secret: NAME, key: KEY}}, and make it: kubectl create secret generic NAME "
        "--from-literal=KEY=...",
    )


def _unused(job: Job, image: Image, cluster: Cluster) -> list[str]:
    """Return notes about what the description says and a JobSet does not."""
    notes = [
        f"{name}: Vertex AI's own, not rendered"
        for name in ("network", "tensorboard")
        if getattr(job, name)
    ]
    notes += [f"vertex.{name}: Vertex AI's own, not rendered" for name in job.vertex.written]
    if job.disk.type:
        notes.append("disk.type: the boot disk is the node pool's, not rendered")
    if job.service_account and cluster.service_account is None:
        notes.append(
            f"service_account: {job.service_account} is Google's; --service-account names the "
            "account of Kubernetes that acts as it"
        )
    if image.accelerator is None:
        notes.append("not an image of ours: it may run as root, and may write anywhere")
    return notes


def _hints(
    job: Job, image: Image, placements: tuple[Placement, ...], cluster: Cluster
) -> list[str]:
    """Return notes about what the cluster has to bring for this job."""
    notes = list[str]()
    if cluster.nodes == "gke" and cluster.service_account is None and names_buckets(job):
        notes.append(
            "gs:// without a service account: the pods read and write as the namespace's default "
            "one; --service-account names the one that Workload Identity binds"
        )
    if job.scheduling.max_wait is not None:
        notes.append("max_wait: Vertex AI's own, not rendered; GKE waits up to seven days")
    fast = [
        pool.count
        for pool, placement in zip(job.pools, placements, strict=True)
        if placement.machine.startswith(_FAST_NETWORK)
    ]
    if sum(fast) > 1:
        notes.append(
            f"{sum(fast)} machines with a fast network: without GPUDirect NCCL takes the ordinary "
            "one, at a fraction of its speed: docs/kubernetes.md"
        )
    on_tpu = any(nodes.device(placement) == nodes.TPU for placement in placements)
    if on_tpu and not (job.command or image.entrypoint):
        notes.append(
            "a TPU's driver locks memory, and what the image starts is not known: write command, "
            "or let the program raise the limit itself (resource.RLIMIT_MEMLOCK)"
        )
    return notes
