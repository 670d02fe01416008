"""The section `kubernetes` of a job's file: what a cluster alone has.

The API server checks the values. Sources of the shapes: the APIs of Kubernetes (PodSpec,
Toleration), of JobSet (ttlSecondsAfterFinished), of Kueue (topology-aware scheduling).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from builder.jobs.description.job import Job
from builder.jobs.description.values import Cpu, Duration, Folder, Kept, Memory, Text, WrittenModel


class Toleration(WrittenModel):
    """A taint of nodes that the job's pods may run on all the same."""

    key: Text = Field(examples=["dedicated"])
    """The taint's key."""

    value: Text | None = Field(None, examples=["training"])
    """The taint's value; by default any."""

    effect: Text | None = Field(None, examples=["NoSchedule"])
    """The taint's effect; by default any."""


class Topology(WrittenModel):
    """How near each other Kueue places the pods of a role; needs a queue."""

    required: Text | None = Field(None, examples=["cloud.google.com/gce-topology-block"])
    """All within one domain of this level; the job waits until there is one."""

    preferred: Text | None = Field(None, examples=["cloud.google.com/gce-topology-block"])
    """All within one domain of this level where there is one."""


class Amounts(WrittenModel):
    """CPU and memory of a pod, as Kubernetes writes quantities."""

    cpu: Cpu | None = Field(None, examples=["4"])
    """Processors: 4, 0.5 or 500m."""

    memory: Memory | None = Field(None, examples=["16Gi"])
    """Memory: 16Gi or 512Mi."""


class Volume(WrittenModel):
    """A persistent volume, by its claim in the namespace."""

    claim: Text = Field(examples=["runs"])
    """The PersistentVolumeClaim."""

    read_only: bool = Field(False, examples=[True])
    """Nobody writes to it, so that any number of nodes may mount it."""


def _volume(value: object) -> object:
    """Return {claim: runs} for `runs`."""
    return {"claim": value} if isinstance(value, str) else value


_Volume = Annotated[Volume, BeforeValidator(_volume, json_schema_input_type=Volume | str)]


class DirectNetworks(WrittenModel):
    """GPUDirect between machines with H100, H200 or B200: what Google's plugin needs in a pod."""

    networks: tuple[Text, ...] = Field((), examples=[["gpu-nic-0", "gpu-nic-1"]])
    """The node pool's networks, in the order of their interfaces; by default as Google's guide
    names them: vpc1 to vpc4, vpc1 to vpc8, rdma-0 to rdma-7."""

    daemon: Text | None = Field(None, examples=["v1.0.21"])
    """The version of the plugin's daemon, which belongs to that of the plugin on the nodes."""


def _gpudirect(value: object) -> object:
    """Return {} for `true`, and None for `false`."""
    return {"true": {}, "false": None}.get(value, value) if isinstance(value, str) else value


_GpuDirect = Annotated[
    DirectNetworks | None, BeforeValidator(_gpudirect, json_schema_input_type=DirectNetworks | bool)
]


class KubernetesSection(WrittenModel):
    """What only a cluster has: priority, volumes, node selectors, tolerations, topology."""

    priority: Text | None = Field(None, examples=["high"])
    """A PriorityClass of the cluster."""

    ttl: Kept | None = Field(None, examples=["7d"])
    """How long the ended job stays there, with its logs, at least 5m; by default until it is
    deleted."""

    grace: Duration | None = Field(None, examples=["5m"])
    """How long a pod may take to end after SIGTERM: as long as a checkpoint takes; by default 30s.
    GKE grants a spot machine 25s."""

    requests: Amounts | None = Field(None, examples=[{"cpu": "4", "memory": "16Gi"}])
    """What each pod asks for; by default most of its machine on GKE, else nothing."""

    limits: Amounts | None = Field(None, examples=[{"memory": "32Gi"}])
    """What each pod may use at most, where a quota asks for that; by default no limit."""

    node_selector: dict[str, Text] = Field({}, examples=[{"pool": "gpus"}])
    """Labels that a node has to have, besides those that the machine asks for."""

    tolerations: tuple[Toleration, ...] = Field(
        (), examples=[[{"key": "dedicated", "value": "training"}]]
    )
    """Taints that the pods tolerate, besides those of the accelerator."""

    volumes: dict[Folder, _Volume] = Field({}, examples=[{"/mnt/runs": "runs"}])
    """Persistent volumes: where each pod mounts it, and its claim."""

    reservation: Text | None = Field(None, examples=["projects/my-project/reservations/mine"])
    """A reservation of Compute Engine, whose machines the job runs on. GKE alone."""

    gpudirect: _GpuDirect = Field(None, examples=["true"])
    """NCCL reaches the network through GPUDirect: TCPX, TCPXO or RDMA, as the machine has it. GKE
    alone."""

    topology: Topology | None = Field(
        None, examples=[{"preferred": "cloud.google.com/gce-topology-block"}]
    )
    """How near each other Kueue places the pods."""


def of(job: Job) -> KubernetesSection:
    return job.section("kubernetes", KubernetesSection)
