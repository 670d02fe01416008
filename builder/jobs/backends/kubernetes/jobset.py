"""A checked job as one JobSet (jobset.x-k8s.io/v1alpha2): plain values for `kubectl apply`.

These functions are pure. Each role is a replicated Job whose pods have an index (pod.py). The
object's name holds the job's key, so that the same description means the same object.
"""

from __future__ import annotations

from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs.backends.kubernetes import nodes, pod
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.backends.kubernetes.pod import CONTAINER, Identity, Role
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool
from builder.jobs.ready import (
    KEY_LABEL,
    KEY_LENGTH,
    NAME_LABEL,
    RUN_LABEL,
    Ready,
    given,
    key_of,
)

API: Final = "jobset.x-k8s.io/v1alpha2"
ATTEMPT_LABEL: Final = "builder-attempt"
"""The label with the number of the submission: one that failed is submitted again by the next."""
OUTPUT: Final = "builder-output"
MACHINE: Final = "builder-machine"
ACCELERATOR: Final = "builder-accelerator"
TOPOLOGY: Final = "builder-topology"
"""Annotations: where a job writes; what each role runs on, in the names of the price table."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
MAX_RUN: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""How long the nodes of a ProvisioningRequest are needed. Source: Google Cloud, GKE, Run a
large-scale workload with flex-start with queued provisioning."""
EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""One Job in each domain of this label: a slice of a TPU is a node pool. Source: JobSet, concepts,
exclusive job to topology placement."""

NUMBERS: Final = 99
"""The most runs of a job, and the most attempts of a run: they stand in its name."""
NAME_LENGTH: Final = 63 - len("-r99-a99") - len("-evaluator-0-999-abcde")
"""A pod's name has 63 characters: the JobSet's, the role, two indexes and five random letters.
JobSet checks that in its webhook only (jobset_webhook.go)."""
RESTARTS: Final = 5
"""Restarts of a replica, or of the whole job: as many as `builder job local` makes."""

_DISRUPTED: Final = "DisruptionTarget"
_FAULTS: Final = [contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE]


def key(ready: Ready, cluster: Cluster) -> str:
    """Return a hash of all that the JobSet asks for: image, machines, arguments, namespace."""
    neutral = Identity(ready.job.id, _job_dir(ready, ready.job.id), {})
    return key_of(_jobset(ready, cluster, neutral))


def folder(ready: Ready, cluster: Cluster, run: int = 1) -> str:
    """Return what replaces {job} in job_dir: the job's name, cut, its key, and a later run."""
    short = ready.job.id[: NAME_LENGTH - KEY_LENGTH - 1].rstrip("-")
    return f"{short}-{key(ready, cluster)}" + (f"-r{run}" if run > 1 else "")


def name(ready: Ready, cluster: Cluster, run: int = 1, attempt: int = 1) -> str:
    """Return the object's name: the folder's, and the attempt's number from the second on.

    All attempts of a run write to one folder. Raises InputError for a number beyond NUMBERS.
    """
    if max(run, attempt) > NUMBERS:
        raise InputError(
            f"{ready.job.id} was submitted {NUMBERS} times already",
            f"kubectl delete jobset -l {KEY_LABEL}={key(ready, cluster)}",
        )
    return folder(ready, cluster, run) + (f"-a{attempt}" if attempt > 1 else "")


def jobset(ready: Ready, cluster: Cluster, run: int = 1, attempt: int = 1) -> dict[str, Any]:
    """Return the JobSet of an attempt of a run. Raises InputError for a number beyond NUMBERS."""
    labels = {
        KEY_LABEL: key(ready, cluster),
        NAME_LABEL: ready.job.id,
        RUN_LABEL: str(run),
        ATTEMPT_LABEL: str(attempt),
    }
    job_dir = _job_dir(ready, folder(ready, cluster, run))
    identity = Identity(name(ready, cluster, run, attempt), job_dir, labels)
    return _jobset(ready, cluster, identity)


def _job_dir(ready: Ready, replacement: str) -> str | None:
    return ready.job.job_dir.replace("{job}", replacement) if ready.job.job_dir else None


def _jobset(ready: Ready, cluster: Cluster, identity: Identity) -> dict[str, Any]:
    queue = given(**{QUEUE_LABEL: cluster.queue})
    metadata = given(
        name=identity.name,
        namespace=cluster.namespace,
        annotations=_annotations(ready, cluster, identity),
        labels={**ready.job.labels, **identity.labels, **queue},
    )
    network = {
        "enableDNSHostnames": True,
        "subdomain": identity.name,
        "publishNotReadyAddresses": True,
    }
    restarts = ready.job.scheduling.restarts
    roles = [
        {
            "name": pool.role,
            "replicas": 1,
            "template": {
                "metadata": {"annotations": _machine(placement)},
                "spec": _job(Role(ready, cluster, identity, pool, placement)),
            },
        }
        for pool, placement in ready.pools
    ]
    spec = given(
        network=network,
        successPolicy={"operator": "All", "targetReplicatedJobs": ["chief"]},
        failurePolicy=_FAILURE_POLICY if restarts == "job" else None,
        ttlSecondsAfterFinished=ready.job.kubernetes.ttl,
        replicatedJobs=roles,
    )
    return {"apiVersion": API, "kind": "JobSet", "metadata": metadata, "spec": spec}


def _annotations(ready: Ready, cluster: Cluster, identity: Identity) -> dict[str, str]:
    annotations = {OUTPUT: identity.job_dir} if identity.job_dir else {}
    if ready.job.scheduling.strategy == "flex-start" and cluster.queue:
        annotations[MAX_RUN] = str(ready.job.scheduling.timeout)
    if any(nodes.hosts(placement) > 1 for placement in ready.placements):
        annotations[EXCLUSIVE] = "cloud.google.com/gke-nodepool"
    return annotations


def _machine(placement: Placement) -> dict[str, str]:
    """Return what a role runs on, for those who ask what the job costs."""
    kind = placement.device.type if placement.device else None
    return given(**{MACHINE: placement.machine, ACCELERATOR: kind, TOPOLOGY: placement.topology})


def _job(role: Role) -> dict[str, Any]:
    """Return the Job of a role."""
    count = role.pool.count * nodes.hosts(role.placement)
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "activeDeadlineSeconds": role.ready.job.scheduling.timeout,
        **_failures(role.ready, role.pool),
        "template": pod.template(role),
    }


# --- failures -------------------------------------------------------------------------------------

_FAILURE_POLICY: Final[dict[str, Any]] = {
    "maxRestarts": RESTARTS,
    "restartStrategy": "BlockingRecreate",  # no old pod is left when the first new one starts
    "rules": [
        {
            "name": "disruption",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [f"has condition {_DISRUPTED} "],
        },
        {
            "name": "fault",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
        },
    ],
}
"""Of `restarts: job`. The first rule that matches counts; a Job that failed otherwise, after its
pod ended with 143 for example, restarts the whole set. Without a policy, a failed Job fails it."""


def _failures(ready: Ready, pool: Pool) -> dict[str, Any]:
    """Return how often a Job's pods start again, and after which ends.

    The first rule that matches counts. Other ends, 143 for example, count towards the limit.
    """
    restarts = ready.job.scheduling.restarts
    if restarts == "never":
        return {"backoffLimit": 0}
    disrupted = {
        "action": "Ignore" if restarts == "worker" else "FailJob",
        "onPodConditions": [{"type": _DISRUPTED, "status": "True"}],
    }
    fault = {
        "action": "FailJob",
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": _FAULTS},
    }
    return {
        "backoffLimit": RESTARTS * pool.count if restarts == "worker" else 0,
        "podFailurePolicy": {"rules": [disrupted, fault]},
    }
