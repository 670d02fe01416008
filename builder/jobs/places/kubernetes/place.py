"""Kubernetes as a place: a cluster's API server behind the calls of the protocol.

A job is a JobSet whose name holds the job's key, so the API server itself refuses a second one. A
failed job is submitted again under the name of the next attempt; the old one stays to be asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from builder.core.errors import OutsideError
from builder.jobs.lease import Lease
from builder.jobs.places.kubernetes import jobset, kubeconfig, status
from builder.jobs.places.kubernetes.api import JOBSETS, Api, ClusterRefused
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.logs import ClusterLog, ClusterUsage
from builder.jobs.places.protocol import (
    AlreadyThere,
    JobStatus,
    Log,
    LogLine,
    NoRoom,
    Sample,
    age,
)
from builder.jobs.ready import Ready

_QUOTA: Final = "exceeded quota"
"""The words of a ResourceQuota. Source: kubernetes, plugin/resourcequota/controller.go."""
QUEUES: Final = "kueue.x-k8s.io"


@dataclass(frozen=True)
class Kubernetes:
    """The jobs of one namespace of a cluster. Its requests are `Ready` jobs, checked for it."""

    api: Api
    cluster: Cluster

    @property
    def title(self) -> str:
        """What people call it."""
        return "Kubernetes"

    @property
    def on(self) -> str:
        """What the option --on calls it."""
        return "kubernetes"

    @property
    def where(self) -> str:
        """The namespace and the cluster, in words."""
        context = self.api.access.context
        return f"the namespace {self.namespace}" + (f" of {context}" if context else "")

    @property
    def lag(self) -> float:
        """None: the API server reads its lists from a quorum."""
        return 0.0

    @property
    def namespace(self) -> str:
        """Where the jobs are."""
        return self.cluster.namespace or self.api.access.namespace

    # --- sending ---

    def name_of(self, request: Ready) -> str:
        """The job's name in its description."""
        return request.job.id

    def key(self, request: Ready) -> str:
        """A hash of everything that the job asks for; the object's name holds it."""
        return jobset.key(request, self.cluster)

    def render(self, request: Ready, run: int = 1) -> dict[str, Any]:
        """The JobSet of a first attempt."""
        return jobset.jobset(request, self.cluster, run)

    def create(self, request: Ready, run: int = 1) -> JobStatus:
        """Create the JobSet of the next attempt of a run.

        Of two commands at once both mean one object, and the cluster refuses the second. A list may
        lag behind: an attempt that it does not show, and that has ended, is followed by the next.
        Raises AlreadyThere, LostAnswer, NoRoom, OutsideError.
        """
        before = [one for one in self.same(request) if one.run == run]
        if alive := next((one for one in before if one.counts), None):
            raise AlreadyThere(alive)
        attempt = max((_attempt(one) for one in before), default=0)
        while True:  # up to jobset.NUMBERS
            attempt += 1
            wanted = jobset.jobset(request, self.cluster, run, attempt)
            try:
                return status.read(self.api.create(self._path(), wanted), (), ())
            except ClusterRefused as error:
                if error.code == 403 and _QUOTA in error.message:
                    fix = "ask for a larger quota of the namespace"
                    raise NoRoom(error.message, fix) from error
                if error.reason != "AlreadyExists":
                    raise
            there = self.get(f"{self.namespace}/{wanted['metadata']['name']}")
            if there.counts:
                raise AlreadyThere(there)

    def lease(self, request: Ready, run: int = 1) -> Lease | None:
        """None: the object's name holds the key, so the cluster refuses a second one."""
        del request, run
        return None

    def check(self, request: Ready) -> None:
        """Let the API server check the JobSet without creating it. Raises OutsideError."""
        self.api.create(self._path(), self.render(request), dryRun="All")

    def same(self, request: Ready) -> list[JobStatus]:
        """The jobs with the request's key, newest first."""
        return self._listed({jobset.KEY_LABEL: self.key(request)})

    # --- reading ---

    def newest(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """The newest jobs of the namespace, newest first; with `name` those of one description."""
        return tuple(self._listed({jobset.NAME_LABEL: name or ""})[:limit])

    def find(self, name: str) -> JobStatus:
        """The job that a person means: NAMESPACE/NAME, the JobSet's name, or the name of a
        description, which means its newest job. Raises OutsideError."""
        if "/" in name:
            return self.get(name)
        if found := self._listed({jobset.NAME_LABEL: name}):
            return found[0]
        try:
            return self.get(f"{self.namespace}/{name}")
        except ClusterRefused as error:
            if error.code != 404 or "JobSet:" in error.message:
                raise
            raise OutsideError(
                f"no job is called {name} in {self.where}",
                "builder job list --on kubernetes shows all; --namespace asks another one",
            ) from None

    def get(self, name: str) -> JobStatus:
        """One job by NAMESPACE/NAME."""
        namespace, _, own = name.partition("/")
        found = self.api.get(self.api.path(JOBSETS, "jobsets", own, namespace))
        return self._read([found], namespace)[0]

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask for an end: the JobSet is suspended, which ends its pods, and says that it is
        cancelled; Kueue is told not to start it again. A job that has ended is left alone."""
        namespace, _, own = job.name.partition("/")
        path = self.api.path(JOBSETS, "jobsets", own, namespace)
        found = self.api.get(path)
        now = self._read([found], namespace)[0]
        if not now.active or now.state == "cancelling":
            return now
        when = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        told = {"metadata": {"annotations": {status.CANCELLED: when}}, "spec": {"suspend": True}}
        if jobset.QUEUE_LABEL in (found["metadata"].get("labels") or {}):
            self._deactivate(found, namespace)
        self.api.patch(path, told)
        return self.get(job.name)

    def log(self, job: JobStatus, replica: str | None = None) -> Log[LogLine]:
        """What the job's pods print, as long as the cluster keeps them."""
        namespace, _, own = job.name.partition("/")
        return ClusterLog(self.api, namespace, own, replica)

    def usage(self, job: JobStatus) -> Log[Sample]:
        """CPU and memory, where the cluster has a metrics server."""
        namespace, _, own = job.name.partition("/")
        return ClusterUsage(self.api, namespace, own)

    def message(self, job: JobStatus, replica: str) -> str:
        """The end of what a replica's container wrote as its termination message; "" for none."""
        namespace, _, own = job.name.partition("/")
        path = self.api.path("v1", "pods", namespace=namespace)
        pods = self.api.items(path, labelSelector=f"{status.JOBSET}={own}")
        return status.message(one for one in pods if status.replica_of(one) == replica)

    # --- pieces ---

    def _path(self) -> str:
        return self.api.path(JOBSETS, "jobsets", namespace=self.namespace)

    def _listed(self, labels: Mapping[str, str]) -> list[JobStatus]:
        """The JobSets with these labels, newest first; "" stands for any value."""
        wanted = ",".join(f"{name}={value}" if value else name for name, value in labels.items())
        found = self.api.items(self._path(), labelSelector=wanted)
        return sorted(self._read(found, self.namespace), key=age, reverse=True)

    def _read(self, found: list[dict[str, Any]], namespace: str) -> list[JobStatus]:
        """What the cluster says about JobSets of one namespace, in three requests at most."""
        if not found:
            return []
        names = ",".join(one["metadata"]["name"] for one in found)
        of = f"{status.JOBSET} in ({names})" if len(found) <= 20 else status.JOBSET
        jobs, pods = (
            _by_jobset(self.api.items(path, labelSelector=of))
            for path in (
                self.api.path("batch/v1", "jobs", namespace=namespace),
                self.api.path("v1", "pods", namespace=namespace),
            )
        )
        return [
            status.read(one, jobs[one["metadata"]["name"]], pods[one["metadata"]["name"]])
            for one in found
        ]

    def _deactivate(self, found: Mapping[str, Any], namespace: str) -> None:
        """Tell Kueue not to start a JobSet. Source: kueue, Workload, spec.active."""
        try:
            version = self.api.get(f"/apis/{QUEUES}")["preferredVersion"]["groupVersion"]
        except ClusterRefused as error:
            if error.code == 404:  # a cluster without Kueue
                return
            raise
        path = self.api.path(version, "workloads", namespace=namespace)
        uid = found["metadata"]["uid"]
        for one in self.api.items(path, labelSelector=f"{QUEUES}/job-uid={uid}"):
            self.api.patch(f"{path}/{one['metadata']['name']}", {"spec": {"active": False}})


def connect(cluster: Cluster) -> Kubernetes:
    """The cluster of a context, and the namespace that a job of it gets. Raises InputError."""
    access = kubeconfig.load(cluster.context)
    return Kubernetes(
        Api(access), replace(cluster, namespace=cluster.namespace or access.namespace)
    )


def _attempt(job: JobStatus) -> int:
    number = job.labels.get(jobset.ATTEMPT_LABEL, "1")
    return int(number) if number.isdigit() else 1


def _by_jobset(objects: Iterable[dict[str, Any]]) -> defaultdict[str, list[dict[str, Any]]]:
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in objects:
        found[one["metadata"]["labels"][status.JOBSET]].append(one)
    return found
