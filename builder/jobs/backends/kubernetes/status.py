"""What a cluster says about a job: a JobSet, its Jobs and pods as one state.

The controllers' words are those of JobSet 0.12 (pkg/constants) and of batch/v1. Each pod has the
labels of its JobSet, of its role and of its index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from builder.jobs.backends.kubernetes import jobset
from builder.jobs.backends.kubernetes.pod import CONTAINER, GPU
from builder.jobs.backends.kubernetes.waits import Around, Object, unplaced_because
from builder.jobs.backends.protocol import JobStatus, ReplicaStatus
from builder.jobs.machines import Pool, replica_names
from builder.jobs.ready import RUN_LABEL, number_of

JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
POD_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB: Final = "batch.kubernetes.io/job-name"

NOTHING: Final = Around()
_PHASES: Final = {"Pending": "waiting", "Succeeded": "succeeded", "Failed": "failed"}
_STARTING: Final = ("ContainerCreating", "PodInitializing")
"""Why a container waits that will start by itself. Source: kubernetes, pkg/kubelet."""


@dataclass(frozen=True)
class PodStatus:
    name: str
    replica: str
    job: str
    """The name of its Job."""
    node: str
    phase: str
    started: datetime | None
    end: datetime | None
    code: int | None
    ended: str
    """How, "" before its end."""
    stuck: str
    """Why it does not start, "" where it did or may still."""
    leaves: str
    """Why its node loses it, "" for nothing."""
    ready: bool
    """False where the cluster says that nobody hears of it."""
    gpus: int

    @property
    def failed(self) -> bool:
        return bool(self.code or (self.ended and self.code is None))

    @property
    def doubtful(self) -> bool:
        return self.phase == "Running" and bool(self.leaves or not self.ready)

    @property
    def waits(self) -> bool:
        """Whether it has a node and no container: an image, a volume or a network is missing."""
        return self.phase == "Pending" and not self.stuck

    @classmethod
    def read(cls, obj: Object) -> PodStatus:
        labels, status = obj["metadata"].get("labels") or {}, obj.get("status") or {}
        replica = f"{labels.get(ROLE)}-{labels.get(POD_INDEX)}"
        named = {
            item["name"]: item.get("state") or {} for item in status.get("containerStatuses", ())
        }
        state = named.get(CONTAINER, {})
        terminated, waiting = state.get("terminated") or {}, state.get("waiting") or {}
        code, how = terminated.get("exitCode"), ""
        if code is None and status.get("phase") == "Failed" and status.get("reason"):
            # The kubelet turned it away, or it was evicted: no container has a state.
            message = f": {status['message']}" if status.get("message") else ""
            how = f"{replica} was not run: {status['reason']}{message}"
        if code is not None:
            reason = f" ({status['reason']})" if status.get("reason") else ""
            how = f"{replica} ended with exit code {code}{reason}"
        if terminated.get("reason") == "OOMKilled":
            how = f"{replica} ran out of memory"
        unscheduled = _condition(obj, "PodScheduled", "False")
        why = unplaced_because(unscheduled.get("message", ""))
        stuck = f"{replica} finds no node: {why}" if unscheduled else ""
        if waiting.get("reason", _STARTING[0]) not in _STARTING:
            stuck = f"{replica}: {waiting['reason']}: {waiting.get('message', '')}"
        taken = _condition(obj, "DisruptionTarget") if code is None else {}
        containers = (obj.get("spec") or {}).get("containers") or [{}]
        asked: Object = containers[0].get("resources") or {}
        return cls(
            name=obj["metadata"]["name"],
            replica=replica,
            job=str(labels.get(JOB)),
            node=str((obj.get("spec") or {}).get("nodeName", "")),
            phase=str(status.get("phase", "Pending")),
            started=_time((state.get("running") or terminated).get("startedAt")),
            end=_time(terminated.get("finishedAt")),
            code=code,
            ended=how,
            stuck=stuck,
            leaves=": ".join(filter(None, (taken.get("reason"), taken.get("message")))),
            ready=not _condition(obj, "Ready", "False"),
            gpus=int((asked.get("limits") or {}).get(GPU, 0)),
        )


def read(
    obj: Object, jobs: Sequence[Object], pods: Sequence[Object], around: Around = NOTHING
) -> JobStatus:
    meta, spec = obj["metadata"], obj["spec"]
    labels = dict(meta.get("labels") or {})
    pools = tuple(
        Pool(role["name"], int(role["template"]["spec"].get("completions", 1)))
        for role in spec["replicatedJobs"]
    )
    ordered = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    known = [PodStatus.read(pod) for pod in ordered]
    state, culprit = _state(obj, jobs, known), _culprit(jobs, known)
    last = _condition(obj, "Completed") or _condition(obj, "Failed")
    chief = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return JobStatus(
        name=f"{meta['namespace']}/{meta['name']}",
        display_name=meta["name"],
        state=state,
        created=_time(meta.get("creationTimestamp")),
        started=min((pod.started for pod in known if pod.started), default=None),
        ended=_time(last.get("lastTransitionTime")),
        error=_error(obj, state, jobs, known, culprit, around),
        labels=labels,
        image=chief["containers"][0]["image"],
        output=str((meta.get("annotations") or {}).get(jobset.OUTPUT, "")),
        pools=pools,
        replicas=_replicas(pools, known, bool(last), _starts(obj, jobs, known, around), around),
        run=number_of(labels, RUN_LABEL),
        attempt=number_of(labels, jobset.ATTEMPT_LABEL),
        failed_code=culprit.code if culprit and state == "failed" else None,
    )


def _condition(obj: Object, kind: str, status: str = "True") -> Object:
    conditions = (obj.get("status") or {}).get("conditions") or []
    fitting = (item for item in conditions if (item["type"], item["status"]) == (kind, status))
    return next(fitting, {})


def _state(obj: Object, jobs: Iterable[Object], pods: Iterable[PodStatus]) -> str:
    if _condition(obj, "Completed"):
        return "succeeded"
    if _condition(obj, "Failed"):
        late = any(_failure(job).get("reason") == "DeadlineExceeded" for job in jobs)
        return "expired" if late else "failed"
    if "deletionTimestamp" in obj["metadata"]:
        return "cancelling"
    if obj["spec"].get("suspend"):
        return "queued"
    return "running" if any(pod.started for pod in pods) else "pending"


def _error(
    obj: Object,
    state: str,
    jobs: Sequence[Object],
    pods: Sequence[PodStatus],
    culprit: PodStatus | None,
    around: Around,
) -> str:
    """Return one line about what went wrong, or what the job waits for."""
    if state in ("failed", "expired"):
        messages = (str(_failure(job).get("message", "")) for job in jobs)
        why = next((message for message in messages if message), "")
        last = str(_condition(obj, "Failed").get("message", ""))
        first = culprit.ended if culprit else _never_ran(jobs, pods, around)
        return "; ".join(filter(None, (first, why, last)))
    if state in ("pending", "running"):
        return next(filter(None, _holds(obj, jobs, pods, around)), "")
    if state == "queued":
        queue = (obj["metadata"].get("labels") or {}).get(jobset.QUEUE_LABEL)
        where = f"waits in the queue {queue}" if queue else "it is suspended"
        return ": ".join(filter(None, (where, around.queue())))
    return ""


def _holds(
    obj: Object, jobs: Sequence[Object], pods: Sequence[PodStatus], around: Around
) -> Iterator[str]:
    """Yield what holds an active job up, the most telling first; "" for nothing."""
    for pod in (each for each in pods if each.doubtful):
        if away := around.away(pod.node):
            yield f"{pod.replica}: its node {pod.node} does not answer: {away}"
        if pod.leaves:
            yield f"{pod.replica}: its node {pod.node} gives it up: {pod.leaves}"
    for pod in pods:
        yield "; ".join(filter(None, (pod.stuck, pod.stuck and around.scaling(pod.name))))
    for job in jobs:
        name, spec = job["metadata"]["name"], job["spec"]
        there = sum(pod.job == name and not pod.ended for pod in pods)
        if there < int(spec.get("parallelism", 1)) and (why := around.not_made(name)):
            role = job["metadata"]["labels"].get(ROLE)
            yield f"the pods of {role} cannot be created: {why}"
    if not jobs and (why := around.not_made(obj["metadata"]["name"])):
        yield f"its Jobs cannot be created: {why}"
    for pod in pods:
        if pod.waits and (why := around.held(pod.name)):
            yield f"{pod.replica}: {why}"


def _never_ran(jobs: Iterable[Object], pods: Iterable[PodStatus], around: Around) -> str:
    """Return why no pod of an ended job has ever run; "" where one has, or nobody knows."""
    for job in jobs:
        name = job["metadata"]["name"]
        if any(pod.job == name for pod in pods):
            continue
        if why := around.not_made(name):
            return f"it never ran: its pods cannot be created: {why}"
        pod, why = around.never_placed(name)
        if pod:
            return f"it never ran: {pod} finds no node: {why}"
    return ""


def _failure(job: Object) -> Object:
    return _condition(job, "Failed") or _condition(job, "FailureTarget")


def _culprit(jobs: Iterable[Object], pods: Sequence[PodStatus]) -> PodStatus | None:
    """Return the pod with which a failure began: the last to fail of the Job that failed first."""
    failed = [job for job in jobs if _failure(job)]
    for job in sorted(failed, key=lambda job: str(_failure(job).get("lastTransitionTime", ""))):
        ended = [pod for pod in pods if pod.job == job["metadata"]["name"] and pod.failed]
        if ended:
            return max(ended, key=lambda pod: str(pod.end))
    return None


def _starts(
    obj: Object, jobs: Iterable[Object], pods: Iterable[PodStatus], around: Around
) -> Counter[str]:
    """Return how often each replica was started: a lost node, an eviction and a suspension delete
    its pod, so the Events of the Job count, too, and the restarts of the whole JobSet."""
    names = {pod.name: pod.replica for pod in pods}
    for job in jobs:
        role = (job["metadata"].get("labels") or {}).get(ROLE)
        for name in around.created(job):
            index = name.removeprefix(f"{job['metadata']['name']}-").partition("-")[0]
            names[name] = f"{role}-{index}"
    starts = Counter(names.values())
    starts.update(dict.fromkeys(starts, int((obj.get("status") or {}).get("restarts") or 0)))
    return starts


def _replicas(
    pools: Iterable[Pool],
    pods: Sequence[PodStatus],
    ended: bool,
    starts: Counter[str],
    around: Around,
) -> tuple[ReplicaStatus, ...]:
    newest, now = {pod.replica: pod for pod in pods}, datetime.now(UTC)
    replicas = []
    for name in replica_names(pools):
        restarts = max(starts[name] - 1, 0)
        if (pod := newest.get(name)) is None:
            state = "stopped" if ended else "waiting"
            replicas.append(ReplicaStatus(name, state, restarts=restarts))
            continue
        seconds = ((pod.end or now) - pod.started).total_seconds() if pod.started else 0.0
        state = _PHASES.get(pod.phase, "running")
        used = around.used(pod.name, CONTAINER)
        own = (restarts, seconds, *used, pod.gpus)
        replicas.append(ReplicaStatus(name, state, pod.code, *own))
    return tuple(replicas)


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
