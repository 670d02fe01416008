"""Checks of what a job in a cluster needs: access, JobSet, rights, queue, accounts.

The job itself is tried by a server-side dry run. A right is asked for as `kubectl auth can-i` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from builder.core.errors import OutsideError
from builder.core.findings import DoctorFinding, Unknown, check, examine
from builder.jobs.backends.kubernetes import jobset, section
from builder.jobs.backends.kubernetes.backend import KUEUE, Kubernetes
from builder.jobs.backends.kubernetes.client import ClusterRefused
from builder.jobs.ready import Ready

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_ALONE: Final[Any] = {
    "severity": "warning",
    "message": "it is for one node at a time, and the job has several replicas",
    "remedy": "make one with ReadWriteMany, on Filestore or NFS for example",
}
CLAIMS: Final = "persistentvolumeclaims"
RIGHTS: Final = (
    *(("jobset.x-k8s.io", "jobsets", verb) for verb in ("get", "list", "create", "delete")),
    ("batch", "jobs", "list"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
)
"""What the commands about jobs need in the namespace: API group, resource, verb."""
HELPFUL: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("", "pods", "create", "whether pods can be created is not tried before"),
    ("", "events", "list", "what holds a job up is not told"),
    (KUEUE, "workloads", "list", "why a job is queued is not told"),
)
"""The same of what they do without, and what is missing then."""


@dataclass(frozen=True)
class ClusterJobs:
    backend: Kubernetes
    ready: Ready | None = None

    @property
    def namespace(self) -> str:
        return self.backend.namespace

    def object(self, kind: str, path: str, name: str, make: str) -> Iterator[DoctorFinding]:
        """Yield whether an object is there. make: the command that makes it."""
        try:
            self.backend.client.get(path)
        except ClusterRefused as error:
            if error.code == 404:
                yield DoctorFinding(kind, "error", f"{name}: is not there", make)
            else:
                yield DoctorFinding(
                    kind, "warning", f"not known: {name}: {error.message}", error.fix
                )
        else:
            yield DoctorFinding(kind, "ok", f"{name} is there")


def findings(backend: Kubernetes, ready: Ready | None) -> tuple[DoctorFinding, ...]:
    return examine(ClusterJobs(backend, ready))


@check(ClusterJobs, "cluster", essential=True)
def server(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    client = jobs.backend.client
    version = client.get("/version").get("gitVersion", "of an unknown version")
    what = f"{client.server} answers as {client.context}: Kubernetes {version}"
    yield DoctorFinding("cluster", "ok", what)


@check(ClusterJobs, "namespace")
def namespace(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    name = jobs.namespace
    make = f"kubectl create namespace {name}"
    yield from jobs.object("namespace", f"/api/v1/namespaces/{name}", name, make)


@check(ClusterJobs, "JobSet")
def jobsets(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    install = "install JobSet 0.10.1 or later: jobset.sigs.k8s.io/docs"
    yield from jobs.object("JobSet", f"/apis/{jobset.API}", jobset.API, install)


@check(ClusterJobs, "rights")
def rights(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    wanted = [(*right, "") for right in RIGHTS]
    wanted += [each for each in HELPFUL if each[0] != KUEUE or jobs.backend.cluster.queue]
    missing = [right for right in wanted if not _allowed(jobs, *right[:3])]
    for group, resource, verb, without in missing:
        main, _, part = resource.partition("/")
        full = (f"{main}.{group}" if group else main) + (f"/{part}" if part else "")
        role = f"builder-{verb}-{main}{part}"
        fix = (
            f"kubectl create role {role} -n {jobs.namespace} --verb={verb} --resource={full} && "
            f"kubectl create rolebinding {role} -n {jobs.namespace} --role={role} --user=YOU"
        )
        what = f"missing: {without}" if without else "missing"
        yield DoctorFinding(f"right to {verb} {full}", "warning" if without else "error", what, fix)
    if not missing:
        yield DoctorFinding("rights", "ok", f"{len(wanted)} are granted")


def _allowed(jobs: ClusterJobs, group: str, resource: str, verb: str) -> bool:
    main, _, part = resource.partition("/")
    attributes = {"namespace": jobs.namespace, "verb": verb, "group": group, "resource": main}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | ({"subresource": part} if part else {})},
    }
    try:
        status = jobs.backend.client.create(REVIEWS, review).get("status", {})
    except OutsideError as error:
        raise Unknown(error.message, error.fix) from error
    return bool(status.get("allowed"))


@check(ClusterJobs, "queue")
def queue(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    name = jobs.backend.cluster.queue
    if name is None:
        fix = "give --queue, so that a job starts only when all its pods fit"
        yield DoctorFinding("queue", "warning", "none is named: pods start one by one", fix)
        return
    try:
        version = jobs.backend.client.get(f"/apis/{KUEUE}")["preferredVersion"]["groupVersion"]
    except ClusterRefused:
        fix = "install Kueue, or give no --queue: without Kueue the label is ignored"
        yield DoctorFinding("queue", "error", "the cluster has no Kueue", fix)
        return
    path = jobs.backend.client.path(version, "localqueues", name, jobs.namespace)
    fix = f"kubectl get localqueues -n {jobs.namespace} shows those that there are"
    for finding in jobs.object("queue", path, name, fix):
        closed = _closed(jobs, path) if finding.severity == "ok" else ""
        what = f"{name} admits no job now: {closed}"
        fix = f"ask who runs it: kubectl describe localqueue {name} -n {jobs.namespace}"
        yield DoctorFinding("queue", "error", what, fix) if closed else finding


def _closed(jobs: ClusterJobs, path: str) -> str:
    """Return why a LocalQueue is not active; "" for one that is. Source: kueue, apis/kueue,
    localqueue_types.go."""
    status = jobs.backend.client.get(path).get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    active = conditions.get("Active", {})
    return str(active.get("message", "")) if active.get("status") == "False" else ""


@check(ClusterJobs, "accounts")
def accounts(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    cluster = jobs.backend.cluster
    docker = "secret docker-registry {} ..."
    for kind, resource, name, make in (
        ("pull secret", "secrets", cluster.pull_secret, docker),
        ("service account", "serviceaccounts", cluster.service_account, "sa {}"),
    ):
        if name:
            path = jobs.backend.client.path("v1", resource, name, jobs.namespace)
            fix = f"kubectl create -n {jobs.namespace} {make.format(name)}"
            yield from jobs.object(kind, path, name, fix)


@check(ClusterJobs, "volumes")
def claims(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    if jobs.ready is None:
        return
    several = sum(pool.count for pool in jobs.ready.job.pools) > 1
    for own in section.of(jobs.ready.job).volumes.values():
        path = jobs.backend.client.path("v1", CLAIMS, own.claim, jobs.namespace)
        fix = f"kubectl get pvc -n {jobs.namespace} shows those that there are"
        for finding in jobs.object(f"volume {own.claim}", path, own.claim, fix):
            alone = several and finding.severity == "ok" and _of_one_node(jobs, path)
            yield replace(finding, **_ALONE) if alone else finding


def _of_one_node(jobs: ClusterJobs, path: str) -> bool:
    """Return whether a claim is for one node at a time."""
    modes = jobs.backend.client.get(path)["spec"]["accessModes"]
    return {"ReadWriteMany", "ReadOnlyMany"}.isdisjoint(modes)


@check(ClusterJobs, "job")
def dry_run(jobs: ClusterJobs) -> Iterator[DoctorFinding]:
    if jobs.ready is not None:
        name = jobs.backend.preflight(jobs.ready)["metadata"]["name"]
        yield DoctorFinding("job", "ok", f"the cluster takes {name}")
