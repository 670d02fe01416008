"""What a cluster says about a job: a JobSet, its Jobs and its pods as one state. Pure functions.

The controllers' words are those of JobSet 0.12 (pkg/constants) and of batch/v1. Each pod has the
labels of its JobSet, of its role and of its index.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from builder.jobs.backends.kubernetes import jobset
from builder.jobs.backends.kubernetes.nodes import FLEX_START, GPU, SPOT, TPU
from builder.jobs.backends.protocol import SERVICE, JobStatus, ReplicaStatus
from builder.jobs.pools import Pool, replica_names
from builder.jobs.ready import RUN_LABEL, number_of

JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"
POD_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB: Final = "batch.kubernetes.io/job-name"
CANCELLED: Final = "builder-cancelled"
"""The annotation with the time at which somebody cancelled the job."""

Object = Mapping[str, Any]
_PHASES: Final = {"Pending": "waiting", "Succeeded": "succeeded", "Failed": "failed"}
_STUCK: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Why a container waits that will not start by itself. Source: kubernetes, pkg/kubelet."""


def read(obj: Object, jobs: Sequence[Object], pods: Sequence[Object]) -> JobStatus:
    """Return what a JobSet, its Jobs and its pods say about the job."""
    meta, spec = obj["metadata"], obj["spec"]
    labels = dict(meta.get("labels") or {})
    pools = tuple(_pool(role) for role in spec["replicatedJobs"])
    pods = sorted(pods, key=_age)
    state, culprit = _state(obj, jobs, pods), _culprit(jobs, pods)
    ended = state in ("succeeded", "failed", "expired", "cancelled")
    restarts = int((obj.get("status") or {}).get("restarts") or 0)
    chief = _pod_spec(spec["replicatedJobs"][0])
    return JobStatus(
        name=f"{meta['namespace']}/{meta['name']}",
        display_name=meta["name"],
        state=state,
        created=_time(meta.get("creationTimestamp")),
        started=min((start for pod in pods if (start := _started(pod))), default=None),
        ended=_end(obj) if ended else None,
        error=_error(obj, state, jobs, pods, culprit),
        labels=labels,
        image=chief["containers"][0]["image"],
        output=str((meta.get("annotations") or {}).get(jobset.OUTPUT, "")),
        strategy=_strategy(chief),
        pools=pools,
        replicas=_replicas(pools, pods, restarts, ended),
        run=number_of(labels, RUN_LABEL),
        failed_code=_code(culprit) if culprit is not None and state == "failed" else None,
    )


def replica_of(pod: Object) -> str:
    """Return the replica that a pod plays: `worker-1`."""
    labels = pod["metadata"].get("labels") or {}
    role, index = labels.get(ROLE), labels.get(POD_INDEX)
    return f"{role}-{index}" if role and index is not None else SERVICE


def has_started(pod: Object) -> bool:
    """Tell whether a pod's container has run, so that it has a log."""
    return _started(pod) is not None


def has_ended(pod: Object) -> bool:
    """Tell whether a pod's container will print no more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


# --- the job --------------------------------------------------------------------------------------


def _condition(obj: Object, kind: str) -> Object:
    """Return the condition of this type where it is true, else {}."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    true = (item for item in conditions if item["type"] == kind and item["status"] == "True")
    return next(true, {})


def _state(obj: Object, jobs: Iterable[Object], pods: Iterable[Object]) -> str:
    running = any(not has_ended(pod) for pod in pods)
    if _condition(obj, "Completed"):
        return "succeeded"
    if CANCELLED in (obj["metadata"].get("annotations") or {}):  # its pods count as failed
        return "cancelling" if running else "cancelled"
    if _condition(obj, "Failed"):
        late = any(_failure(job).get("reason") == "DeadlineExceeded" for job in jobs)
        return "expired" if late else "failed"
    if "deletionTimestamp" in obj["metadata"]:
        return "cancelling"
    if obj["spec"].get("suspend"):
        return "queued"
    return "running" if any(has_started(pod) for pod in pods) else "pending"


def _end(obj: Object) -> datetime | None:
    last = _condition(obj, "Completed") or _condition(obj, "Failed")
    annotations = obj["metadata"].get("annotations") or {}
    return _time(last.get("lastTransitionTime") or annotations.get(CANCELLED))


def _error(
    obj: Object,
    state: str,
    jobs: Sequence[Object],
    pods: Sequence[Object],
    culprit: Object | None,
) -> str:
    """Return one line about what went wrong, or what the job waits for."""
    if state in ("failed", "expired"):
        messages = (str(_failure(job).get("message", "")) for job in jobs)
        why = next((message for message in messages if message), "")
        last = str(_condition(obj, "Failed").get("message", ""))
        parts = [_ended_with(culprit) if culprit is not None else "", why, last]
        return "; ".join(part for part in parts if part)
    if state in ("pending", "running"):
        return next((why for pod in pods if (why := _stuck(pod))), "")
    if state == "queued":
        queue = (obj["metadata"].get("labels") or {}).get(jobset.QUEUE_LABEL)
        return f"waits in the queue {queue}" if queue else "it is suspended"
    return ""


def _failure(job: Object) -> Object:
    """Return the condition that says why a Job failed; {} where it did not."""
    return _condition(job, "Failed") or _condition(job, "FailureTarget")


def _culprit(jobs: Iterable[Object], pods: Sequence[Object]) -> Object | None:
    """Return the pod with which the failure began: the last failed pod of the Job that failed
    first."""
    failed = [job for job in jobs if _failure(job)]
    for job in sorted(failed, key=lambda job: str(_failure(job).get("lastTransitionTime", ""))):
        name = job["metadata"]["name"]
        of_job = (pod for pod in pods if pod["metadata"]["labels"].get(JOB) == name)
        if ended := [pod for pod in of_job if _code(pod)]:
            return max(ended, key=lambda pod: str(_terminated(pod).get("finishedAt", "")))
    return None


# --- pods -----------------------------------------------------------------------------------------


def _ended_with(pod: Object) -> str:
    name = replica_of(pod)
    if _terminated(pod).get("reason") == "OOMKilled":
        return f"{name} ran out of memory"
    reason = (pod.get("status") or {}).get("reason")
    return f"{name} ended with exit code {_code(pod)}" + (f" ({reason})" if reason else "")


def _stuck(pod: Object) -> str:
    """Return why a pod does not start, "" where it did or may still."""
    for item in (pod.get("status") or {}).get("conditions") or []:
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return f"{replica_of(pod)} finds no node: {item.get('message', '')}"
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return f"{replica_of(pod)}: {waiting['reason']}: {waiting.get('message', '')}"
    return ""


def _replicas(
    pools: Iterable[Pool], pods: Sequence[Object], restarts: int, ended: bool
) -> tuple[ReplicaStatus, ...]:
    """Return each replica as its newest pod is. restarts: of the whole JobSet."""
    newest = {replica_of(pod): pod for pod in pods}
    count = Counter(map(replica_of, pods))
    more = sorted(name for name in newest if name != SERVICE)  # the hosts of a slice of a TPU
    return tuple(
        _replica(name, newest.get(name), restarts + max(0, count[name] - 1), ended)
        for name in dict.fromkeys([*replica_names(pools), *more])
    )


def _replica(name: str, pod: Object | None, restarts: int, ended: bool) -> ReplicaStatus:
    if pod is None:
        return ReplicaStatus(name, "stopped" if ended else "waiting", None, restarts)
    phase = str((pod.get("status") or {}).get("phase", "Pending"))
    start, end = _started(pod), _time(_terminated(pod).get("finishedAt")) or datetime.now(UTC)
    seconds = (end - start).total_seconds() if start else 0.0
    return ReplicaStatus(name, _PHASES.get(phase, "running"), _code(pod), restarts, seconds)


def _containers(pod: Object) -> list[Object]:
    return list((pod.get("status") or {}).get("containerStatuses") or [])


def _terminated(pod: Object) -> Object:
    states = ((item.get("state") or {}).get("terminated") for item in _containers(pod))
    return next((state for state in states if state), {})


def _code(pod: Object) -> int | None:
    code = _terminated(pod).get("exitCode")
    return int(code) if code is not None else None


def _started(pod: Object) -> datetime | None:
    states = ((item.get("state") or {}).get("running") for item in _containers(pod))
    state = next((state for state in states if state), None) or _terminated(pod)
    return _time(state.get("startedAt"))


def _age(pod: Object) -> tuple[int, str]:
    """Return a key that sorts pods, those of an earlier restart of the JobSet first."""
    meta = pod["metadata"]
    return int((meta.get("labels") or {}).get(RESTART, "0")), str(meta.get("creationTimestamp", ""))


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


# --- what was asked for ---------------------------------------------------------------------------


def _strategy(pod: Object) -> str:
    selector = pod.get("nodeSelector") or {}
    return "spot" if SPOT in selector else "flex-start" if FLEX_START in selector else "standard"


def _pool(role: Object) -> Pool:
    """Return what a role was asked to run on."""
    annotations = (role["template"].get("metadata") or {}).get("annotations") or {}
    limits = (_pod_spec(role)["containers"][0].get("resources") or {}).get("limits") or {}
    devices = next((int(limits[name]) for name in (GPU, TPU) if name in limits), 0)
    topology = annotations.get(jobset.TOPOLOGY)
    chips = math.prod(int(side) for side in topology.split("x")) if topology else devices
    hosts = max(1, chips // devices) if devices else 1
    return Pool(
        role=role["name"],
        count=int(role["template"]["spec"].get("completions", 1)) // hosts,
        machine=annotations.get(jobset.MACHINE, ""),
        accelerator=annotations.get(jobset.ACCELERATOR) if devices else None,
        accelerators=0 if topology else devices,
        topology=topology,
    )


def _pod_spec(role: Object) -> Object:
    spec: Object = role["template"]["spec"]["template"]["spec"]
    return spec
