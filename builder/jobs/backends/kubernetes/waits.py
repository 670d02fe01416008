"""What holds a job up, in words: its Events, its nodes, the Workload that Kueue made of it.

None of it is needed to run a job, so what may not be read is left out. Sources of the words:
kubernetes, pkg/controller (SuccessfulCreate, FailedCreate), pkg/scheduler (FailedScheduling) and
pkg/controller/nodelifecycle; autoscaler, cluster-autoscaler/processors/status; jobset,
pkg/constants; kueue, apis/kueue, workload_types.go; metrics, pkg/apis/metrics/v1beta1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Object = Mapping[str, Any]
WORKLOAD_OF: Final = "kueue.x-k8s.io/job-uid"
"""The label of a Workload with the uid of its JobSet."""
_CREATED, _REFUSED = "Created pod: ", "Error creating: "
"""Of more than ten alike, client-go writes "(combined from similar events): " before the last."""
_NOT_MADE: Final = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed")
_SCALING: Final = ("TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
USED: Final = ("cpu", "memory")
_RESET: Final = "Reset to Pending after eviction"
"""What a check says then; the eviction has the reason. Source: kueue, pkg/workload/evict."""
_NO_NODE: Final = "FailedScheduling"


@dataclass(frozen=True)
class Around:
    events: Sequence[Object] = ()
    """Of the JobSet, of its Jobs and pods."""
    nodes: Mapping[str, Object] = field(default_factory=dict)
    """By name, those that a pod may have lost."""
    workloads: Sequence[Object] = ()
    """Kueue's of the job; where it says nothing of that, then those of other jobs."""
    metrics: Sequence[Object] = ()
    """What its pods use, of metrics.k8s.io."""

    def created(self, job: Object) -> set[str]:
        """Return the names of the pods that a Job has created, as far as its Events tell."""
        return {
            event["message"].partition(_CREATED)[2]
            for event in self._about(job["metadata"]["name"])
            if _CREATED in event["message"]
            and event["involvedObject"].get("uid") == job["metadata"].get("uid")
        }

    def not_made(self, name: str) -> str:
        """Return why the pods of a Job, or the Jobs of a JobSet, cannot be created."""
        events = (event for event in self._about(name) if event["reason"] in _NOT_MADE)
        message = str(_newest(events).get("message", ""))
        return why_forbidden(message.partition(_REFUSED)[2] or message)

    def held(self, pod: str) -> str:
        """Return the newest warning about a pod: a volume that cannot be mounted, for example."""
        events = (event for event in self._about(pod) if event.get("type") == "Warning")
        event = _newest(events)
        return f"{event['reason']}: {event['message']}" if event else ""

    def scaling(self, pod: str) -> str:
        """Return what the cluster's autoscaler does about a pod that finds no node."""
        events = (event for event in self._about(pod) if event["reason"] in _SCALING)
        return str(_newest(events).get("message", ""))

    def used(self, pod: str, container: str) -> tuple[float | None, int | None]:
        """Return the processors and the bytes of memory that a container uses; None: not known."""
        from kubernetes.utils import parse_quantity

        for item in self.metrics:
            for each in item.get("containers") or () if item["metadata"]["name"] == pod else ():
                if each["name"] == container:
                    cpu, memory = (parse_quantity(each["usage"][kind]) for kind in USED)
                    return float(cpu), int(memory)
        return None, None

    def never_placed(self, job: str) -> tuple[str, str]:
        """Return the pod of a Job, and why it found no node to its end; ("", "") for none."""
        last: dict[str, Object] = {}
        for event in sorted(self.events, key=_time):
            name = event["involvedObject"]["name"]
            if name.startswith(f"{job}-"):
                last[name] = event
        unplaced = {name: event for name, event in last.items() if event["reason"] == _NO_NODE}
        if not unplaced or len(unplaced) < len(last):
            return "", ""
        name, event = next(iter(unplaced.items()))
        return name, unplaced_because(event["message"])

    def away(self, node: str) -> str:
        """Return what is known of a node that does not answer; "" for one that does."""
        ready = _conditions(self.nodes.get(node, {})).get("Ready", {})
        return "" if ready.get("status", "True") == "True" else str(ready.get("message", ""))

    def queue(self) -> str:
        """Return why Kueue has not admitted the job. Of those that ask for the same it looks at
        one, and says nothing of the others (SchedulingEquivalenceHashing, from 0.18 on)."""
        own, *others = self.workloads or [{}]
        if said := _not_admitted(own):
            return said
        for each in others:
            quota = _conditions(each).get("QuotaReserved", {})
            if quota.get("status") == "False" and _asked(each) == _asked(own):
                return f"as another job: {quota['message']}"
        return ""

    def _about(self, name: str) -> Iterator[Object]:
        return (event for event in self.events if event["involvedObject"].get("name") == name)


def _not_admitted(workload: Object) -> str:
    """Return why Kueue has not admitted a Workload: for want of quota, after it took its place
    away, or by a check. "" where it says nothing."""
    conditions = _conditions(workload)
    quota, evicted = (conditions.get(kind, {}) for kind in ("QuotaReserved", "Evicted"))
    words = [quota["message"]] if quota.get("status") == "False" else []
    words.append(evicted.get("message", ""))
    for each in (workload.get("status") or {}).get("admissionChecks") or ():
        message = each.get("message", "")
        if message and each["state"] != "Ready" and not message.startswith(_RESET):
            words.append(f"{each['name']}: {message}")
    return "; ".join(filter(None, dict.fromkeys(words)))


def looked_at(workload: Object) -> bool:
    """Return whether Kueue has looked for a place for a Workload."""
    return "QuotaReserved" in _conditions(workload)


def _conditions(obj: Object) -> dict[str, Object]:
    return {item["type"]: item for item in (obj.get("status") or {}).get("conditions") or ()}


def _asked(workload: Object) -> object:
    """Return what a Workload asks for, and where: what is the same of jobs that are alike."""
    spec = workload.get("spec") or {}
    sets = spec.get("podSets") or ()
    pods = [[one["name"], one.get("count"), one["template"]["spec"]["containers"]] for one in sets]
    sizes = [[*rest, [each.get("resources") for each in own]] for *rest, own in pods]
    return spec.get("queueName"), spec.get("priority"), sizes


def why_forbidden(message: str) -> str:
    """Return why an object is refused, without its name."""
    return message.partition(" is forbidden: ")[2] or message


def unplaced_because(message: str) -> str:
    """Return the scheduler's reason without what it says of preemption: framework/types.go."""
    return re.split(r"[., ]+(?:no new claims to deallocate, )?preemption: ", message)[0]


def _time(event: Object) -> str:
    """Return when an Event was last seen: the scheduler and JobSet write the newer fields."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"].get("creationTimestamp", "")))


def _newest(events: Iterable[Object]) -> Object:
    return max(events, key=_time, default={})
