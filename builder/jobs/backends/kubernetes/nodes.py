"""Which nodes the pods of a role run on, and what they ask of them. Pure functions.

Source: Google Cloud, GKE: About GPUs, Plan TPUs, Spot VMs, Flex-start, Consume reserved resources,
About node sizes.
"""

from __future__ import annotations

from typing import Any, Final

from builder.facts.cuda import OldestDriver
from builder.jobs import machines
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.description import Job
from builder.jobs.machines import Placement, Size

GPU, TPU = "nvidia.com/gpu", "google.com/tpu"
SPOT: Final = "cloud.google.com/gke-spot"
FLEX_START: Final = "cloud.google.com/gke-flex-start"
QUEUED: Final = "cloud.google.com/gke-queued"
"""The taint of nodes that a ProvisioningRequest has brought."""
DRIVER: Final = "nvidia.com/cuda.driver-version.major"
"""The branch of a node's driver, where NVIDIA's GPU feature discovery runs. Source:
NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery, Generated Labels."""
TPUS: Final = {
    "TPU-v5e": "tpu-v5-lite-podslice",
    "TPU-v6e": "tpu-v6e-slice",
    "TPU7x": "tpu7x",
}
"""GKE's names of the TPUs. Source: Google Cloud, GKE, Plan TPUs."""

_CPU_STEPS: Final = ((1, 0.06), (1, 0.01), (2, 0.005), (float("inf"), 0.0025))
_MEMORY_STEPS: Final = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (float("inf"), 0.02))
_EVICTION_GIB: Final = 100 / 1024
"""What GKE keeps of a node: of the first vCPU 6%, of the next 1% and so on; of the first 4 GiB 25%.
From 1.37 on it keeps less memory, never more."""
_OTHERS: Final = 0.1
_OTHERS_CPU, _OTHERS_GIB = 0.5, 1.0
"""What is left to DaemonSets (logging, metrics, drivers, gcsfuse): a tenth, half a vCPU, 1 GiB."""


def device(placement: Placement) -> str | None:
    """Return the resource of an accelerator, None for a machine without one."""
    if placement.device is None:
        return None
    return TPU if placement.device.kind == "tpu" else GPU


def hosts(placement: Placement) -> int:
    """Return how many machines one replica has: several for a larger slice of a TPU."""
    return placement.count // placement.chips if placement.pod else 1


def selection(job: Job, cluster: Cluster, placement: Placement) -> dict[str, Any]:
    """Return a pod's node selector and its tolerations."""
    selector, tolerations = dict[str, str](), list[dict[str, str]]()
    resource, scheduling, options = device(placement), job.scheduling, job.kubernetes
    if resource:
        tolerations.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    if cluster.nodes == "gke":
        selector |= _machine(placement)
        if scheduling.strategy == "spot":
            selector[SPOT] = "true"
            tolerations.append(_tolerated(SPOT, "true", "NoSchedule"))
        if scheduling.strategy == "flex-start":
            selector[FLEX_START] = "true"
            if cluster.queue:  # Kueue asks for all nodes at once
                tolerations.append(_tolerated(QUEUED, "true", "NoSchedule"))
        if options.reservation:
            selector |= _reservation(options.reservation)
    selector |= options.node_selector
    taints = options.tolerations
    tolerations += [_tolerated(taint.key, taint.value, taint.effect) for taint in taints]
    fields: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    return {**fields, "tolerations": tolerations} if tolerations else fields


def affinity(placement: Placement, oldest: OldestDriver | None) -> dict[str, Any]:
    """Return the affinity of a pod with GPUs: no node that says that its driver is too old.

    A node without the label, such as one whose driver GKE has installed, is judged at the start of
    the pod. oldest: the driver for the image's libraries, None where it is not known.
    """
    if device(placement) != GPU or oldest is None:
        return {}
    unknown = {"key": DRIVER, "operator": "DoesNotExist"}
    new_enough = {"key": DRIVER, "operator": "Gt", "values": [str(int(oldest.driver) - 1)]}
    terms = [{"matchExpressions": [expression]} for expression in (unknown, new_enough)]
    required = {"nodeSelectorTerms": terms}  # one of them has to match
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


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
    _, project, _, short = name.split("/") if "/" in name else ("", "", "", name)
    selector = {
        "cloud.google.com/reservation-name": short,
        "cloud.google.com/reservation-affinity": "specific",
    }
    return {**selector, "cloud.google.com/reservation-project": project} if project else selector


def _tolerated(key: str, value: str | None, effect: str | None) -> dict[str, str]:
    toleration = {"key": key, "operator": "Exists" if value is None else "Equal"}
    if value is not None:
        toleration["value"] = value
    return {**toleration, "effect": effect} if effect else toleration


def resources(job: Job, cluster: Cluster, placement: Placement) -> dict[str, Any]:
    """Return what a pod asks for: its accelerators, the disk that the job names, and on GKE most of
    the machine, so that no two replicas share one, and each fits."""
    requests: dict[str, str] = {}
    size = machines.size(placement.machine)
    if cluster.nodes == "gke" and size is not None:
        cpu, memory = requested(size)
        requests |= {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    if "disk" in job.model_fields_set and "size_gb" in job.disk.model_fields_set:
        requests["ephemeral-storage"] = f"{job.disk.size_gb}G"
    fields: dict[str, Any] = {"requests": requests} if requests else {}
    if resource := device(placement):
        count = placement.chips if resource == TPU else placement.count
        fields["limits"] = {resource: str(count)}
    return fields


def requested(size: Size) -> tuple[int, int]:
    """Return the thousandths of a vCPU and the MiB that a pod asks for on a machine of this size:
    what GKE leaves to pods, less what DaemonSets take."""
    cpu = allocatable(size.vcpus, _CPU_STEPS)
    memory = allocatable(size.memory, _MEMORY_STEPS) - _EVICTION_GIB
    cpu, memory = cpu * (1 - _OTHERS) - _OTHERS_CPU, memory * (1 - _OTHERS) - _OTHERS_GIB
    return round(cpu * 1000), round(memory * 1024)


def allocatable(total: float, steps: tuple[tuple[float, float], ...]) -> float:
    """Return what is left of a node's vCPUs or memory, of which GKE keeps a share in steps."""
    rest, left = total, total
    for amount, share in steps:
        left -= min(rest, amount) * share
        rest -= min(rest, amount)
    return left
