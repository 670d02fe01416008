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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs import expected
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.pools import Pool
from builder.jobs.ready import CHOICE_LABEL, Ready, arguments

API: Final = "jobset.x-k8s.io/v1alpha2"
KEY_LABEL: Final = "builder-key"
"""The label with the job's key."""
NAME_LABEL: Final = "builder-job"
RUN_LABEL: Final = "builder-run"
ATTEMPT_LABEL: Final = "builder-attempt"
"""The label with the number of the submission: one that failed is submitted again by the next."""
FOLDER: Final = "builder-output"
MACHINE: Final = "builder-machine"
ACCELERATOR: Final = "builder-accelerator"
TOPOLOGY: Final = "builder-topology"
"""Annotations: where a job writes; what each role runs on, in the names of the price table."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX: Final = "JOB_COMPLETION_INDEX"

KEY_LENGTH: Final = 12
NUMBERS: Final = 99
"""The most runs of a job, and the most attempts of a run: they stand in its name."""
NAME_LENGTH: Final = 63 - len("-r99-a99") - len("-evaluator-0-999-abcde")
"""A pod's name has 63 characters: the JobSet's, the role, two indexes and five random letters.
JobSet checks that in its webhook only (jobset_webhook.go)."""

PORT: Final = 2222
RESTARTS: Final = 5
"""Restarts of a replica, or of the whole job: as many as `builder job local` makes."""

TPUS: Final = {"TPU-v5e": "tpu-v5-lite-podslice"}
"""GKE's names of the TPUs on which TensorFlow runs. Source: Google Cloud, GKE, Plan TPUs."""

CONTAINER: Final = "trainer"
SPOT: Final = "cloud.google.com/gke-spot"
DEVICES: Final = ("nvidia.com/gpu", "google.com/tpu")
_BUCKET: Final = re.compile(r"(?:^|[=:,\s])/gcs/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?=/|$)")
"""A bucket as a folder, as Vertex AI mounts it."""
_DISRUPTED: Final = "DisruptionTarget"
_FAILS: Final = [contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE]


def key(ready: Ready, cluster: Cluster) -> str:
    """A hash of all that the JobSet asks for: image, machines, arguments, namespace, queue. All
    ways to run a job that names alternatives have one key."""
    if ready.group is not None:
        return ready.group
    own = _Written(ready.job.id, _job_dir(ready, ready.job.id), {})
    text = json.dumps(_jobset(ready, cluster, own), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def folder(ready: Ready, cluster: Cluster, run: int = 1) -> str:
    """What replaces {job} in job_dir: the job's name, cut, and its key; a later run's number."""
    short = ready.job.id[: NAME_LENGTH - KEY_LENGTH - 1].rstrip("-")
    return f"{short}-{key(ready, cluster)}" + (f"-r{run}" if run > 1 else "")


def name(ready: Ready, cluster: Cluster, run: int = 1, attempt: int = 1) -> str:
    """The object's name: the folder's, and the attempt's number from the second on.

    All attempts of a run write to one folder. Raises InputError for a number beyond NUMBERS.
    """
    if max(run, attempt) > NUMBERS:
        raise InputError(
            f"{ready.job.id} was submitted {NUMBERS} times already",
            f"kubectl delete jobset -l {KEY_LABEL}={key(ready, cluster)}",
        )
    return folder(ready, cluster, run) + (f"-a{attempt}" if attempt > 1 else "")


def jobset(ready: Ready, cluster: Cluster, run: int = 1, attempt: int = 1) -> dict[str, Any]:
    """The JobSet."""
    labels = {
        KEY_LABEL: key(ready, cluster),
        NAME_LABEL: ready.job.id,
        RUN_LABEL: str(run),
        ATTEMPT_LABEL: str(attempt),
        **({CHOICE_LABEL: ready.choice} if ready.choice else {}),
    }
    called, writes = name(ready, cluster, run, attempt), folder(ready, cluster, run)
    return _jobset(ready, cluster, _Written(called, _job_dir(ready, writes), labels))


@dataclass(frozen=True)
class _Written:
    """What differs between two submissions of a job: the object's name, its folder, its labels."""

    name: str
    job_dir: str | None
    labels: Mapping[str, str]


def job_dir(ready: Ready, cluster: Cluster, run: int = 1) -> str | None:
    """The folder that a run writes to."""
    return _job_dir(ready, folder(ready, cluster, run))


def _job_dir(ready: Ready, called: str) -> str | None:
    return ready.job.job_dir.replace("{job}", called) if ready.job.job_dir else None


def _jobset(ready: Ready, cluster: Cluster, own: _Written) -> dict[str, Any]:
    labels = {**ready.job.labels, **own.labels}
    queue = {QUEUE_LABEL: cluster.queue} if cluster.queue else {}
    spec: dict[str, Any] = {
        "network": {
            "enableDNSHostnames": True,
            "subdomain": own.name,
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
            "template": {
                "metadata": {"annotations": _machine(placement)},
                "spec": _job(_Role(ready.of(pool.role), cluster, own, pool, placement)),
            },
        }
        for pool, placement in ready.pools
    ]
    metadata: dict[str, Any] = {"name": own.name}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    if own.job_dir:
        metadata["annotations"] = {FOLDER: own.job_dir}
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {**metadata, "labels": {**labels, **queue}},
        "spec": spec,
    }


def _machine(placement: Placement) -> dict[str, str]:
    """What a role runs on, for those who ask what the job costs."""
    found = {MACHINE: placement.machine}
    if placement.device is not None and placement.device.type is not None:
        found[ACCELERATOR] = str(placement.device.type)
    if placement.topology is not None:
        found[TOPOLOGY] = placement.topology
    return found


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
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": _FAILS},
    }
    return {
        "backoffLimit": RESTARTS * pool.count if restarts == "worker" else 0,
        "podFailurePolicy": {"rules": [disrupted, fault]},
    }


def buckets(job: Job) -> tuple[str, ...]:
    """The buckets that a job names as folders, /gcs/BUCKET, each once."""
    words = (*job.arguments, *(job.command or ()), *job.environment.values())
    return tuple(dict.fromkeys(one for word in words for one in _BUCKET.findall(word)))


# --- one role -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Role:
    """One role of a job: everything that its pods are made of."""

    ready: Ready
    cluster: Cluster
    own: _Written
    pool: Pool
    placement: Placement

    @property
    def buckets(self) -> tuple[str, ...]:
        """The buckets that the job names as folders."""
        return buckets(self.ready.job)

    @property
    def read_only(self) -> bool:
        """Whether the root is read-only: the smoke test has run the image's own program so."""
        return self.ready.image.proven and self.ready.job.command is None


def _job(role: _Role) -> dict[str, Any]:
    labels = {**role.ready.job.labels, **role.own.labels}
    mounts = {"annotations": {"gke-gcsfuse/volumes": "true"}} if role.buckets else {}
    return {
        "completionMode": "Indexed",
        "completions": role.pool.count,
        "parallelism": role.pool.count,
        "activeDeadlineSeconds": role.ready.job.scheduling.timeout,
        **_failures(role.ready, role.pool),
        "template": {"metadata": {"labels": labels, **mounts}, "spec": _pod(role)},
    }


def _pod(role: _Role) -> dict[str, Any]:
    ready, cluster = role.ready, role.cluster
    found: dict[str, Any] = {"restartPolicy": "Never"}
    if cluster.service_account:
        found["serviceAccountName"] = cluster.service_account
    if cluster.pull_secret:
        found["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    secure: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if ready.image.accelerator is not None:  # ours, which names its user by number
        secure["runAsNonRoot"] = True
    return {
        **found,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_nodes(ready, cluster, role.placement),
        "securityContext": secure,
        "containers": [_container(role)],
        "volumes": _volumes(role),
    }


def _volumes(role: _Role) -> list[dict[str, Any]]:
    """Memory for /dev/shm, a /tmp beside a read-only root, and each bucket that is a folder.

    Source: Google Cloud, GKE, Cloud Storage FUSE CSI driver, ephemeral volumes.
    """
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if role.read_only:
        found.append({"name": "tmp", "emptyDir": {}})
    for number, bucket in enumerate(role.buckets):
        options = "implicit-dirs,file-mode=777,dir-mode=777"  # the image's user is not root
        given = {"bucketName": bucket, "mountOptions": options}
        driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": given}
        found.append({"name": f"bucket-{number}", "csi": driver})
    return found


def _container(role: _Role) -> dict[str, Any]:
    job, image = role.ready.job, role.ready.image
    found: dict[str, Any] = {"name": CONTAINER, "image": image.reference}
    if job.command is not None:
        found["command"] = [_literal(one) for one in job.command]
    if given := arguments(job, role.own.job_dir):
        found["args"] = [_literal(one) for one in given]
    found["env"] = _environment(role)
    if resources := _resources(role):
        found["resources"] = resources
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if role.read_only:
        mounts.append({"name": "tmp", "mountPath": "/tmp"})
    for number, bucket in enumerate(role.buckets):
        mounts.append({"name": f"bucket-{number}", "mountPath": f"/gcs/{bucket}"})
    return {
        **found,
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": role.read_only,
        },
    }


# --- environment ----------------------------------------------------------------------------------


def _environment(role: _Role) -> list[dict[str, Any]]:
    ready, job_dir = role.ready, role.own.job_dir
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    told = {**expected.on_a_machine(role.placement, ready.image.cuda), **ready.job.environment}
    values = {name: _literal(value) for name, value in told.items()}
    if job_dir:
        values["AIP_MODEL_DIR"] = _literal(f"{job_dir}/model/")
        values["AIP_CHECKPOINT_DIR"] = _literal(f"{job_dir}/checkpoints/")
        values["AIP_TENSORBOARD_LOG_DIR"] = _literal(f"{job_dir}/logs/")
    if ready.job.distributed:  # as the other places: one replica is no cluster
        values["TF_CONFIG"] = _tf_config(role)
    return [index, *({"name": name, "value": value} for name, value in values.items())]


def _tf_config(role: _Role) -> str:
    """The cluster and a pod's place in it; the index is put in when the pod starts."""
    called = role.own.name
    named = {
        one.role: [f"{called}-{one.role}-0-{index}.{called}:{PORT}" for index in range(one.count)]
        for one in role.ready.job.pools
        if one.role != "evaluator"  # it is never part of the cluster that trains
    }
    reference = f"$({INDEX})"
    task = {"type": role.pool.role, "index": reference}
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
            selector[SPOT] = "true"
            tolerated.append(
                {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            )
    found: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    return {**found, "tolerations": tolerated} if tolerated else found


def _resources(role: _Role) -> dict[str, Any]:
    """The devices; the disk that the job asks for; on GKE also more than half of the machine's
    vCPUs, its name's last number, so that no two replicas share a machine, and the system keeps the
    rest."""
    requests: dict[str, str] = {}
    placement, job = role.placement, role.ready.job
    vcpus = re.search(r"-([0-9]+)$", placement.machine)
    if role.cluster.nodes == "gke" and vcpus:
        requests["cpu"] = f"{600 * int(vcpus[1])}m"
    if "disk" in job.model_fields_set and "size_gb" in job.disk.model_fields_set:
        requests["ephemeral-storage"] = f"{job.disk.size_gb}G"
    found: dict[str, Any] = {"requests": requests} if requests else {}
    if placement.device is not None:
        found["limits"] = {_resource(placement): str(placement.count)}
    return found


def _resource(placement: Placement) -> str:
    gpu, tpu = DEVICES
    return tpu if placement.device is not None and placement.device.kind == "tpu" else gpu
