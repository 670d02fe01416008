"""The pods of one role: environment, volumes and rights; nodes.py says where. Pure functions.

JobSet gives every pod a stable host name, so one TF_CONFIG serves all pods of a role. Only the
index of a pod's task differs, and the kubelet puts that in: it replaces $(NAME) in a variable by
the variables before it in the list. Kubernetes appends JOB_COMPLETION_INDEX at the end unless it is
in the list, so it stands in the list, first. Source: kubernetes, indexed_job_utils.go;
kubernetes/kubernetes#90466.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from builder.core.settings import KubernetesSettings
from builder.jobs.backends.kubernetes import nodes
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready, arguments, given

CONTAINER: Final = "trainer"
INDEX: Final = "JOB_COMPLETION_INDEX"
PORT: Final = 2222
LOCKED_MEMORY: Final = ("/bin/sh", "-c", 'ulimit -l 68719476736 && exec "$@"', "sh")
"""Before a program on a TPU, whose driver locks memory. Only root may raise the limit, with the
capability SYS_RESOURCE; nodes before 1.28.7-gke.1020000 need a privileged pod instead.
Source: Google Cloud, GKE, Deploy TPU workloads, Run without privileged mode."""
_BUCKET: Final = re.compile(r"(?:^|[=:,\s])/gcs/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?=/|$)")
"""A bucket as a folder, as Vertex AI mounts it."""


@dataclass(frozen=True)
class Identity:
    """What differs between two submissions of a job: the object's name, its folder, its labels."""

    name: str
    job_dir: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Role:
    """One role of a job: everything that its pods are made of."""

    ready: Ready
    cluster: KubernetesSettings
    identity: Identity
    pool: Pool
    placement: Placement

    @cached_property
    def buckets(self) -> tuple[str, ...]:
        """Return the buckets that the role names as folders."""
        return buckets(self.ready.job)

    @property
    def read_only(self) -> bool:
        """Tell whether the root is read-only: the smoke test has run the image's program so."""
        return self.ready.image.proven and self.ready.job.command is None

    @property
    def on_tpu(self) -> bool:
        """Tell whether the role's pods have a TPU."""
        return nodes.on_tpu(self.placement)

    @property
    def command(self) -> tuple[str, ...] | None:
        """Return what replaces the image's ENTRYPOINT, None for nothing."""
        command = self.ready.job.command
        if not self.on_tpu:
            return command
        program = command or self.ready.image.entrypoint
        return (*LOCKED_MEMORY, *program) if program else None


def buckets(job: Job) -> tuple[str, ...]:
    """Return the buckets that a job names as folders, /gcs/BUCKET, each once."""
    words = (*job.arguments, *(job.command or ()), *job.variables.values())
    return tuple(dict.fromkeys(name for word in words for name in _BUCKET.findall(word)))


def template(role: Role) -> dict[str, Any]:
    """Return the template of a role's pods."""
    ready, cluster = role.ready, role.cluster
    options, annotations = ready.job.kubernetes, dict[str, str]()
    if role.buckets:
        annotations["gke-gcsfuse/volumes"] = "true"
    for kind in ("required", "preferred"):
        if level := getattr(options.topology, kind, None):
            annotations[f"kueue.x-k8s.io/podset-{kind}-topology"] = level
    metadata = given(labels={**ready.job.labels, **role.identity.labels}, annotations=annotations)
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if ready.image.accelerator is not None and not role.on_tpu:
        security["runAsNonRoot"] = True  # our images name their user by number
    volumes = _volumes(role)
    spec = {
        "restartPolicy": "Never",
        **given(
            serviceAccountName=cluster.service_account,
            imagePullSecrets=[{"name": cluster.pull_secret}] if cluster.pull_secret else None,
            priorityClassName=options.priority,
            terminationGracePeriodSeconds=options.grace,
        ),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **nodes.selection(ready.job, cluster, role.placement),
        "securityContext": security,
        "containers": [_container(role, volumes)],
        "volumes": [volume for volume, _ in volumes],
    }
    return {"metadata": metadata, "spec": spec}


def _volumes(role: Role) -> list[tuple[dict[str, Any], str]]:
    """Return each volume and where it is mounted: memory for /dev/shm, which is 64 MB else, a /tmp
    beside a read-only root, and each bucket that is a folder.

    Source: Google Cloud, GKE, Cloud Storage FUSE CSI driver, ephemeral volumes.
    """
    volumes: list[tuple[dict[str, Any], str]] = [
        ({"name": "shm", "emptyDir": {"medium": "Memory"}}, "/dev/shm")
    ]
    if role.read_only:
        volumes.append(({"name": "tmp", "emptyDir": {}}, "/tmp"))
    options = "implicit-dirs,file-mode=777,dir-mode=777"  # the image's user is not root
    for number, bucket in enumerate(role.buckets):
        attributes = {"bucketName": bucket, "mountOptions": options}
        driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
        volumes.append(({"name": f"bucket-{number}", "csi": driver}, f"/gcs/{bucket}"))
    return volumes


def _container(role: Role, volumes: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    job = role.ready.job
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": role.read_only,
    }
    if role.on_tpu:
        security["runAsUser"] = 0
        security["capabilities"] = {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
    mounts = [{"name": volume["name"], "mountPath": path} for volume, path in volumes]
    return given(
        name=CONTAINER,
        image=role.ready.image.reference,
        command=[_literal(word) for word in role.command or ()],
        args=[_literal(word) for word in arguments(job, role.identity.job_dir)],
        env=_environment(role),
        resources=nodes.resources(job, role.cluster, role.placement),
        volumeMounts=mounts,
        securityContext=security,
    )


# --- environment ----------------------------------------------------------------------------------


def _environment(role: Role) -> list[dict[str, Any]]:
    ready, job_dir = role.ready, role.identity.job_dir
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    promised = role.placement.promise(ready.image.driver)
    values = {name: _literal(value) for name, value in {**promised, **ready.job.variables}.items()}
    if job_dir:
        values["AIP_MODEL_DIR"] = _literal(f"{job_dir}/model/")
        values["AIP_CHECKPOINT_DIR"] = _literal(f"{job_dir}/checkpoints/")
        values["AIP_TENSORBOARD_LOG_DIR"] = _literal(f"{job_dir}/logs/")
    if ready.job.distributed:  # as elsewhere: one replica is no cluster
        values["TF_CONFIG"] = _tf_config(role)
    plain = ({"name": name, "value": value} for name, value in values.items())
    return [index, *plain, *_secrets(ready.job)]


def _secrets(job: Job) -> list[dict[str, Any]]:
    """Return the variables whose values the cluster's Secrets hold."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}}}
        for name, secret in job.secrets.items()
    ]


def _tf_config(role: Role) -> str:
    """Return the cluster and a pod's task in it; its index is put in when the pod starts."""
    name = role.identity.name
    addresses = {
        pool.role: [f"{name}-{pool.role}-0-{index}.{name}:{PORT}" for index in range(pool.count)]
        for pool in role.ready.job.pools
        if pool.role != "evaluator"  # it is never part of the cluster that trains
    }
    reference = f"$({INDEX})"
    task = {"type": role.pool.role, "index": reference}
    config = {"cluster": addresses, "environment": "cloud", "task": task}
    return json.dumps(config).replace(f'"{reference}"', reference)


def _literal(text: str) -> str:
    """Return a text that the kubelet leaves as it is: $(NAME) would be replaced, $$ becomes $."""
    return text.replace("$", "$$")
