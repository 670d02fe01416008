"""What `builder doctor --on kubernetes` finds, and the command that it gives for each fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from builder.core.findings import DoctorFinding, examine
from builder.jobs.backends.kubernetes import doctor as kubernetes
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from tests.conftest import Run
from tests.doctor.conftest import by_name, severities
from tests.emulators import kubernetes as server
from tests.jobs.clusters import JOB, ready
from tests.jobs.conftest import here, loopback, run  # noqa: F401
from tests.jobs.test_kubernetes_backend import cats  # noqa: F401
from tests.shown import shown

WHOLE = Cluster(queue="gpus", service_account="trainer", pull_secret="registry")


def add(loopback: server.Cluster, kind: str, name: str, **more: Any) -> None:  # noqa: F811
    meta = {"name": name, **more.pop("metadata", {})}
    loopback.objects.create(kind, "default", {"metadata": meta, **more})


@pytest.fixture
def whole(loopback: server.Cluster) -> server.Cluster:  # noqa: F811
    """A cluster in which nothing is missing."""
    add(loopback, "localqueues", "gpus")
    add(loopback, "secrets", "registry")
    add(loopback, "serviceaccounts", "trainer")
    return loopback


def examined(cluster: Cluster = WHOLE, job: str = JOB) -> dict[str, DoctorFinding]:
    subject = kubernetes.ClusterJobs(Kubernetes(cluster), ready(job, cluster))
    return by_name(examine(subject))


def test_each_thing_that_is_missing_has_its_remedy(
    loopback: server.Cluster,  # noqa: F811
) -> None:
    findings = examined()
    for name, fix in {
        "queue": "kubectl get localqueues -n default",
        "pull secret": "kubectl create -n default secret docker-registry registry",
        "service account": "kubectl create -n default sa trainer",
    }.items():
        assert findings[name].severity == "error" and findings[name].remedy.startswith(fix)
    loopback.faults.missing = {server.JOBSETS, "kueue.x-k8s.io/v1beta1"}
    findings = examined()
    assert {severities(findings)[name] for name in ("JobSet", "job", "queue")} == {"error"}
    assert "install JobSet 0.10.1" in findings["JobSet"].remedy
    space = examined(Cluster(namespace="nowhere"))["namespace"]
    assert (space.message, space.remedy) == (
        "nowhere: is not there",
        "kubectl create namespace nowhere",
    )


def test_a_queue_that_admits_no_job_says_why(whole: server.Cluster) -> None:
    words = "Can't submit new workloads to clusterQueue"
    status = {"conditions": [{"type": "Active", "status": "False", "message": words}]}
    whole.objects.known["localqueues", "default", "gpus"]["status"] = status
    finding = examined()["queue"]
    assert (finding.severity, finding.message) == ("error", f"gpus admits no job now: {words}")


def test_a_right_that_is_missing_has_the_command_that_grants_it(whole: server.Cluster) -> None:
    findings = examined()
    assert set(severities(findings).values()) == {"ok"}
    assert findings["cluster"].message.endswith("answers as loopback: Kubernetes v1.36.0")
    for right, resource in (
        ("create jobsets.jobset.x-k8s.io", "jobsets.jobset.x-k8s.io"),
        ("get pods/log", "pods/log"),
    ):
        whole.faults.forbidden = [f"^{right.partition('.')[0]}"]
        finding = examined()[f"right to {right}"]
        assert finding.severity == "error" and f"--resource={resource} " in finding.remedy
    assert whole.jobsets() == []  # it only asked


def test_what_may_not_be_looked_at_is_a_warning_and_no_answer_ends_the_checks(
    whole: server.Cluster,
) -> None:
    for request, name in (("GET .*/secrets/.*$", "pull secret"), (".*accessreviews", "rights")):
        whole.faults.forbidden = [request]
        assert severities(examined())[name] == "warning"
    whole.faults.token = "another"
    assert list(examined()) == ["cluster"]


def test_a_claim_that_is_missing_or_for_one_node_alone(whole: server.Cluster) -> None:
    job = JOB + "kubernetes: {volumes: {/mnt/runs: runs}}\n"
    finding = examined(job=job)["volume runs"]
    assert (finding.severity, finding.message) == ("error", "runs: is not there")
    add(whole, "persistentvolumeclaims", "runs", spec={"accessModes": ["ReadWriteOnce"]})
    assert examined(job=job)["volume runs"].severity == "ok"
    finding = examined(job=job + "replicas: {workers: 1}\n")["volume runs"]
    assert finding.severity == "warning" and "one node at a time" in finding.message


def test_the_command(run: Run, cats: Path, whole: server.Cluster) -> None:  # noqa: F811
    code, out, _ = run("doctor", "--on", "kubernetes", "--json")
    severity = {finding["name"]: finding["severity"] for finding in json.loads(out)}
    assert code == 0 and severity["queue"] == "warning"
    asked = run("doctor", "--job", "cats", "--on", "kubernetes", "--queue", "none")
    assert shown(asked, {r"cats-[0-9a-f]+": "cats-RUN"}) == snapshot("""\
ok       cluster: http://127.0.0.1:PORT answers as loopback: Kubernetes v1.36.0
ok       namespace: default is there
ok       JobSet: jobset.x-k8s.io/v1alpha2 is there
ok       rights: 10 are granted
error    queue: none: is not there
         kubectl get localqueues -n default shows those that there are
ok       job: the cluster takes cats-RUN
| error: 1 errors prevent the work
| fix:   kubectl get localqueues -n default shows those that there are
exit code 4
""")
