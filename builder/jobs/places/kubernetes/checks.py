"""The checks before a job is rendered for Kubernetes: what a JobSet cannot say is refused here.

The API server and JobSet's webhook check the rest. What only the webhook checks, names, holds by
the way they are made (jobset.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from builder.core.errors import InputError
from builder.jobs.checks import (
    Problems,
    advice,
    check_image,
    check_job_dir,
    fields_of,
    image_field,
    images_of,
    place,
)
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.jobset import INDEX, TPUS, buckets
from builder.jobs.pools import Pool
from builder.jobs.ready import Image, Ready

LARGEST_CLUSTER = 1200
"""Replicas whose host names fit TF_CONFIG: Linux takes 128 KiB for one variable
(MAX_ARG_STRLEN), and an address has at most 105 characters."""


def ready(
    job: Job,
    image: Image,
    cluster: Cluster,
    *,
    targets: Mapping[str, str],
    registry: bool,
    own: Mapping[str, Image] | None = None,
) -> Ready:
    """The job, checked. Raises InputError with every problem, each at its line.

    targets: the accelerator of each target of the project, to suggest one. registry: a registry
    is known, so that a cluster can pull a target's image. own: the images of the roles that have
    one of their own.
    """
    own = own or {}
    problems, notes = Problems(job), list[str]()
    placements: list[Placement] = []
    for pool in job.pools:

        def found(pool: Pool = pool) -> None:
            placements.append(_on(place(pool), cluster))

        problems.attempt(fields_of(job, pool), found)
    for fields, check in (
        (("study",), lambda: _check_study(job)),
        (("job_dir",), lambda: check_job_dir(job)),
        (("replicas",), lambda: _check_replicas(job, placements)),
        (("scheduling", "strategy"), lambda: _check_strategy(job, cluster)),
        (("environment", INDEX), lambda: _check_environment(job)),
        (("arguments",), lambda: _check_buckets(job, cluster)),
        (("image",), lambda: _check_digest(image, registry)),
        (("replicas", "reduction_servers"), lambda: _check_reduction(job)),
    ):
        problems.attempt(fields, check)
    for name, value in job.labels.items():
        problems.attempt(("labels", name), lambda name=name, value=value: _check_label(name, value))  # type: ignore[misc]
    for role, one in own.items():
        problems.attempt(image_field(role), lambda one=one: _check_digest(one, registry))  # type: ignore[misc]
    if len(placements) == len(job.pools):
        draft = Ready(job, image, "", tuple(placements), images=own)
        for named, one, on in images_of(draft):
            problems.attempt(
                named,
                lambda a=one, b=on: notes.extend(check_image(a, b, targets)),  # type: ignore[misc]
            )
    problems.stop()
    notes += [*advice(job), *_unused(job, image, cluster)]
    return Ready(job, image, "", tuple(placements), None, tuple(notes), own)


def _on(found: Placement, cluster: Cluster) -> Placement:
    """The placement, where a pod can have it."""
    device = found.device
    if device is None or device.kind != "tpu":
        return found
    if cluster.nodes != "gke":
        raise InputError(
            "a TPU is a node of GKE, and nodes is any", "give --nodes gke, or name a GPU"
        )
    if device.name not in TPUS:
        raise InputError(
            f"{device.name} is not rendered for GKE",
            "write machine: ct5lp-hightpu-4t, topology: 2x2, without accelerators",
        )
    if found.pod:
        raise InputError(
            f"topology {found.topology} has {found.count} chips, more than one {found.machine}: "
            "TensorFlow on several hosts of a TPU is not rendered",
            "write a topology of one machine: 1x1, 2x2, or 2x4 on ct5lp-hightpu-8t",
        )
    return found


def _check_study(job: Job) -> None:
    if job.study is not None:
        raise InputError(
            "a study is not one JobSet: it is one for each trial",
            "builder job submit --on kubernetes runs it, one JobSet a trial",
        )


def _check_reduction(job: Job) -> None:
    if job.replicas.reduction_servers:
        raise InputError("Reduction Server is Vertex AI's own", "remove reduction_servers")


def _check_replicas(job: Job, placements: list[Placement]) -> None:
    tpu = next((one for one in placements if one.device and one.device.kind == "tpu"), None)
    if tpu is not None and job.distributed:
        raise InputError(f"{tpu.machine} is one replica", "remove replicas")
    count = sum(pool.count for pool in job.pools if pool.role != "evaluator")
    if count > LARGEST_CLUSTER:
        raise InputError(
            f"{count} replicas: their addresses do not fit the variable TF_CONFIG",
            f"write at most {LARGEST_CLUSTER} workers and parameter servers together",
        )


def _check_strategy(job: Job, cluster: Cluster) -> None:
    strategy = job.scheduling.strategy
    if strategy == "flex-start":
        raise InputError("flex-start is not rendered for Kubernetes", "write standard or spot")
    if strategy == "spot" and cluster.nodes != "gke":
        raise InputError(
            "spot nodes have no label outside of GKE, and nodes is any",
            "give --nodes gke, or write strategy: standard",
        )


def _check_buckets(job: Job, cluster: Cluster) -> None:
    named = [one for pool in job.pools for one in buckets(job.of(pool.role))]
    if named and cluster.nodes != "gke":
        raise InputError(
            f"/gcs/{named[0]}: a bucket is a folder on GKE alone, and nodes is any",
            f"write gs://{named[0]}, which the trainer reads itself, or give --nodes gke",
        )


def _check_environment(job: Job) -> None:
    if any(INDEX in job.of(pool.role).environment for pool in job.pools):
        raise InputError(f"{INDEX} cannot be set: Kubernetes sets it", "remove it")


def _check_digest(image: Image, registry: bool) -> None:
    if image.target is not None and not registry:
        raise InputError(
            f"{image.target} is on this machine only: no registry is named",
            'write registry = "HOST/PATH" in builder.toml, then builder image '
            f"{image.target} --push",
        )
    if image.digest is None:
        raise InputError(
            f"{image.reference} is not known by its digest, and kubectl would take the tag",
            f"builder image {image.target} --push, or render with --pushed"
            if image.target
            else "write HOST/PATH@sha256:<digest>, or render with --pushed",
        )


def _check_label(name: str, value: str) -> None:
    if not (name[-1].isalnum() and (not value or (value[0].isalnum() and value[-1].isalnum()))):
        raise InputError(
            f"{name}: {value!r} is no label of Kubernetes",
            "let the name and the value begin and end with a letter or a digit",
        )


def _unused(job: Job, image: Image, cluster: Cluster) -> list[str]:
    """What the description says and a JobSet does not, and what its writer should know."""
    found = [
        f"{name}: Vertex AI's own, not rendered"
        for name in ("network", "tensorboard")
        if getattr(job, name)
    ]
    found += [f"vertex.{name}: Vertex AI's own, not rendered" for name in job.vertex.written]
    if job.disk.type:
        found.append("disk.type: the boot disk is the node pool's, not rendered")
    if job.service_account and cluster.service_account is None:
        found.append(
            f"service_account: {job.service_account} is Google's; --service-account names the "
            "account of Kubernetes that acts as it"
        )
    if image.accelerator is None:
        found.append("not an image of ours: it may run as root, and may write anywhere")
    return found
