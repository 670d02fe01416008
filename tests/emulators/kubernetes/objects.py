"""What a cluster keeps: objects, events and logs, and what JobSet's controller makes of a JobSet.

Pods do at once what a test says (`Script`); no controller runs beside the test. Names, labels and
conditions are those of jobset/pkg/controllers and kubernetes/pkg/controller/job.
"""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
PREFIX = "jobset.sigs.k8s.io"
ROLE, INDEX = f"{PREFIX}/replicatedjob-name", "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"


@dataclass(eq=False)
class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, reason, message; name: the object that it is about."""

    code: int
    reason: str
    message: str
    name: str = ""


@dataclass(frozen=True)
class Script:
    """What a pod prints, and how it ends; None: it goes on."""

    lines: tuple[str, ...] = ("hello",)
    code: int | None = 0


def now() -> str:
    """Return the time as the API server writes it: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Objects:
    """All objects, by resource, namespace and name. Every change wakes those who watch.

    logs: of each pod, by its uid. events: the kind, the resource and the object of each change.
    """

    script: Callable[[Object], Script] = lambda pod: Script()
    known: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    events: list[tuple[str, str, Object]] = field(default_factory=list)
    changed: threading.Condition = field(
        default_factory=lambda: threading.Condition(threading.RLock())
    )

    def get(self, resource: str, namespace: str, name: str) -> Object:
        with self.changed:
            if (resource, namespace, name) not in self.known:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found', name)
            return copy.deepcopy(self.known[resource, namespace, name])

    def list(self, resource: str, namespace: str = "", selector: str = "") -> list[Object]:
        with self.changed:
            return [
                copy.deepcopy(value)
                for (kind, space, _), value in self.known.items()
                if kind == resource
                and namespace in ("", space)
                and matches(selector, value["metadata"].get("labels") or {})
            ]

    def create(self, resource: str, namespace: str, manifest: Object, dry: bool = False) -> Object:
        name = manifest["metadata"]["name"]
        with self.changed:
            if (resource, namespace, name) in self.known:
                raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists', name)
            obj = copy.deepcopy(manifest)
            stamps = {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            obj["metadata"] |= {**stamps, **({"namespace": namespace} if namespace else {})}
            if not dry:
                self.put(resource, obj, "ADDED")
                if resource == "jobsets" and not obj["spec"].get("suspend"):
                    self._start(obj)
            return obj

    def put(self, resource: str, value: Object, what: str = "MODIFIED") -> None:
        """Add, change or delete an object."""
        meta = value["metadata"]
        with self.changed:
            meta["resourceVersion"] = str(len(self.events) + 1)
            key = resource, meta.get("namespace", ""), meta["name"]
            self.known.pop(key, None)
            if what != "DELETED":
                self.known[key] = copy.deepcopy(value)
            self.events.append((what, resource, copy.deepcopy(value)))
            self.changed.notify_all()

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Delete an object; a JobSet with its Jobs and pods."""
        with self.changed:
            self.put(resource, self.get(resource, namespace, name), "DELETED")
            for kind in ("jobs", "pods") if resource == "jobsets" else ():
                for value in self.list(kind, namespace, f"{PREFIX}/jobset-name={name}"):
                    self.put(kind, value, "DELETED")

    def pods(self, jobset: Object, role: str = "") -> list[Object]:
        """Return the pods of a JobSet, or of one role of it."""
        name = f"{PREFIX}/jobset-name={jobset['metadata']['name']}"
        return self.list("pods", selector=f"{name},{ROLE}={role}" if role else name)

    def _start(self, jobset: Object) -> None:
        meta = jobset["metadata"]
        for role in jobset["spec"]["replicatedJobs"]:
            own = {f"{PREFIX}/jobset-name": meta["name"], ROLE: role["name"]}
            job = {"metadata": {"name": f"{meta['name']}-{role['name']}-0", "labels": own}}
            job["metadata"]["namespace"] = meta["namespace"]
            job["spec"] = role["template"]["spec"]
            self.put("jobs", job, "ADDED")
            for index in range(job["spec"]["completions"]):
                self.add_pod(job, index)
        self.settle(jobset)

    def add_pod(self, job: Object, index: int) -> None:
        """Let the pod of this index run, as its script says."""
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        labels = {**template.get("metadata", {}).get("labels", {}), **meta["labels"]}
        pod: Object = {"kind": "Pod", "spec": template["spec"], "status": {"phase": "Pending"}}
        pod["metadata"] = {
            "name": f"{meta['name']}-{index}-{uuid.uuid4().hex[:5]}",
            "namespace": meta["namespace"],
            "labels": {**labels, INDEX: str(index), JOB: meta["name"]},
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
        }
        script = self.script(pod)
        self._tell(pod, "Running", {"running": {"startedAt": now()}})
        for line in script.lines:
            self.say(pod, line)
        if script.code is not None:
            self.end(pod, script.code)

    def say(self, pod: Object, text: str) -> None:
        """Let a pod print a line."""
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        self.logs.setdefault(pod["metadata"]["uid"], []).append(f"{stamp} {text}")

    def end(self, pod: Object, code: int) -> None:
        """End a pod's container."""
        reason = {0: "Completed", 137: "OOMKilled"}.get(code, "Error")
        state = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        self._tell(pod, "Failed" if code else "Succeeded", {"terminated": state})

    def _tell(self, pod: Object, phase: str, state: Mapping[str, Any]) -> None:
        container = {"name": "trainer", "state": dict(state)}
        self.put("pods", {**pod, "status": {"phase": phase, "containerStatuses": [container]}})

    def settle(self, jobset: Object) -> None:
        """End a JobSet whose chief has succeeded, or one of whose pods has failed for good."""
        failed = [pod for pod in self.pods(jobset) if pod["status"]["phase"] == "Failed"]
        chiefs = [pod["status"]["phase"] for pod in self.pods(jobset, "chief")]
        if failed:
            self.fail(jobset, failed[0]["metadata"]["labels"][JOB], "PodFailurePolicy", "exit code")
        elif set(chiefs) == {"Succeeded"}:
            self._conclude("jobsets", jobset, "Completed", "Ended", "it completed")

    def fail(self, jobset: Object, job: str, reason: str, message: str) -> None:
        """Let a Job fail, and its JobSet after it."""
        failed = self.get("jobs", jobset["metadata"]["namespace"], job)
        self._conclude("jobs", failed, "Failed", reason, message)
        self._conclude("jobsets", jobset, "Failed", "FailedJobs", f"first failed job: {job}")

    def _conclude(self, kind: str, value: Object, what: str, reason: str, message: str) -> None:
        condition = {"type": what, "status": "True", "reason": reason, "message": message}
        condition["lastTransitionTime"] = now()
        self.put(kind, {**value, "status": {"conditions": [condition]}})


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels fit `a=b,c,d in (e,f)`."""
    terms = re.findall(r"([^,=\s]+)(?:=([^,]*)| in \(([^)]*)\))?", selector)
    return all(
        name in labels and (not value + values or labels[name] in (value + values).split(","))
        for name, value, values in terms
    )
