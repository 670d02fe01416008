"""The controllers of JobSets and of Jobs, and the node that runs their pods.

As jobset/pkg/controllers (jobset_controller.go, failure_policy.go, success_policy.go) and
kubernetes/pkg/controller/job do it, as far as a JobSet of indexed Jobs needs it. A Job's pods come
back at once here; a real cluster waits 10 s first, and longer each time.
"""

from __future__ import annotations

import copy
import random
import re
import string
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.emulators.kubernetes.kubelet import Kubelet, Running
from tests.emulators.kubernetes.store import Object, Refused, Store, now

PREFIX = "jobset.sigs.k8s.io"
NAME, ROLE, ATTEMPT = (
    f"{PREFIX}/jobset-name",
    f"{PREFIX}/replicatedjob-name",
    f"{PREFIX}/restart-attempt",
)
INDEX = "batch.kubernetes.io/job-completion-index"
DISRUPTED = "DisruptionTarget"


def condition(found: Object, kind: str) -> Object | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next(
        (one for one in conditions if one["type"] == kind and one["status"] == "True"), None
    )


def set_condition(
    found: Object, kind: str, reason: str, message: str, status: str = "True"
) -> None:
    told = found.setdefault("status", {}).setdefault("conditions", [])
    if any(one["type"] == kind and one["status"] == status for one in told):
        return
    told[:] = [one for one in told if one["type"] != kind]
    told.append(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now(),
        }
    )


@dataclass
class Controllers:
    """Bring a cluster's objects to what their descriptions say, step by step."""

    store: Store
    kubelet: Kubelet
    running: dict[str, Running] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    counted: dict[str, set[str]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    pods_stay_pending: str = ""
    error: BaseException | None = None
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def work(self) -> None:
        """Reconcile until `stop`."""
        seen = -1
        while not self.stop.is_set():
            with self.store.changed:
                if self.store.version == seen:
                    self.store.changed.wait(0.05)
                seen = self.store.version
                try:
                    self._once()
                except BaseException as error:
                    self.error = error
                    raise

    def _once(self) -> None:
        for jobset in self.store.list("jobsets"):
            if "deletionTimestamp" not in jobset["metadata"]:
                self._jobset(jobset)
            else:
                self._collect(jobset, "jobs", "jobsets")
        for job in self.store.list("jobs"):
            if "deletionTimestamp" not in job["metadata"]:
                self._job(job)
            else:
                self._collect(job, "pods", "jobs")
        for pod in self.store.list("pods"):
            self._pod(pod)

    def _collect(self, owner: Object, kind: str, resource: str) -> None:
        """Delete what a deleted object owns, then the object."""
        mine = self._owned(kind, owner)
        for one in mine:
            self._delete(kind, one)
        if not mine:
            self.store.remove(resource, owner)

    def _owned(self, kind: str, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        found = self.store.list(kind, owner["metadata"]["namespace"])
        return [one for one in found if one["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _delete(self, kind: str, found: Object) -> None:
        if "deletionTimestamp" not in found["metadata"]:
            found["metadata"]["deletionTimestamp"] = now()
            self.store.update(kind, found)

    # --- JobSet -----------------------------------------------------------------------------------

    def _jobset(self, jobset: Object) -> None:
        status = jobset.setdefault("status", {})
        restarts = status.setdefault("restarts", 0)
        jobs = self._owned("jobs", jobset)
        previous = [one for one in jobs if int(one["metadata"]["labels"][ATTEMPT]) < restarts]
        mine = [one for one in jobs if one not in previous]
        failed = [one for one in mine if condition(one, "Failed")]
        done = [one for one in mine if condition(one, "Complete")]
        active = [one for one in mine if one not in failed and one not in done]
        if condition(jobset, "Completed") or condition(jobset, "Failed"):
            for one in active:
                self._delete("jobs", one)
            return
        for one in previous:
            self._delete("jobs", one)
        if failed:
            self._failure_policy(jobset, failed)
        elif len([one for one in done if _role(one) in _targets(jobset)]) == len(_targets(jobset)):
            status["terminalState"] = "Completed"
            set_condition(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            self._create_jobs(jobset, jobs, previous)
            self._suspend(jobset, active)
        self.store.update("jobsets", jobset)

    def _create_jobs(self, jobset: Object, jobs: list[Object], previous: list[Object]) -> None:
        policy = jobset["spec"].get("failurePolicy") or {}
        if previous and policy.get("restartStrategy") == "BlockingRecreate":
            return
        meta, there = jobset["metadata"], {one["metadata"]["name"] for one in jobs}
        for one in jobset["spec"]["replicatedJobs"]:
            name = f"{meta['name']}-{one['name']}-0"
            if name in there:
                continue
            own = {
                NAME: meta["name"],
                ROLE: one["name"],
                ATTEMPT: str(jobset["status"]["restarts"]),
                f"{PREFIX}/job-index": "0",
            }
            given = one["template"].get("metadata") or {}
            spec = copy.deepcopy(one["template"]["spec"])
            template = spec["template"].setdefault("metadata", {})
            template["labels"] = {**template.get("labels", {}), **own}
            spec["template"]["spec"]["subdomain"] = jobset["spec"]["network"]["subdomain"]
            spec["suspend"] = bool(jobset["spec"].get("suspend"))
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": name,
                    "labels": {**given.get("labels", {}), **own},
                    "annotations": {**given.get("annotations", {}), **own},
                    "ownerReferences": [_owner(jobset)],
                },
                "spec": spec,
            }
            self.store.create("jobs", meta["namespace"], job)

    def _suspend(self, jobset: Object, active: list[Object]) -> None:
        wanted = bool(jobset["spec"].get("suspend"))
        for one in active:
            if one["spec"].get("suspend", False) != wanted:
                one["spec"]["suspend"] = wanted
                self.store.update("jobs", one)
        if wanted:
            set_condition(jobset, "Suspended", "SuspendedJobs", "jobset is suspended")

    def _failure_policy(self, jobset: Object, failed: list[Object]) -> None:
        policy = jobset["spec"].get("failurePolicy")
        when = lambda one: condition(one, "Failed")["lastTransitionTime"]  # type: ignore[index]  # noqa: E731
        first = min(failed, key=when)
        if policy is None:
            self._fail(jobset, "FailedJobs", "jobset failed due to one or more job failures", first)
            return
        action, job = "RestartJobSet", first
        for rule in policy.get("rules") or []:
            fitting = [one for one in failed if _applies(rule, one)]
            if fitting:
                action, job = rule["action"], min(fitting, key=when)
                break
        status = jobset["status"]
        counted = status.get("restartsCountTowardsMax", 0)
        if action == "FailJobSet":
            text = "applying FailJobSet failure policy action"
            self._fail(jobset, "FailJobSetFailurePolicyAction", text, job)
        elif action == "RestartJobSet" and counted >= policy.get("maxRestarts", 0):
            text = "jobset failed due to reaching max number of restarts"
            self._fail(jobset, "ReachedMaxRestarts", text, job)
        else:
            status["restarts"] += 1
            if action == "RestartJobSet":
                status["restartsCountTowardsMax"] = counted + 1

    def _fail(self, jobset: Object, reason: str, text: str, first: Object) -> None:
        jobset["status"]["terminalState"] = "Failed"
        message = f"{text} (first failed job: {first['metadata']['name']})"
        set_condition(jobset, "Failed", reason, message)

    # --- Job --------------------------------------------------------------------------------------

    def _job(self, job: Object) -> None:
        uid, spec = job["metadata"]["uid"], job["spec"]
        pods = self._owned("pods", job)
        if condition(job, "Complete") or condition(job, "Failed"):
            return
        if spec.get("suspend"):
            for one in pods:
                if not _ended(one):
                    self._delete("pods", one)
            set_condition(job, "Suspended", "JobSuspended", "Job suspended")
            self.store.update("jobs", job)
            return
        job.setdefault("status", {}).setdefault("startTime", now())
        failure = self._count(job, pods)
        began = datetime.fromisoformat(job["status"]["startTime"])
        limit = spec.get("activeDeadlineSeconds")
        if limit and (datetime.now(UTC) - began).total_seconds() > limit:
            failure = "DeadlineExceeded", "Job was active longer than specified deadline"
        if failure is None and self.failures.get(uid, 0) > spec.get("backoffLimit", 6):
            failure = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        good = {_index(one) for one in pods if one["status"].get("phase") == "Succeeded"}
        if failure is not None:
            for one in pods:
                if not _ended(one):
                    self._delete("pods", one)
            set_condition(job, "Failed", *failure)
        elif len(good) == spec["completions"]:
            set_condition(job, "Complete", "CompletionsReached", "Reached expected number of pods")
        else:
            alive = {_index(one) for one in pods if not _ended(one)}
            for index in range(spec["completions"]):
                if str(index) not in good | alive:
                    self._create_pod(job, index)
        job["status"]["failed"] = self.failures.get(uid, 0)
        job["status"]["succeeded"] = len(good)
        self.store.update("jobs", job)

    def _count(self, job: Object, pods: list[Object]) -> tuple[str, str] | None:
        """Judge each pod that failed, once: pod_failure_policy.go, matchPodFailurePolicy."""
        uid = job["metadata"]["uid"]
        counted = self.counted.setdefault(uid, set())
        found = None
        for pod in pods:
            if pod["status"].get("phase") != "Failed" or pod["metadata"]["uid"] in counted:
                continue
            counted.add(pod["metadata"]["uid"])
            action, message = _judged(job["spec"].get("podFailurePolicy"), pod)
            if action == "FailJob":
                found = found or ("PodFailurePolicy", message)
            if action != "Ignore":
                self.failures[uid] = self.failures.get(uid, 0) + 1
        return found

    def _create_pod(self, job: Object, index: int) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        letters = "".join(self._random.choices(string.ascii_lowercase + string.digits, k=5))
        given = template.get("metadata") or {}
        own = {INDEX: str(index), "batch.kubernetes.io/job-name": meta["name"]}
        own["job-name"] = meta["name"]
        spec = copy.deepcopy(template["spec"])
        spec["hostname"] = f"{meta['name']}-{index}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{index}-{letters}",
                "labels": {**given.get("labels", {}), **own},
                "annotations": {**given.get("annotations", {}), INDEX: str(index)},
                "ownerReferences": [_owner(job)],
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        self.store.create("pods", meta["namespace"], pod)

    # --- the node ---------------------------------------------------------------------------------

    def _pod(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        leaving = "deletionTimestamp" in pod["metadata"]
        if leaving and uid in self.running:
            self.running[uid].stop.set()
        if leaving and (_ended(pod) or uid not in self.running):
            judged = any(uid in one for one in self.counted.values())
            owner = [
                one
                for one in self.store.list("jobs", pod["metadata"]["namespace"])
                if one["metadata"]["uid"] == pod["metadata"]["ownerReferences"][0]["uid"]
            ]
            busy = owner and not (
                condition(owner[0], "Failed")
                or condition(owner[0], "Complete")
                or owner[0]["spec"].get("suspend")
                or "deletionTimestamp" in owner[0]["metadata"]
            )
            if (
                judged or not busy or uid not in self.running
            ):  # the Job's finalizer keeps it so long
                self.store.remove("pods", pod)
            return
        if self.pods_stay_pending and not leaving:
            told = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": self.pods_stay_pending,
            }
            pod["status"]["conditions"] = [told]
            self.store.update("pods", pod)
        elif uid not in self.running and not _ended(pod):
            self.running[uid] = Running()
            thread = threading.Thread(target=self._carry_out, args=(pod,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _carry_out(self, pod: Object) -> None:
        running = self.running[pod["metadata"]["uid"]]
        begin = now()
        self._tell(pod, "Running", {"running": {"startedAt": begin}})
        try:
            code, reason = self.kubelet.run(pod, running)
        except Exception as error:
            running.say(f"{type(error).__name__}: {error}")
            code, reason = 128, "StartError"
        ended = {"exitCode": code, "reason": reason, "startedAt": begin, "finishedAt": now()}
        ended |= {"message": running.message} if running.message else {}
        self._tell(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _tell(self, pod: Object, phase: str, state: Mapping[str, Any]) -> None:
        meta = pod["metadata"]
        with self.store.changed:
            try:
                found = self.store.get("pods", meta["namespace"], meta["name"])
            except Refused:
                return
            container = found["spec"]["containers"][0]
            found["status"] |= {
                "phase": phase,
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": container["image"],
                        "ready": phase == "Running",
                        "restartCount": 0,
                        "state": dict(state),
                    }
                ],
            }
            self.store.update("pods", found)

    def disrupt(self, name: str, namespace: str = "default") -> None:
        """Take a pod's node away: the condition, then its deletion with grace."""
        with self.store.changed:
            pod = self.store.get("pods", namespace, name)
            set_condition(pod, DISRUPTED, "DeletionByTaintManager", "the node goes away")
            pod["metadata"]["deletionTimestamp"] = now()
            self.store.update("pods", pod)


def _judged(policy: Mapping[str, Any] | None, pod: Object) -> tuple[str, str]:
    """The action for a pod that failed, and the message of the Job's condition."""
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    container = pod["status"]["containerStatuses"][0]
    code = container["state"]["terminated"]["exitCode"]
    for number, rule in enumerate((policy or {}).get("rules") or []):
        for wanted in rule.get("onPodConditions") or []:
            if condition(pod, wanted["type"]):
                text = f"Pod {where} has condition {wanted['type']} matching {rule['action']} rule"
                return rule["action"], f"{text} at index {number}"
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            text = f"Container {container['name']} for pod {where} failed with exit code {code}"
            return rule["action"], f"{text} matching {rule['action']} rule at index {number}"
    return "Count", ""


def _applies(rule: Mapping[str, Any], job: Object) -> bool:
    told = condition(job, "Failed") or {}
    reasons = rule.get("onJobFailureReasons") or [told["reason"]]
    patterns = rule.get("onJobFailureMessagePatterns") or [""]
    targets = rule.get("targetReplicatedJobs") or [_role(job)]
    return (
        told["reason"] in reasons
        and any(re.search(one, told["message"]) for one in patterns)
        and _role(job) in targets
    )


def _targets(jobset: Object) -> list[str]:
    policy = jobset["spec"].get("successPolicy") or {}
    named = [one["name"] for one in jobset["spec"]["replicatedJobs"]]
    return list(policy.get("targetReplicatedJobs") or named)


def _role(job: Object) -> str:
    return str(job["metadata"]["labels"][ROLE])


def _index(pod: Object) -> str:
    return str(pod["metadata"]["labels"][INDEX])


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _owner(found: Object) -> Object:
    meta = found["metadata"]
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
