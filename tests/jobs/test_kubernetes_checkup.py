"""What `builder job doctor` finds in a cluster, and the command that it gives for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.jobs.places.kubernetes import checkup
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.place import Kubernetes
from tests.emulators.kubernetes import server
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from tests.jobs.test_kubernetes import ready
from tests.jobs.test_kubernetes_place import JOB, cats, kubelet, loopback, place  # noqa: F401

WHOLE = Cluster(None, "gpus", "trainer", pull_secret="registry")


def add(loopback: server.Cluster, kind: str, name: str, **more: Any) -> None:  # noqa: F811
    meta = {"name": name, **more.pop("metadata", {})}
    space = "" if kind == "nodes" else "default"
    loopback.store.create(kind, space, {"metadata": meta, **more})


@pytest.fixture
def whole(loopback: server.Cluster) -> server.Cluster:  # noqa: F811
    """A cluster in which nothing is missing."""
    add(loopback, "localqueues", "gpus")
    add(loopback, "secrets", "registry")
    bound = {checkup.GOOGLE_ACCOUNT: "t@p.iam.gserviceaccount.com"}
    add(loopback, "serviceaccounts", "trainer", metadata={"annotations": bound})
    labels = {
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "cloud.google.com/gke-accelerator": "nvidia-tesla-v100",
    }
    capacity = {"allocatable": {"nvidia.com/gpu": "2"}}
    add(loopback, "nodes", "n1", metadata={"labels": labels}, status=capacity)
    return loopback


def found(place: Kubernetes, where: Cluster = WHOLE) -> dict[str, tuple[str, str, str]]:  # noqa: F811
    findings = checkup.examine(replace(place, cluster=where), ready(JOB, where))
    return {one.name: (one.state, one.seen, one.remedy) for one in findings}


def test_nothing_is_missing(place: Kubernetes, whole: server.Cluster) -> None:  # noqa: F811
    told = found(place)
    assert {state for state, _, _ in told.values()} == {"ok"}
    assert told["cluster"][1].endswith("answers as loopback: Kubernetes v1.36.0")
    assert told["Google account"][1] == "trainer acts as t@p.iam.gserviceaccount.com"
    assert told["nodes for chief"][1].startswith("1 with ")
    assert whole.jobsets() == []  # it only asked


def test_each_thing_that_is_missing_has_its_remedy(
    place: Kubernetes,  # noqa: F811
    loopback: server.Cluster,  # noqa: F811
) -> None:
    told = found(place)
    for name, fix in {
        "queue": "kubectl get localqueues -n default",
        "pull secret": "kubectl create secret docker-registry registry -n default",
        "service account": "kubectl create serviceaccount trainer -n default",
    }.items():
        assert told[name][0] == "bad" and told[name][2].startswith(fix)
    assert (
        told["nodes for chief"][0] == "note" and "nvidia-tesla-v100" in told["nodes for chief"][1]
    )
    loopback.faults.missing = {server.JOBSETS, "kueue.x-k8s.io/v1beta1"}
    told = found(place)
    assert told["JobSet"][0] == told["job"][0] == told["queue"][0] == "bad"
    assert "install JobSet 0.10.1" in told["JobSet"][2]
    other = found(place, Cluster("nowhere"))
    assert other["namespace"] == (
        "bad",
        "nowhere: is not there",
        "kubectl create namespace nowhere",
    )


@pytest.mark.parametrize(
    ("pattern", "name", "state", "fix"),
    [
        (
            "^create jobsets",
            "right to get, list, create, patch jobsets.jobset.x-k8s.io",
            "bad",
            "--verb=get,list,create,patch --resource=jobsets.jobset.x-k8s.io",
        ),
        ("^get pods/log", "right to get pods/log", "bad", "--verb=get --resource=pods/log"),
        ("^list jobs/", "right to list jobs.batch", "bad", "--resource=jobs.batch"),
        (
            "^patch workloads",
            "right to list, patch workloads.kueue.x-k8s.io",
            "bad",
            "--resource=workloads.kueue.x-k8s.io",
        ),
    ],
)
def test_each_right_that_is_missing_has_the_command_that_grants_it(
    place: Kubernetes,  # noqa: F811
    whole: server.Cluster,
    pattern: str,
    name: str,
    state: str,
    fix: str,
) -> None:
    whole.faults.forbidden = [pattern]
    told = found(place)
    assert told[name][0] == state and fix in told[name][2]
    assert [one for one, (what, _, _) in told.items() if what == "bad"] == [name]


def test_what_may_not_be_looked_at_is_a_note(
    place: Kubernetes,  # noqa: F811
    whole: server.Cluster,
) -> None:
    whole.faults.forbidden = ["GET .*/(nodes|secrets/.*)$"]
    told = found(place)
    assert told["nodes"][0] == told["pull secret"][0] == "note"


def test_a_cluster_that_cannot_be_asked_is_the_only_finding(
    place: Kubernetes,  # noqa: F811
    whole: server.Cluster,
) -> None:
    whole.faults.token = "another"
    assert list(found(place)) == ["cluster"]


def test_the_command(run: Run, cats: Path, whole: server.Cluster) -> None:  # noqa: F811
    code, out, _ = run("job", "doctor", "--on", "kubernetes", "--json")
    assert code == 0
    assert {one["name"]: one["state"] for one in json.loads(out)}["queue"] == "note"
    code, out, err = run("job", "doctor", "cats", "--on", "kubernetes", "--queue", "none")
    assert code == 4 and "bad   queue: none: is not there" in out
    assert "error: 1 findings prevent a job there" in err
