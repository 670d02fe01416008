"""The pods of one role: environment, volumes, rights, and their nodes. Pure functions.

JobSet gives every pod a stable host name, so one TF_CONFIG serves all pods of a role. Only the
index of a pod's task differs, and the kubelet puts that in: it replaces $(NAME) in a variable by
the variables before it in the list. Kubernetes appends JOB_COMPLETION_INDEX at the end unless it is
in the list, so it stands in the list, first. Sources: kubernetes, indexed_job_utils.go;
kubernetes/kubernetes#90466; Google Cloud, GKE: About GPUs, Plan TPUs, Spot VMs, Flex-start, Consume
reserved resources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from builder.facts.gpudirect import GpuDirect
from builder.jobs import machines
from builder.jobs.backends.kubernetes import gpudirect, section, volumes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement, Pool
from builder.jobs.ready import Ready, arguments, given, output_variables, tf_config

CONTAINER: Final = "trainer"
INDEX: Final = "JOB_COMPLETION_INDEX"
PORT: Final = 2222
LOCKED_MEMORY: Final = ("/bin/sh", "-c", 'ulimit -l 68719476736 && exec "$@"', "sh")
"""Before a program on a TPU, whose driver locks memory. Only root may raise the limit, with the
capability SYS_RESOURCE; nodes before 1.28.7-gke.1020000 need a privileged pod instead.
Source: Google Cloud, GKE, Deploy TPU workloads, Run without privileged mode."""


@dataclass(frozen=True)
class JobIdentity:
    """What differs between two submissions of a job: the object's name, its folder, its labels."""

    name: str
    job_dir: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Role:
    """One role of a job: everything that its pods are made of."""

    ready: Ready
    cluster: KubernetesSettings
    identity: JobIdentity
    pool: Pool
    placement: Placement

    @property
    def read_only(self) -> bool:
        """Tell whether the root is read-only: the smoke test has run the image's program so."""
        return self.ready.image.proven and self.ready.job.command is None

    @property
    def resource(self) -> str | None:
        return (TPU if self.placement.on_tpu else GPU) if self.placement.device else None

    @cached_property
    def direct(self) -> GpuDirect | None:
        return gpudirect.of(self.ready.job, self.placement.machine)

    @property
    def command(self) -> tuple[str, ...] | None:
        """Return what replaces the image's ENTRYPOINT, None for nothing."""
        command = self.ready.job.command
        program = command or self.ready.image.entrypoint
        if self.placement.on_tpu:
            return (*LOCKED_MEMORY, *program) if program else None
        return gpudirect.started(self.direct, program) if self.direct and program else command


def template(role: Role) -> dict[str, Any]:
    ready, cluster = role.ready, role.cluster
    options, annotations = section.of(ready.job), dict[str, str]()
    if volumes.buckets(ready.job):
        annotations["gke-gcsfuse/volumes"] = "true"
    for kind in ("required", "preferred"):
        if level := getattr(options.topology, kind, None):
            annotations[f"kueue.x-k8s.io/podset-{kind}-topology"] = level
    if role.direct:
        annotations |= gpudirect.of_pod(ready.job, role.direct)
    metadata = given(labels={**ready.job.labels, **role.identity.labels}, annotations=annotations)
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if ready.image.accelerator is not None and not (role.placement.on_tpu or role.direct):
        security["runAsNonRoot"] = True  # our images name their user by number
    if options.volumes:
        security |= volumes.GROUP
    mounts, (sidecars, beside) = _mounts(role)
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
        **selection(role),
        "securityContext": security,
        **given(initContainers=sidecars),
        "containers": [_container(role, mounts)],
        "volumes": [*(each.volume for each in mounts), *beside],
    }
    return {"metadata": metadata, "spec": spec}


def _mounts(role: Role) -> tuple[list[volumes.Mount], gpudirect.Sidecar]:
    """Return what a pod's program mounts, and what runs beside it."""
    own = volumes.of(role.ready.job, role.read_only)
    if role.direct is None:
        return own, ([], [])
    of_node = gpudirect.mounts(role.direct)
    paths = {each.path for each in of_node}
    kept = [each for each in own if each.path not in paths]
    return [*kept, *of_node], gpudirect.sidecar(role.ready.job, role.direct)


def _container(role: Role, mounts: list[volumes.Mount]) -> dict[str, Any]:
    job = role.ready.job
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": role.read_only,
    }
    if role.placement.on_tpu or role.direct:
        more = ("SYS_RESOURCE",) if role.direct is None else role.direct.capabilities
        security["runAsUser"] = 0
        security["capabilities"] = {"drop": ["ALL"], **given(add=list(more))}
    return given(
        name=CONTAINER,
        image=role.ready.image.reference,
        command=[_literal(word) for word in role.command or ()],
        args=[_literal(word) for word in arguments(job, role.identity.job_dir)],
        env=_environment(role),
        resources=resources(role),
        volumeMounts=[each.mount for each in mounts],
        securityContext=security,
    )


# --- environment ----------------------------------------------------------------------------------


def _environment(role: Role) -> list[dict[str, Any]]:
    ready, job_dir = role.ready, role.identity.job_dir
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    promised = ready.image.promised(role.placement)
    direct = role.direct.environment if role.direct else {}
    plain_values = {**promised, **direct, **ready.job.variables}
    values = {name: _literal(value) for name, value in plain_values.items()}
    if job_dir:
        values |= output_variables(_literal(job_dir))
    if ready.job.distributed:  # as elsewhere: one replica is no cluster
        values["TF_CONFIG"] = _tf_config(role)
    plain = ({"name": name, "value": value} for name, value in values.items())
    return [index, *plain, *_secrets(ready.job)]


def _secrets(job: Job) -> list[dict[str, Any]]:
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
    }
    reference = f"$({INDEX})"
    config = tf_config(addresses, type=role.pool.role, index=reference)
    return config.replace(f'"{reference}"', reference)


def _literal(text: str) -> str:
    """Return a text that the kubelet leaves as it is: $(NAME) would be replaced, $$ becomes $."""
    return text.replace("$", "$$")


# --- nodes ----------------------------------------------------------------------------------------

GPU, TPU = "nvidia.com/gpu", "google.com/tpu"
SPOT: Final = "cloud.google.com/gke-spot"
FLEX_START: Final = "cloud.google.com/gke-flex-start"
QUEUED: Final = "cloud.google.com/gke-queued"
"""The taint of nodes that a ProvisioningRequest has brought."""
TPUS: Final = {
    "TPU-v5e": "tpu-v5-lite-podslice",
    "TPU-v6e": "tpu-v6e-slice",
    "TPU7x": "tpu7x",
}
"""GKE's names of the TPUs. Source: Google Cloud, GKE, Plan TPUs."""
SHARE: Final = 0.6
"""What a pod asks for of its machine: more than half, so that no two share one, and less than GKE
and its DaemonSets leave (Google Cloud, GKE, About node sizes)."""


def selection(role: Role) -> dict[str, Any]:
    selector, tolerations = dict[str, str](), list[dict[str, Any]]()
    strategy, options = role.ready.job.scheduling.strategy, section.of(role.ready.job)
    if role.resource:
        tolerations.append(given(key=role.resource, operator="Exists", effect="NoSchedule"))
    if role.cluster.nodes == "gke":
        selector |= _machine(role.placement)
        if strategy == "spot":
            selector[SPOT] = "true"
            tolerations.append(_tolerated(SPOT, "true", "NoSchedule"))
        if strategy == "flex-start":
            selector[FLEX_START] = "true"
            if role.cluster.queue:  # Kueue asks for all nodes at once
                tolerations.append(_tolerated(QUEUED, "true", "NoSchedule"))
        if options.reservation:
            selector |= _reservation(options.reservation)
    tolerations += [_tolerated(own.key, own.value, own.effect) for own in options.tolerations]
    return given(nodeSelector=selector | options.node_selector, tolerations=tolerations)


def _machine(placement: Placement) -> dict[str, str]:
    kind = placement.device
    if kind is not None and kind.kind == "tpu":
        return {
            "cloud.google.com/gke-tpu-accelerator": TPUS[kind.name],
            "cloud.google.com/gke-tpu-topology": str(placement.topology),
        }
    selector = {"node.kubernetes.io/instance-type": placement.machine}
    if kind is not None:
        # GKE writes the accelerator's name of the API in small letters: nvidia-tesla-v100
        label = str(kind.type).lower().replace("_", "-")
        selector["cloud.google.com/gke-accelerator"] = label
    return selector


def _reservation(name: str) -> dict[str, str]:
    project = re.match(r"projects/([^/]+)/", name)
    return given(
        **{
            "cloud.google.com/reservation-name": name.rpartition("/")[2],
            "cloud.google.com/reservation-affinity": "specific",
            "cloud.google.com/reservation-project": project and project[1],
        }
    )


def _tolerated(key: str, value: str | None, effect: str | None) -> dict[str, Any]:
    operator = "Exists" if value is None else "Equal"
    return given(key=key, operator=operator, value=value, effect=effect)


def resources(role: Role) -> dict[str, Any]:
    """Return what a pod asks for: accelerators, disk, and on GKE else most of the machine."""
    requests: dict[str, str] = {}
    placement, disk = role.placement, role.ready.job.disk.size_gb
    size = machines.size(placement.machine)
    if role.cluster.nodes == "gke" and size is not None:
        vcpus, memory = size
        requests["cpu"] = f"{round(vcpus * SHARE * 1000)}m"
        requests["memory"] = f"{round(memory * SHARE * 1024)}Mi"
    if disk:
        requests["ephemeral-storage"] = f"{disk}G"
    options, limits = section.of(role.ready.job), dict[str, str]()
    for amounts, written in ((requests, options.requests), (limits, options.limits)):
        amounts |= written.model_dump(exclude_none=True) if written else {}
    if role.resource:
        limits[role.resource] = str(placement.chips if placement.on_tpu else placement.count)
    return given(requests=requests, limits=limits)
