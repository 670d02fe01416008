"""What the controllers of a cluster make of a JobSet: JobSet's own, Job's, the kubelet.

Pods do at once what a test says (`Script`); no controller runs beside the test. Names, labels,
conditions and policies are those of jobset/pkg/controllers and kubernetes/pkg/controller/job.
"""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

Object = dict[str, Any]
PREFIX = "jobset.sigs.k8s.io"
ROLE, INDEX = f"{PREFIX}/replicatedjob-name", "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"
PATTERNS = "onJobFailureMessagePatterns"


@dataclass(eq=False)
class Refused(Exception):
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
    """All objects, by resource, namespace and name. logs: of each pod, by its uid."""

    script: Callable[[Object], Script] = lambda pod: Script()
    known: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    followed: dict[str, threading.Event] = field(
        default_factory=lambda: defaultdict(threading.Event)
    )
    """Set for a pod, by its uid, once somebody holds a stream of its log."""
    lock: Any = field(default_factory=threading.RLock)
    zone: tzinfo = UTC
    """Of the nodes' clocks."""
    denied: Callable[[Object], str] = lambda pod: ""
    """What an admission plugin says against a pod, "" for nothing: a missing PriorityClass, a
    quota, PodSecurity, a missing ServiceAccount."""

    def get(self, resource: str, namespace: str, name: str) -> Object:
        with self.lock:
            if (resource, namespace, name) not in self.known:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found', name)
            return copy.deepcopy(self.known[resource, namespace, name])

    def list(
        self, resource: str, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[Object]:
        with self.lock:
            return [
                copy.deepcopy(value)
                for (kind, space, _), value in self.known.items()
                if kind == resource
                and namespace in ("", space)
                and _matches(selector, value["metadata"].get("labels") or {})
                and all(_field(value, *term.split("=")) for term in fields.split(",") if term)
            ]

    def create(self, resource: str, namespace: str, manifest: Object, dry: bool = False) -> Object:
        name = manifest["metadata"]["name"]
        with self.lock:
            if (resource, namespace, name) in self.known:
                raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists', name)
            obj = copy.deepcopy(manifest)
            stamps = {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            obj["metadata"] |= {**stamps, **({"namespace": namespace} if namespace else {})}
            if not dry:
                self.put(resource, obj)
                if resource == "jobsets" and not obj["spec"].get("suspend"):
                    self._start(obj)
            return obj

    def put(self, resource: str, value: Object) -> None:
        """Add or change an object; a changed one is the last of its list."""
        meta = value["metadata"]
        with self.lock:
            key = resource, meta.get("namespace", ""), meta["name"]
            self.known.pop(key, None)
            self.known[key] = copy.deepcopy(value)

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Delete an object; a JobSet with its Jobs and pods."""
        with self.lock:
            self.get(resource, namespace, name)
            del self.known[resource, namespace, name]
            if resource == "jobsets":
                self._remove_children(namespace, name)

    def _remove_children(self, namespace: str, name: str) -> None:
        for kind in ("jobs", "pods"):
            for value in self.list(kind, namespace, f"{PREFIX}/jobset-name={name}"):
                del self.known[kind, namespace, value["metadata"]["name"]]

    def pods(self, jobset: Object, role: str = "") -> list[Object]:
        """Return the pods of a JobSet, or of one role of it."""
        name = f"{PREFIX}/jobset-name={jobset['metadata']['name']}"
        return self.list("pods", selector=f"{name},{ROLE}={role}" if role else name)

    # --- what the controllers do ---

    def _start(self, jobset: Object) -> None:
        meta = jobset["metadata"]
        for role in jobset["spec"]["replicatedJobs"]:
            own = {f"{PREFIX}/jobset-name": meta["name"], ROLE: role["name"]}
            job = {"metadata": {"name": f"{meta['name']}-{role['name']}-0", "labels": own}}
            job["metadata"] |= {"namespace": meta["namespace"], "uid": str(uuid.uuid4())}
            job["spec"] = role["template"]["spec"]
            self.put("jobs", job)
            for index in range(job["spec"]["completions"]):
                self.add_pod(job, index)
        for pod in self.pods(jobset):
            if pod["status"]["phase"] == "Failed":
                self._replace(pod)
        self._complete(jobset)

    def _complete(self, jobset: Object) -> None:
        """Let a JobSet end whose chief has succeeded."""
        meta = jobset["metadata"]
        chiefs = {pod["status"]["phase"] for pod in self.pods(jobset, "chief")}
        now_is = self.get("jobsets", meta["namespace"], meta["name"])
        if chiefs == {"Succeeded"} and not now_is.get("status", {}).get("conditions"):
            self._conclude("jobsets", now_is, "Completed", "AllJobsCompleted", "it completed")

    def add_pod(self, job: Object, index: int) -> None:
        """Let the pod of this index run, as its script says; say why where it cannot be made."""
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        labels = {**template.get("metadata", {}).get("labels", {}), **meta["labels"]}
        pod: Object = {"kind": "Pod", "spec": template["spec"]}
        base = f"{meta['name']}-{index}-"
        pod["metadata"] = {
            "name": f"{base}{uuid.uuid4().hex[:5]}",
            "namespace": meta["namespace"],
            "labels": {**labels, INDEX: str(index), JOB: meta["name"]},
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
        }
        if why := self.denied(pod):  # controller_utils.go, createPods
            why = f'Error creating: pods "{base}" is forbidden: {why}'
            self.event("Job", job, "Warning", "FailedCreate", why)
            return
        self.event(
            "Job", job, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}"
        )
        script, code = self.script(pod), self.script(pod).code
        for line in script.lines:
            self.say(pod, line)
        running = [{"name": "trainer", "state": {"running": {"startedAt": now()}}}]
        status = {"phase": "Running", "containerStatuses": running}
        self.put("pods", _ended(pod, code) if code is not None else {**pod, "status": status})

    def event(self, kind: str, about: Object, type_: str, reason: str, message: str) -> None:
        """Record an Event about an object, as client-go's recorder does."""
        meta = about["metadata"]
        names = {name: meta.get(name, "") for name in ("name", "namespace", "uid")}
        event: Object = {"involvedObject": {"kind": kind, **names}, "type": type_, "count": 1}
        event |= {"reason": reason, "message": message, "lastTimestamp": now()}
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        space = meta.get("namespace", "default")
        event["metadata"] = {"name": name, "namespace": space, "creationTimestamp": now()}
        self.put("events", event)

    def end(self, pod: Object, code: int, disrupted: str = "") -> None:
        """Let a pod end; disrupted: the reason of its condition DisruptionTarget, "" for none."""
        self.put("pods", _ended(pod, code, disrupted))
        if not code:
            name = pod["metadata"]["labels"][f"{PREFIX}/jobset-name"]
            self._complete(self.get("jobsets", pod["metadata"]["namespace"], name))
            return
        self._replace(self.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _replace(self, pod: Object) -> None:
        """Do what Job's controller does about a failed pod: its policy, then the limit."""
        meta = pod["metadata"]
        try:
            job = self.get("jobs", meta["namespace"], meta["labels"][JOB])
        except Refused:
            return  # its JobSet has started again
        if job.get("status", {}).get("conditions"):
            return
        name = meta["labels"][f"{PREFIX}/jobset-name"]
        jobset = self.get("jobsets", meta["namespace"], name)
        action, message = _by_policy(job["spec"].get("podFailurePolicy", {}), pod)
        failed = job.get("status", {}).get("failed", 0) + (action != "Ignore")
        job["status"] = {"failed": failed}
        self.put("jobs", job)
        if action == "FailJob":
            self.fail(jobset, meta["labels"][JOB], "PodFailurePolicy", message)
        elif failed > job["spec"].get("backoffLimit", 6):
            late = "Job has reached the specified backoff limit"
            self.fail(jobset, meta["labels"][JOB], "BackoffLimitExceeded", late)
        else:
            self.add_pod(job, int(meta["labels"][INDEX]))
            new = self.list("pods", meta["namespace"], f"{JOB}={meta['labels'][JOB]}")[-1]
            if new["status"]["phase"] == "Failed":
                self._replace(new)

    def say(self, pod: Object, text: str) -> None:
        """Let a pod print a line. The stamp is containerd's: the node's own time."""
        stamp = datetime.now(self.zone).isoformat().replace("+00:00", "Z")
        stamp = re.sub(r"(\.\d{6})", r"\g<1>000", stamp)
        self.logs.setdefault(pod["metadata"]["uid"], []).append(f"{stamp} {text}")

    def fail(self, jobset: Object, job: str, reason: str, message: str) -> None:
        """Let a Job fail, and do with its JobSet what its failure policy says:
        jobset/pkg/controllers/failure_policy.go."""
        space = jobset["metadata"]["namespace"]
        failed = self.get("jobs", space, job)
        self._conclude("jobs", failed, "Failed", reason, message)
        for pod in self.list("pods", space, f"{JOB}={job}"):
            if pod["status"]["phase"] in ("Running", "Pending"):
                del self.known["pods", space, pod["metadata"]["name"]]
        jobset = self.get("jobsets", space, jobset["metadata"]["name"])
        policy, status = jobset["spec"].get("failurePolicy"), jobset.get("status", {})
        if policy is None:
            self._conclude("jobsets", jobset, "Failed", "FailedJobs", f"first failed job: {job}")
            return
        action = next(
            (
                rule["action"]
                for rule in policy.get("rules", [])
                if reason in rule.get("onJobFailureReasons", [reason])
                and any(
                    re.search(p, message) for p in rule.get("onJobFailureMessagePatterns", [""])
                )
            ),
            "RestartJobSet",
        )
        counted = status.get("restartsCountTowardsMax", 0)
        limit = counted >= policy.get("maxRestarts", 0)
        if action == "FailJobSet" or (action == "RestartJobSet" and limit):
            why = (
                "FailJobSetFailurePolicyAction" if action == "FailJobSet" else "ReachedMaxRestarts"
            )
            self._conclude("jobsets", jobset, "Failed", why, f"failed (first failed job: {job})")
            return
        restarts = {"restarts": status.get("restarts", 0) + 1}
        restarts["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        self.put("jobsets", {**jobset, "status": {**status, **restarts}})
        self._remove_children(space, jobset["metadata"]["name"])
        self._start(jobset)

    def _conclude(self, kind: str, value: Object, what: str, reason: str, message: str) -> None:
        condition = {"type": what, "status": "True", "reason": reason, "message": message}
        condition["lastTransitionTime"] = now()
        status = {**value.get("status", {}), "conditions": [condition]}
        self.put(kind, {**value, "status": status})
        if kind == "jobsets":
            self._delete_active(value)

    def _delete_active(self, jobset: Object) -> None:
        """Delete the Jobs that still run when their JobSet ends: jobset_controller.go."""
        children = f"{PREFIX}/jobset-name={jobset['metadata']['name']}"
        for job in self.list("jobs", jobset["metadata"]["namespace"], children):
            meta = job["metadata"]
            pods = self.list("pods", meta["namespace"], f"{JOB}={meta['name']}")
            phases = {pod["status"]["phase"] for pod in pods}
            if not job.get("status", {}).get("conditions") and phases & {"Running", "Pending"}:
                del self.known["jobs", meta["namespace"], meta["name"]]
                for pod in pods:
                    del self.known["pods", meta["namespace"], pod["metadata"]["name"]]


def _ended(pod: Object, code: int, disrupted: str = "") -> Object:
    """Return a pod as the kubelet leaves it."""
    reason = {0: "Completed", 137: "OOMKilled"}.get(code, "Error")
    times = {"startedAt": now(), "finishedAt": now()}
    state = {"terminated": {"exitCode": code, "reason": reason, **times}}
    status: Object = {"phase": "Failed" if code else "Succeeded"}
    status["containerStatuses"] = [{"name": "trainer", "state": state}]
    if disrupted:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": disrupted}
        status["conditions"] = [condition]
    return {**pod, "status": status}


def _by_policy(policy: Object, pod: Object) -> tuple[str, str]:
    """Return the action of the first rule that fits a failed pod, and the message of the Job."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    (container,) = pod["status"]["containerStatuses"]
    code = container["state"]["terminated"]["exitCode"]
    has = {(item["type"], item["status"]) for item in pod["status"].get("conditions", [])}
    for index, rule in enumerate(policy.get("rules", [])):
        ending = f"matching {rule['action']} rule at index {index}"
        wanted = {(item["type"], item["status"]) for item in rule.get("onPodConditions", [])}
        if both := wanted & has:
            return rule["action"], f"Pod {name} has condition {min(both)[0]} {ending}"
        if code in rule.get("onExitCodes", {}).get("values", []):
            what = f"Container trainer for pod {name} failed with exit code {code} {ending}"
            return rule["action"], what
    return "Count", ""


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels fit `a=b,c` or `a in (b,c)`."""
    if several := re.fullmatch(r"([^ =,]+) in \(([^)]*)\)", selector):
        return labels.get(several[1]) in several[2].split(",")
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(name in labels and (not eq or labels[name] == value) for name, eq, value in terms)


def _field(value: Object, path: str, wanted: str) -> bool:
    """Tell whether a field has this value: registry/core/event/strategy.go."""
    found: Any = value
    for part in path.split("."):
        found = found.get(part, {})
    return bool(found == wanted)
