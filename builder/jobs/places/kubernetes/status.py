"""A job as a cluster tells it: a JobSet, its Jobs and its pods as one state. Pure functions.

The controllers' words are those of JobSet 0.12 (pkg/constants) and of batch/v1. Each pod has the
labels of its JobSet, of its role and of its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from builder.jobs.places.kubernetes import jobset
from builder.jobs.places.protocol import SERVICE, JobStatus, ReplicaStatus
from builder.jobs.pools import Pool, replica_names

JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
POD_INDEX: Final = "batch.kubernetes.io/job-completion-index"
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


def read(found: Object, jobs: Sequence[Object], pods: Sequence[Object]) -> JobStatus:
    """What a JobSet, its Jobs and its pods say about the job."""
    meta, spec = found["metadata"], found["spec"]
    told = found.get("status") or {}
    labels = dict(meta.get("labels") or {})
    pools = tuple(pool(one) for one in spec["replicatedJobs"])
    mine = sorted(pods, key=_born)
    state, failed = _state(found, jobs, mine), _culprit(jobs, mine)
    ended = state in ("succeeded", "failed", "expired", "cancelled")
    replicas = _replicas(pools, mine, int(told.get("restarts") or 0), ended)
    code = _code(failed) if failed is not None and state == "failed" else None
    number = labels.get(jobset.RUN_LABEL, "1")
    container = _container(spec["replicatedJobs"][0])
    return JobStatus(
        name=f"{meta['namespace']}/{meta['name']}",
        display_name=meta["name"],
        kind="custom",
        state=state,
        region="",
        created=_time(meta.get("creationTimestamp")),
        started=min((one for pod in mine if (one := _began(pod))), default=None),
        ended=_over(found) if ended else None,
        error=_error(found, state, jobs, mine, failed),
        labels=labels,
        image=container["image"],
        output=str((meta.get("annotations") or {}).get(jobset.FOLDER, "")),
        strategy="spot" if _spot(spec["replicatedJobs"][0]) else "standard",
        pools=pools,
        replicas=replicas,
        run=int(number) if number.isdigit() else 1,
        code=code,
    )


def replica_of(pod: Object) -> str:
    """`worker-1`: the replica that a pod, or a measurement of it, belongs to."""
    labels = pod["metadata"].get("labels") or {}
    index = labels.get(POD_INDEX, (pod["metadata"].get("annotations") or {}).get(POD_INDEX))
    return f"{labels[ROLE]}-{index}" if ROLE in labels and index is not None else SERVICE


def message(pods: Iterable[Object]) -> str:
    """The termination message of the newest of these pods that has one."""
    found = ""
    for pod in sorted(pods, key=_born):
        for one in pod.get("status", {}).get("containerStatuses") or []:
            found = (one.get("state", {}).get("terminated") or {}).get("message") or found
    return str(found)


def has_begun(pod: Object) -> bool:
    """Whether a pod's container has run, so that it has a log."""
    return bool(_began(pod))


def has_ended(pod: Object) -> bool:
    """Whether a pod's container will print no more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def condition(found: Object, kind: str) -> Object | None:
    """The condition of this type where it is true."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next(
        (one for one in conditions if one["type"] == kind and one["status"] == "True"), None
    )


# --- the job --------------------------------------------------------------------------------------


def _state(found: Object, jobs: Iterable[Object], pods: Iterable[Object]) -> str:
    running = [one for one in pods if not has_ended(one)]
    if condition(found, "Completed"):
        return "succeeded"
    if CANCELLED in (found["metadata"].get("annotations") or {}):  # what it stops counts as failed
        return "cancelling" if running else "cancelled"
    if condition(found, "Failed"):
        late = any(_failure(one).get("reason") == "DeadlineExceeded" for one in jobs)
        return "expired" if late else "failed"
    if "deletionTimestamp" in found["metadata"]:
        return "cancelling"
    if found["spec"].get("suspend"):
        return "queued"
    return "running" if any(_began(one) for one in pods) else "pending"


def _over(found: Object) -> datetime | None:
    last = condition(found, "Completed") or condition(found, "Failed")
    if last is not None:
        return _time(last.get("lastTransitionTime"))
    return _time((found["metadata"].get("annotations") or {}).get(CANCELLED))


def _error(
    found: Object,
    state: str,
    jobs: Sequence[Object],
    pods: Sequence[Object],
    failed: Object | None,
) -> str:
    """One line about what went wrong, or what the job waits for."""
    if state in ("failed", "expired"):
        told = str((condition(found, "Failed") or {}).get("message", ""))
        why = next((str(one["message"]) for one in map(_failure, jobs) if "message" in one), "")
        parts = [_ended_with(failed) if failed is not None else "", why, told]
        return "; ".join(part for part in parts if part)
    if state in ("pending", "running"):
        return next((said for one in pods if (said := _stuck(one))), "")
    if state == "queued":
        queue = (found["metadata"].get("labels") or {}).get(jobset.QUEUE_LABEL)
        return f"waits in the queue {queue}" if queue else "it is suspended"
    return ""


def _failure(job: Object) -> Object:
    """The condition that says why a Job failed; {} where it did not."""
    return condition(job, "Failed") or condition(job, "FailureTarget") or {}


# --- pods -----------------------------------------------------------------------------------------


def _culprit(jobs: Iterable[Object], pods: Sequence[Object]) -> Object | None:
    """The pod with which the failure began: of the Job that failed first, its last failed pod."""
    broken = [one for one in jobs if _failure(one)]
    broken.sort(key=lambda one: str(_failure(one).get("lastTransitionTime", "")))
    for job in broken:
        name = job["metadata"]["name"]
        mine = [one for one in pods if _of(one) == name and _code(one)]
        if mine:
            return max(mine, key=lambda one: str(_terminated(one).get("finishedAt", "")))
    return None


def _of(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("batch.kubernetes.io/job-name") or labels.get("job-name") or "")


def _ended_with(pod: Object) -> str:
    name, terminated = replica_of(pod), _terminated(pod)
    if terminated.get("reason") == "OOMKilled":
        return f"{name} ran out of memory"
    reason = (pod.get("status") or {}).get("reason")
    return f"{name} ended with exit code {_code(pod)}" + (f" ({reason})" if reason else "")


def _stuck(pod: Object) -> str:
    """Why a pod does not start, "" where it did or may still."""
    for one in (pod.get("status") or {}).get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return f"{replica_of(pod)} finds no node: {one.get('message', '')}"
    for status in _containers(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return f"{replica_of(pod)}: {waiting['reason']}: {waiting.get('message', '')}"
    return ""


def _replicas(
    pools: Iterable[Pool], pods: Sequence[Object], restarts: int, ended: bool
) -> tuple[ReplicaStatus, ...]:
    """Each replica as its newest pod is. restarts: of the whole JobSet."""
    newest: dict[str, Object] = {}
    count: dict[str, int] = {}
    for pod in pods:
        name = replica_of(pod)
        newest[name], count[name] = pod, count.get(name, 0) + 1
    return tuple(
        _replica(name, newest.get(name), restarts + max(0, count.get(name, 0) - 1), ended)
        for name in replica_names(pools)
    )


def _replica(name: str, pod: Object | None, restarts: int, ended: bool) -> ReplicaStatus:
    if pod is None:
        return ReplicaStatus(name, "stopped" if ended else "waiting", None, restarts)
    phase = str((pod.get("status") or {}).get("phase", "Pending"))
    begin, end = _began(pod), _time(_terminated(pod).get("finishedAt"))
    last = end or datetime.now(UTC)
    return ReplicaStatus(
        name,
        _PHASES.get(phase, "running"),
        _code(pod),
        restarts,
        (last - begin).total_seconds() if begin else 0.0,
    )


def _containers(pod: Object) -> list[Object]:
    return list((pod.get("status") or {}).get("containerStatuses") or [])


def _terminated(pod: Object) -> Object:
    found = [(one.get("state") or {}).get("terminated") for one in _containers(pod)]
    return next((one for one in found if one), {})


def _code(pod: Object) -> int | None:
    code = _terminated(pod).get("exitCode")
    return int(code) if code is not None else None


def _began(pod: Object) -> datetime | None:
    running = [(one.get("state") or {}).get("running") for one in _containers(pod)]
    begun = next((one for one in running if one), _terminated(pod))
    return _time(begun.get("startedAt"))


def _born(pod: Object) -> tuple[int, str]:
    labels = pod["metadata"].get("labels") or {}
    return int(labels.get(ATTEMPT, "0")), str(pod["metadata"].get("creationTimestamp", ""))


# --- what was asked for ---------------------------------------------------------------------------


def pool(replicated: Object) -> Pool:
    """What a role was asked to run on."""
    job, template = replicated["template"]["spec"], replicated["template"]
    told = (template.get("metadata") or {}).get("annotations") or {}
    limits = (_container(replicated).get("resources") or {}).get("limits") or {}
    devices = next((int(limits[name]) for name in jobset.DEVICES if name in limits), 0)
    topology = told.get(jobset.TOPOLOGY)
    return Pool(
        role=replicated["name"],
        count=int(job.get("completions", 1)),
        machine=told.get(jobset.MACHINE, ""),
        accelerator=told.get(jobset.ACCELERATOR) if devices else None,
        accelerators=0 if topology else devices,
        topology=topology,
    )


def _container(replicated: Object) -> Object:
    found: Object = replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    return found


def _spot(replicated: Object) -> bool:
    pod = replicated["template"]["spec"]["template"]["spec"]
    return jobset.SPOT in (pod.get("nodeSelector") or {})


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
