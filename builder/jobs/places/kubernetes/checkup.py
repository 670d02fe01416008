"""What prevents a job in a cluster, each with its remedy: access, JobSet, rights, queue, nodes.

Changes nothing; the job itself is tried by a server-side dry run. A right is asked for as
`kubectl auth can-i` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from builder.core.checkup import Finding, State
from builder.core.errors import FactoryError, OutsideError
from builder.jobs.places.kubernetes import jobset
from builder.jobs.places.kubernetes.api import ClusterRefused
from builder.jobs.places.kubernetes.place import QUEUES, Kubernetes
from builder.jobs.ready import Ready

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GOOGLE_ACCOUNT: Final = "iam.gke.io/gcp-service-account"
"""The annotation with which Workload Identity binds a ServiceAccount to Google's account."""


@dataclass(frozen=True)
class Right:
    """A right in the namespace. what: the commands that need it."""

    verbs: tuple[str, ...]
    group: str
    resource: str
    what: str
    needed: bool = True

    @property
    def name(self) -> str:
        """As kubectl writes the resource: jobsets.jobset.x-k8s.io, pods/log."""
        main, _, part = self.resource.partition("/")
        full = f"{main}.{self.group}" if self.group else main
        return f"{full}/{part}" if part else full


RIGHTS: Final = (
    Right(("get", "list", "create", "patch"), "jobset.x-k8s.io", "jobsets", "every command"),
    Right(("list",), "batch", "jobs", "every command"),
    Right(("list",), "", "pods", "every command"),
    Right(("get",), "", "pods/log", "logs, watch, why"),
    Right(("list",), "metrics.k8s.io", "pods", "CPU and memory in watch", needed=False),
)
QUEUE_RIGHT: Final = Right(("list", "patch"), QUEUES, "workloads", "cancel")


def examine(place: Kubernetes, ready: Ready | None = None) -> tuple[Finding, ...]:
    """All findings about a cluster; with `ready` also about that job there.

    Ends with the first one where the cluster cannot be asked at all.
    """
    found = list(_server(place))
    if found[-1].state == "bad":
        return tuple(found)
    for checks in (_namespace, _jobset, _rights, _queue, _account):
        found += checks(place)
    if ready is not None:
        found += _nodes(place, ready)
        found += _dry_run(place, ready)
    return tuple(found)


def _server(place: Kubernetes) -> Iterator[Finding]:
    access = place.api.access
    try:
        version = place.api.get("/version").get("gitVersion", "of an unknown version")
    except FactoryError as error:
        yield Finding("cluster", "bad", error.message, error.fix)
        return
    who = f"as {access.context}" if access.context else "as this pod"
    yield Finding("cluster", "ok", f"{access.server} answers {who}: Kubernetes {version}")


def _namespace(place: Kubernetes) -> Iterator[Finding]:
    name = place.namespace
    make = f"kubectl create namespace {name}"
    yield from _object(place, "namespace", f"/api/v1/namespaces/{name}", name, make)


def _jobset(place: Kubernetes) -> Iterator[Finding]:
    try:
        group = place.api.get(f"/apis/{jobset.API.partition('/')[0]}")
    except ClusterRefused as error:
        if error.code != 404:
            yield Finding("JobSet", "bad", error.message, error.fix)
            return
        group = {}
    versions = [one["groupVersion"] for one in group.get("versions") or []]
    if jobset.API in versions:
        yield Finding("JobSet", "ok", f"the cluster knows {jobset.API}")
        return
    seen = f"the cluster knows no {jobset.API}" + (f", only {versions}" if versions else "")
    yield Finding("JobSet", "bad", seen, "install JobSet 0.10.1 or later: jobset.sigs.k8s.io/docs")


def _rights(place: Kubernetes) -> Iterator[Finding]:
    rights = (*RIGHTS, *((QUEUE_RIGHT,) if place.cluster.queue else ()))
    for right in rights:
        try:
            missing = [verb for verb in right.verbs if not _allowed(place, right, verb)]
        except OutsideError as error:
            yield Finding("rights", "note", f"cannot be asked for: {error.message}", error.fix)
            return
        name = f"right to {', '.join(right.verbs)} {right.name}"
        if not missing:
            yield Finding(name, "ok", f"granted, for {right.what}")
            continue
        role = f"builder-{right.resource.replace('/', '-')}"
        inside = f"-n {place.namespace}"
        grant = (
            f"kubectl create role {role} {inside} --verb={','.join(right.verbs)} "
            f"--resource={right.name} && kubectl create rolebinding {role} {inside} --role={role} "
            "--user=YOU"
        )
        state: State = "bad" if right.needed else "note"
        yield Finding(name, state, f"{', '.join(missing)}: missing, for {right.what}", grant)


def _allowed(place: Kubernetes, right: Right, verb: str) -> bool:
    main, _, part = right.resource.partition("/")
    asked = {"namespace": place.namespace, "verb": verb, "group": right.group, "resource": main}
    if part:
        asked["subresource"] = part
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return bool(place.api.create(REVIEWS, body).get("status", {}).get("allowed"))


def _queue(place: Kubernetes) -> Iterator[Finding]:
    name = place.cluster.queue
    if name is None:
        fix = "give --queue, so that a job starts only when all its pods fit"
        yield Finding("queue", "note", "none is named: pods start one by one", fix)
        return
    try:
        version = place.api.get(f"/apis/{QUEUES}")["preferredVersion"]["groupVersion"]
    except ClusterRefused:
        fix = "install Kueue, or give no --queue: without Kueue the label is ignored"
        yield Finding("queue", "bad", "the cluster has no Kueue", fix)
        return
    path = place.api.path(version, "localqueues", name, place.namespace)
    fix = f"kubectl get localqueues -n {place.namespace} shows those that there are"
    yield from _object(place, "queue", path, name, fix)


def _account(place: Kubernetes) -> Iterator[Finding]:
    cluster, inside = place.cluster, f"-n {place.namespace}"
    if cluster.pull_secret:
        path = place.api.path("v1", "secrets", cluster.pull_secret, place.namespace)
        make = f"kubectl create secret docker-registry {cluster.pull_secret} {inside} ..."
        yield from _object(place, "pull secret", path, cluster.pull_secret, make)
    if not cluster.service_account:
        return
    name = cluster.service_account
    path = place.api.path("v1", "serviceaccounts", name, place.namespace)
    make = f"kubectl create serviceaccount {name} {inside}"
    found = list(_object(place, "service account", path, name, make))
    yield from found
    if found[0].state == "ok" and cluster.nodes == "gke":
        told = place.api.get(path)["metadata"].get("annotations") or {}
        acts = told.get(GOOGLE_ACCOUNT)
        bind = f"kubectl annotate serviceaccount {name} {inside} {GOOGLE_ACCOUNT}=NAME@PROJECT..."
        yield (
            Finding("Google account", "ok", f"{name} acts as {acts}")
            if acts
            else Finding("Google account", "note", f"{name} names none by annotation", bind)
        )


def _object(place: Kubernetes, kind: str, path: str, name: str, make: str) -> Iterator[Finding]:
    """Whether an object is there; one that may not be looked at is a note."""
    try:
        place.api.get(path)
    except ClusterRefused as error:
        state: State = "bad" if error.code == 404 else "note"
        seen = "is not there" if error.code == 404 else error.message
        yield Finding(kind, state, f"{name}: {seen}", make if error.code == 404 else error.fix)
        return
    yield Finding(kind, "ok", f"{name} is there")


# --- one job --------------------------------------------------------------------------------------


def _nodes(place: Kubernetes, ready: Ready) -> Iterator[Finding]:
    """Whether some node could take a pod of each role, as it is now and empty."""
    try:
        nodes = place.api.items("/api/v1/nodes")
    except ClusterRefused as error:
        yield Finding("nodes", "note", f"cannot be seen: {error.message}", error.fix)
        return
    for one in place.render(ready)["spec"]["replicatedJobs"]:
        pod = one["template"]["spec"]["template"]["spec"]
        fitting = [node["metadata"]["name"] for node in nodes if _fits(node, pod)]
        wanted = {**pod.get("nodeSelector", {}), **_limits(pod)}
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items()) or "any node"
        if fitting:
            yield Finding(f"nodes for {one['name']}", "ok", f"{len(fitting)} with {asked}")
        else:
            fix = "add a node pool with them; one that scales from zero may bring such a node"
            yield Finding(f"nodes for {one['name']}", "note", f"none now with {asked}", fix)


def _limits(pod: dict[str, Any]) -> dict[str, str]:
    return dict((pod["containers"][0].get("resources") or {}).get("limits") or {})


def _fits(node: dict[str, Any], pod: dict[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    has = (node.get("status") or {}).get("allocatable") or {}
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    chosen = (pod.get("nodeSelector") or {}).items() <= labels.items()
    return chosen and all(int(has.get(name, 0)) >= int(n) for name, n in _limits(pod).items())


def _dry_run(place: Kubernetes, ready: Ready) -> Iterator[Finding]:
    try:
        place.check(ready)
    except FactoryError as error:
        yield Finding("job", "bad", error.message, error.fix)
        return
    yield Finding("job", "ok", f"the cluster takes {place.name_of(ready)}")
