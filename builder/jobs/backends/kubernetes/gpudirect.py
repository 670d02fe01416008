"""GPUDirect between the machines of a job: networks, libraries, and a daemon beside the program.

builder/facts/gpudirect.yaml has what each machine needs, and its sources. The daemon is a sidecar
in Kubernetes' sense: it starts before the program and ends with it. Nothing of it was ever run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import InputError
from builder.facts import gpudirect as facts
from builder.facts.gpudirect import Daemon, GpuDirect
from builder.jobs.backends.kubernetes import section
from builder.jobs.backends.kubernetes.volumes import Mount
from builder.jobs.description.job import Job

Sidecar = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Containers beside the program, and the volumes that they alone have."""
GPUS: Final = 8
"""Of each of these machines."""
_PROFILE: Final = (
    'test -r "$0" || { echo "$0 is not there: the nodes have no plugin" >&2; exit 3; };'
    ' . "$0"; exec "$@"'
)


def of(job: Job, machine: str) -> GpuDirect | None:
    """Return what the replicas of a job on a machine need, None where it asks for nothing."""
    return facts.on(machine) if section.of(job).gpudirect else None


def check(job: Job, nodes: str) -> None:
    """Raise InputError where GPUDirect is asked for and cannot be."""
    wanted = section.of(job).gpudirect
    if wanted is None:
        return
    kind, known = facts.on(job.machine), ", ".join(m for k in facts.kinds() for m in k.machines)
    if kind is None:
        raise InputError(f"{job.machine} has no GPUDirect", f"remove it, or write one of {known}")
    if nodes != "gke":
        raise InputError("it needs nodes of GKE, and nodes is any", "give --nodes gke")
    if wanted.networks and len(wanted.networks) != len(kind.networks):
        what = (
            f"{kind.name} has {len(kind.networks)} networks, and {len(wanted.networks)} are named"
        )
        raise InputError(what, "name those of the node pool: kubectl get networks")


def note(job: Job) -> str:
    """Return what a person should know of it."""
    kind = of(job, job.machine)
    if kind is None:
        return ""
    own = f" for NCCL {kind.nccl}" if kind.nccl else ""
    return (
        f"gpudirect: {kind.name} as of Google's plugin {kind.plugin}{own}, which the nodes have to "
        "have; it was never run"
    )


def of_pod(job: Job, kind: GpuDirect) -> dict[str, str]:
    """Return the annotations of a pod: its interfaces, and the devices that its daemon gets."""
    names = _wanted(job).networks or tuple(kind.networks.values())
    pairs = [("eth0", "default"), *zip(kind.networks, names, strict=True)]
    interfaces = [{"interfaceName": name, "network": network} for name, network in pairs]
    devices: dict[str, str] = {}
    if kind.daemon:
        named = [*(f"nvidia{number}" for number in range(GPUS)), *kind.daemon.devices]
        paths = "".join(f"- path: /dev/{name}\n" for name in named)
        devices[f"devices.gke.io/container.{kind.daemon.name}"] = paths
    return {
        **devices,
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(interfaces),
    }


def mounts(kind: GpuDirect) -> list[Mount]:
    """Return what the program's container mounts of its node."""
    return _of_node(kind.mounts)


def sidecar(job: Job, kind: GpuDirect) -> Sidecar:
    """Return the daemon's container and its volumes, nothing for a kind without one."""
    daemon = kind.daemon
    if daemon is None:
        return [], []
    own = _of_node(daemon.mounts)
    known = {mount.name for mount in mounts(kind)}
    beside = [mount.volume for mount in own if mount.name not in known]
    return [_daemon(daemon, _wanted(job), own)], beside


def started(kind: GpuDirect, program: tuple[str, ...]) -> tuple[str, ...]:
    """Return a program that is started with NCCL's variables of the plugin's version."""
    if not kind.profile:
        return program
    return ("/bin/bash", "-c", _PROFILE, kind.profile, *program)


def _daemon(daemon: Daemon, wanted: section.DirectNetworks, own: list[Mount]) -> dict[str, Any]:
    return {
        "name": daemon.name,
        "image": f"{daemon.image}:{wanted.daemon or daemon.version}",
        "restartPolicy": "Always",
        "command": list(daemon.command),
        "env": [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"}],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": list(daemon.capabilities)}},
        "volumeMounts": [each.mount for each in own],
    }


def _of_node(folders: Mapping[str, str]) -> list[Mount]:
    return [
        Mount(f"node{path.replace('/', '-').replace('_', '-')}", {"hostPath": {"path": path}}, at)
        for path, at in folders.items()
    ]


def _wanted(job: Job) -> section.DirectNetworks:
    return section.of(job).gpudirect or section.DirectNetworks.model_validate({})
