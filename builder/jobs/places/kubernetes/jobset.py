"""A checked job as one JobSet (jobset.x-k8s.io/v1alpha2): plain values for `kubectl apply`.

These functions are pure. Each role is a replicated Job whose pods have an index. JobSet gives every
pod a stable host name, so one TF_CONFIG serves all pods of a role: only the index of its task
differs, and the kubelet puts that in. It replaces $(NAME) in a variable by the variables before it
in the list, and Kubernetes appends JOB_COMPLETION_INDEX at the end unless it is in the list. So it
stands in the list, first. Source: kubernetes, indexed_job_utils.go; kubernetes/kubernetes#90466.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

from builder import contract
from builder.jobs import expected
from builder.jobs.machines import Placement
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready, arguments

API: Final = "jobset.x-k8s.io/v1alpha2"
KEY_LABEL: Final = "builder-key"
"""The label with the job's key."""
NAME_LABEL: Final = "builder-job"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX: Final = "JOB_COMPLETION_INDEX"

KEY_LENGTH: Final = 12
NAME_LENGTH: Final = 63 - len("-evaluator-0-999-abcde")
"""A pod's name has 63 characters: the JobSet's, the role, two indexes and five random letters.
JobSet checks that in its webhook only (jobset_webhook.go)."""

PORT: Final = 2222
RESTARTS: Final = 5
"""Restarts of a replica, or of the whole job: as many as `builder job local` makes."""

TPUS: Final = {"TPU-v5e": "tpu-v5-lite-podslice"}
"""GKE's names of the TPUs on which TensorFlow runs. Source: Google Cloud, GKE, Plan TPUs."""

_CONTAINER: Final = "trainer"
_DISRUPTED: Final = "DisruptionTarget"
_FAILS: Final = [contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE]


def key(ready: Ready, cluster: Cluster) -> str:
    """A hash of all that the JobSet asks for: image, machines, arguments, namespace, queue."""
    text = json.dumps(_jobset(ready, cluster, ready.job.id, {}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def name(ready: Ready, cluster: Cluster) -> str:
    """The object's name, which also replaces {job} in job_dir: the job's, cut, and its key."""
    short = ready.job.id[: NAME_LENGTH - KEY_LENGTH - 1].rstrip("-")
    return f"{short}-{key(ready, cluster)}"


def jobset(ready: Ready, cluster: Cluster) -> dict[str, Any]:
    """The JobSet."""
    labels = {KEY_LABEL: key(ready, cluster), NAME_LABEL: ready.job.id}
    return _jobset(ready, cluster, name(ready, cluster), labels)


def _jobset(ready: Ready, cluster: Cluster, called: str, own: dict[str, str]) -> dict[str, Any]:
    labels = {**ready.job.labels, **own}
    queue = {QUEUE_LABEL: cluster.queue} if cluster.queue else {}
    spec: dict[str, Any] = {
        "network": {
            "enableDNSHostnames": True,
            "subdomain": called,
            "publishNotReadyAddresses": True,
        },
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["chief"]},
    }
    if ready.job.scheduling.restarts == "job":
        spec["failurePolicy"] = _FAILURE_POLICY
    spec["replicatedJobs"] = [
        {
            "name": pool.role,
            "replicas": 1,
            "template": {"spec": _job(ready, cluster, called, labels, pool, placement)},
        }
        for pool, placement in ready.pools
    ]
    metadata: dict[str, Any] = {"name": called}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {**metadata, "labels": {**labels, **queue}},
        "spec": spec,
    }


# --- failures -------------------------------------------------------------------------------------

_FAILURE_POLICY: Final[dict[str, Any]] = {
    "maxRestarts": RESTARTS,
    "restartStrategy": "BlockingRecreate",  # no pod of before is left when the first new one starts
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
    """How often a Job's pods start again, and after which ends. The first rule that matches counts.

    Other ends than those of the rules, 143 for example, count towards the limit.
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
        "onExitCodes": {"containerName": _CONTAINER, "operator": "In", "values": _FAILS},
    }
    return {
        "backoffLimit": RESTARTS * pool.count if restarts == "worker" else 0,
        "podFailurePolicy": {"rules": [disrupted, fault]},
    }


# --- one role -------------------------------------------------------------------------------------


def _job(
    ready: Ready,
    cluster: Cluster,
    called: str,
    labels: dict[str, str],
    pool: Pool,
    placement: Placement,
) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": pool.count,
        "parallelism": pool.count,
        "activeDeadlineSeconds": ready.job.scheduling.timeout,
        **_failures(ready, pool),
        "template": {
            "metadata": {"labels": labels},
            "spec": _pod(ready, cluster, called, pool, placement),
        },
    }


def _pod(
    ready: Ready, cluster: Cluster, called: str, pool: Pool, placement: Placement
) -> dict[str, Any]:
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    volumes = [memory, *([{"name": "tmp", "emptyDir": {}}] if _read_only(ready) else [])]
    account = {"serviceAccountName": cluster.service_account} if cluster.service_account else {}
    secure: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if ready.image.accelerator is not None:  # ours, which names its user by number
        secure["runAsNonRoot"] = True
    return {
        "restartPolicy": "Never",
        **account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_nodes(ready, cluster, placement),
        "securityContext": secure,
        "containers": [_container(ready, cluster, called, pool, placement)],
        "volumes": volumes,
    }


def _container(
    ready: Ready, cluster: Cluster, called: str, pool: Pool, placement: Placement
) -> dict[str, Any]:
    job, read_only = ready.job, _read_only(ready)
    job_dir = job.job_dir.replace("{job}", called) if job.job_dir else None
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    found: dict[str, Any] = {"name": _CONTAINER, "image": ready.image.reference}
    if job.command is not None:
        found["command"] = [_literal(one) for one in job.command]
    if given := arguments(job, job_dir):
        found["args"] = [_literal(one) for one in given]
    found["env"] = _environment(ready, called, pool, placement, job_dir)
    if resources := _resources(cluster, placement):
        found["resources"] = resources
    return {
        **found,
        "volumeMounts": [*mounts, *([{"name": "tmp", "mountPath": "/tmp"}] if read_only else [])],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": read_only,
        },
    }


def _read_only(ready: Ready) -> bool:
    """Whether the root is read-only: the smoke test has run the image's own program so."""
    return ready.image.proven and ready.job.command is None


# --- environment ----------------------------------------------------------------------------------


def _environment(
    ready: Ready, called: str, pool: Pool, placement: Placement, job_dir: str | None
) -> list[dict[str, Any]]:
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    told = {**expected.on_a_machine(placement, ready.image.cuda), **ready.job.environment}
    values = {name: _literal(value) for name, value in told.items()}
    if job_dir:
        values["AIP_MODEL_DIR"] = _literal(f"{job_dir}/model/")
        values["AIP_CHECKPOINT_DIR"] = _literal(f"{job_dir}/checkpoints/")
        values["AIP_TENSORBOARD_LOG_DIR"] = _literal(f"{job_dir}/logs/")
    if ready.job.distributed:  # as the other places: one replica is no cluster
        values["TF_CONFIG"] = _tf_config(ready, called, pool)
    return [index, *({"name": name, "value": value} for name, value in values.items())]


def _tf_config(ready: Ready, called: str, pool: Pool) -> str:
    """The cluster and a pod's place in it; the index is put in when the pod starts."""
    named = {
        one.role: [f"{called}-{one.role}-0-{index}.{called}:{PORT}" for index in range(one.count)]
        for one in ready.job.pools
        if one.role != "evaluator"  # it is never part of the cluster that trains
    }
    reference = f"$({INDEX})"
    task = {"type": pool.role, "index": reference}
    config = {"cluster": named, "environment": "cloud", "task": task}
    return json.dumps(config).replace(f'"{reference}"', reference)


def _literal(text: str) -> str:
    """The text as the kubelet leaves it: $$ becomes $, and $(NAME) would be replaced."""
    return text.replace("$", "$$")


# --- nodes ----------------------------------------------------------------------------------------


def _nodes(ready: Ready, cluster: Cluster, placement: Placement) -> dict[str, Any]:
    """Which nodes a pod may run on. Source: Google Cloud, GKE, About GPUs, Plan TPUs, Spot VMs."""
    device, selector, tolerated = placement.device, dict[str, str](), list[dict[str, str]]()
    if device is not None:
        tolerated.append(
            {"key": _resource(placement), "operator": "Exists", "effect": "NoSchedule"}
        )
    if cluster.nodes == "gke":
        if device is not None and device.kind == "tpu":
            selector["cloud.google.com/gke-tpu-accelerator"] = TPUS[device.name]
            selector["cloud.google.com/gke-tpu-topology"] = str(placement.topology)
        else:
            selector["node.kubernetes.io/instance-type"] = placement.machine
        if device is not None and device.kind == "gpu":
            # GKE writes the accelerator's name of the API in small letters: nvidia-tesla-v100
            label = str(device.type).lower().replace("_", "-")
            selector["cloud.google.com/gke-accelerator"] = label
        if ready.job.scheduling.strategy == "spot":
            spot = "cloud.google.com/gke-spot"
            selector[spot] = "true"
            tolerated.append(
                {"key": spot, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            )
    found: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    return {**found, "tolerations": tolerated} if tolerated else found


def _resources(cluster: Cluster, placement: Placement) -> dict[str, Any]:
    """The devices; on GKE also more than half of the machine's vCPUs, its name's last number, so
    that no two replicas share a machine, and the system keeps the rest."""
    found: dict[str, Any] = {}
    vcpus = re.search(r"-([0-9]+)$", placement.machine)
    if cluster.nodes == "gke" and vcpus:
        found["requests"] = {"cpu": f"{600 * int(vcpus[1])}m"}
    if placement.device is not None:
        found["limits"] = {_resource(placement): str(placement.count)}
    return found


def _resource(placement: Placement) -> str:
    tpu = placement.device is not None and placement.device.kind == "tpu"
    return "google.com/tpu" if tpu else "nvidia.com/gpu"
