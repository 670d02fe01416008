"""Which nodes the pods of a role run on, and what they ask of them. Pure functions.

Source: Google Cloud, GKE: About GPUs, Plan TPUs, Spot VMs, Flex-start, Consume reserved resources.
"""

from __future__ import annotations

import re
from typing import Any, Final

from builder.core.settings import KubernetesSettings
from builder.jobs import machines
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement
from builder.jobs.ready import given

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


def device(placement: Placement) -> str | None:
    """Return the resource of an accelerator, None for a machine without one."""
    if placement.device is None:
        return None
    return TPU if placement.device.kind == "tpu" else GPU


def on_tpu(placement: Placement) -> bool:
    """Tell whether a machine has a TPU."""
    return device(placement) == TPU


def hosts(placement: Placement) -> int:
    """Return how many machines one replica has: several for a larger slice of a TPU."""
    return placement.count // placement.chips if placement.pod else 1


def selection(job: Job, cluster: KubernetesSettings, placement: Placement) -> dict[str, Any]:
    """Return a pod's node selector and its tolerations."""
    selector, tolerations = dict[str, str](), list[dict[str, Any]]()
    strategy, options = job.scheduling.strategy, job.kubernetes
    if resource := device(placement):
        tolerations.append(given(key=resource, operator="Exists", effect="NoSchedule"))
    if cluster.nodes == "gke":
        selector |= _machine(placement)
        if strategy == "spot":
            selector[SPOT] = "true"
            tolerations.append(_tolerated(SPOT, "true", "NoSchedule"))
        if strategy == "flex-start":
            selector[FLEX_START] = "true"
            if cluster.queue:  # Kueue asks for all nodes at once
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


def resources(job: Job, cluster: KubernetesSettings, placement: Placement) -> dict[str, Any]:
    """Return what a pod asks for: its accelerators, the disk that the job names, and on GKE most of
    the machine."""
    requests: dict[str, str] = {}
    size = machines.size(placement.machine)
    if cluster.nodes == "gke" and size is not None:
        vcpus, memory = size
        requests["cpu"] = f"{round(vcpus * SHARE * 1000)}m"
        requests["memory"] = f"{round(memory * SHARE * 1024)}Mi"
    if job.disk.size_gb:
        requests["ephemeral-storage"] = f"{job.disk.size_gb}G"
    resource = device(placement)
    count = placement.chips if resource == TPU else placement.count
    return given(requests=requests, limits={resource: str(count)} if resource else None)
