"""Faults that only a real cluster shows: pods that are not made, nodes that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.access import Access, Gate, ended, lines, told

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
Describe = Callable[..., str]
COUNTING = "trap 'exit 143' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done"
POLL = ("--poll", "0.5")
APART = "kubernetes: {requests: {cpu: 1100m}}\n"
"""More than half of a machine with two cores: no two replicas on a node of the tests' cluster."""


@pytest.fixture
def restricted(access: Access) -> Iterator[Access]:
    """A namespace of the test's own, whose policies it sets."""
    with access.within() as inside:
        yield inside


@contextmanager
def quota(access: Access, **hard: str) -> Iterator[None]:
    body = {"metadata": {"name": "quota"}, "spec": {"hard": hard}}
    access.core.create_namespaced_resource_quota(access.namespace, body)
    try:
        yield
    finally:
        access.core.delete_namespaced_resource_quota("quota", access.namespace)


@pytest.mark.parametrize(
    ("more", "words", "reason"),
    [
        ("kubernetes: {priority: nowhere}\n", (), "no PriorityClass with name nowhere"),
        ("", ("--service-account", "nobody"), 'serviceaccount "nobody" not found'),
        ("", (), "violates PodSecurity"),
    ],
    ids=["PriorityClass", "ServiceAccount", "PodSecurity"],
)
def test_a_pod_that_cannot_be_made_is_refused_before_the_job_is_sent(
    restricted: Access, project: Describe, more: str, words: tuple[str, ...], reason: str
) -> None:
    if "PodSecurity" in reason:
        label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        restricted.core.patch_namespace(restricted.namespace, label)
    name = project("echo never", more)
    code, shown = restricted.run("submit", name, *words)
    assert code in (2, 3) and reason in shown
    assert restricted.jobsets(name) == []


def test_a_quota_that_asks_for_requests_is_said_and_met_by_the_jobs_own(
    restricted: Access, project: Describe
) -> None:
    with quota(restricted, **{"requests.cpu": "1"}):
        code, shown = restricted.run("submit", project("echo never"))
        assert code in (2, 3) and "must specify requests.cpu" in shown
        name = project("echo done", "kubernetes: {requests: {cpu: 100m}}\n")
        code, shown = restricted.run("submit", name, "--logs", "--poll", "0.5")
        assert code == 0 and lines(shown) == {"chief-0": ["done"]}


def test_a_pod_that_cannot_be_made_again_says_why(restricted: Access, project: Describe) -> None:
    """A Job's controller tells it in an Event alone."""
    name = project(COUNTING)
    assert restricted.run("submit", name)[0] == 0
    restricted.until(name, lambda now: now.state == "running")
    with quota(restricted, pods="0"):
        (pod,) = restricted.pods(name)
        restricted.core.delete_namespaced_pod(pod.metadata.name, restricted.namespace)
        now = restricted.until(name, lambda now: "exceeded quota" in now.error)
        assert now.active
        assert "exceeded quota" in restricted.run("why", name)[1]
    assert restricted.run("cancel", name)[0] == 0


def test_an_image_that_cannot_be_pulled_is_said_to_who_follows(
    access: Access, project: Describe
) -> None:
    name = project("echo never", image=f"127.0.0.1:1/none@sha256:{'0' * 64}")
    following = access.start("submit", name, "--logs", "--poll", "0.5")
    shown = told(following, "ErrImagePull")
    assert "127.0.0.1:1/none" in shown
    assert access.run("cancel", name)[0] == 0
    assert ended(following)[0] == 143


def test_a_job_that_found_no_node_until_its_timeout_says_so(
    access: Access, project: Describe
) -> None:
    more = "scheduling: {timeout: 20s}\nkubernetes: {node_selector: {nowhere: 'true'}}\n"
    code, shown = access.run("submit", project("echo never", more), "--logs", "--poll", "0.5")
    assert code == 124 and "didn't match Pod's node affinity/selector" in shown
    assert "a longer timeout" not in shown


def test_a_lost_node_is_said_and_the_others_lines_go_on(
    own: Access, project: Describe, gate: Gate
) -> None:
    name = project(f"{gate.shell}; echo last", f"replicas: {{workers: 1}}\n{APART}")
    following = own.follow(name)
    own.until(name, lambda now: all(each.state == "running" for each in now.replicas))
    chief, worker = (own.pods(name, role)[0] for role in ("chief", "worker"))
    assert chief.spec.node_name != worker.spec.node_name
    with own.away(worker.spec.node_name):
        lost = own.until(name, lambda now: worker.spec.node_name in now.error)
        assert lost.active
        assert worker.spec.node_name in own.run("why", name)[1]
        gate.open()
        own.printed(chief, "last")
    code, shown = ended(following)
    assert code == 0 and lines(shown)["chief-0"] == ["last"], shown


def drained(access: Access, pod: Any) -> None:
    """End a pod as `kubectl drain` does."""
    meta = {"name": pod.metadata.name, "namespace": access.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    access.core.create_namespaced_pod_eviction(pod.metadata.name, access.namespace, body)


def tainted(access: Access, pod: Any) -> None:
    """End a pod by a taint of its node, as a maintenance does."""
    node, taint = pod.spec.node_name, {"key": "maintenance", "effect": "NoExecute"}
    access.core.patch_node(node, {"spec": {"taints": [taint]}})
    access.gone(pod)
    access.core.patch_node(node, {"spec": {"taints": None}})


@pytest.mark.parametrize("disrupt", [drained, tainted])
def test_a_disruption_starts_all_replicas_again_and_is_not_counted(
    own: Access, project: Describe, gate: Gate, disrupt: Callable[[Access, Any], None]
) -> None:
    shell = f"trap 'exit 143' TERM; echo begins; {gate.shell}"
    name = project(shell, "replicas: {workers: 1}\n")
    following = own.follow(name)
    own.until(name, lambda now: all(each.state == "running" for each in now.replicas))
    disrupt(own, own.pods(name, "worker")[0])
    again = own.until(name, lambda now: any(each.restarts for each in now.replicas))
    assert again.active
    own.until(name, lambda now: all(each.state == "running" for each in now.replicas))
    gate.open()
    code, shown = ended(following)
    assert code == 0 and lines(shown)["chief-0"] == ["begins"] * 2, shown


def test_more_losses_than_restarts_do_not_end_a_job(own: Access, project: Describe) -> None:
    """Each loss ended the other replicas, too, and their ends counted: five of them were the end
    of the job."""
    name = project(COUNTING, "replicas: {workers: 1}\n")
    following = own.follow(name)
    for loss in range(1, 7):
        own.until(
            name,
            lambda now, loss=loss: all(
                (each.state, each.restarts) == ("running", loss - 1) for each in now.replicas
            ),
        )
        drained(own, own.pods(name, "worker")[0])
    last = own.until(name, lambda now: all(each.restarts == 6 for each in now.replicas))
    assert last.active
    assert own.run("cancel", name)[0] == 0
    assert ended(following)[0] == 143


def test_a_replica_that_loses_its_peer_may_end_with_1(
    access: Access, project: Describe, gate: Gate
) -> None:
    """As NCCL's errors do: it was a fault of the program, and ended the job."""
    shell = f"case $HOSTNAME in *worker*) exit 1;; esac; {gate.shell}; echo done"
    name = project(shell, "replicas: {workers: 1}\n")
    following = access.follow(name)
    again = access.until(name, lambda now: now.replicas[1].restarts)
    assert again.active
    gate.open()
    code, shown = ended(following)
    assert code == 0 and lines(shown)["chief-0"] == ["done"], shown


def test_a_pod_that_its_kubelet_turns_away_says_why(own: Access, project: Describe) -> None:
    """It has no container, and so no exit code. Here its node loses a label that it asks for,
    between the scheduler's decision and the kubelet's."""
    more = (
        "scheduling: {restarts: never}\n"
        "kubernetes: {node_selector: {kubernetes.io/hostname: node-1, chosen: 'true'}}\n"
    )
    own.core.patch_node("node-1", {"metadata": {"labels": {"chosen": "true"}}})
    name = project("echo never", more)
    with own.away("node-1"):
        following = own.start("submit", name, "--logs", *POLL)
        own.until(name, lambda now: any(pod.spec.node_name for pod in own.pods(name)))
        own.core.patch_node("node-1", {"metadata": {"labels": {"chosen": None}}})
    code, shown = ended(following)
    assert code != 0 and "chief-0 was not run: NodeAffinity" in shown, shown


def test_the_chiefs_last_lines_are_read_when_a_worker_fails(
    access: Access, project: Describe, gate: Gate
) -> None:
    """The chief prints its last line after the worker's end."""
    shell = (
        f"case $HOSTNAME in *worker*) {gate.shell}; exit 3;; esac;"
        f" {gate.shell}; sleep 1; echo last; while :; do sleep 0.2; done"
    )
    name = project(shell, "replicas: {workers: 1}\n")
    following = access.start("submit", name, "--logs", "--poll", "2")
    access.until(name, lambda now: [each.state for each in now.replicas] == ["running"] * 2)
    gate.open()
    code, shown = ended(following)
    assert code == 3 and "worker-0 ended with exit code 3" in shown
    assert lines(shown)["chief-0"] == ["last"], shown


def test_a_dry_run_names_the_jobset_that_submit_creates(access: Access, project: Describe) -> None:
    name = project("echo done")
    code, shown = access.run("submit", name, "--dry-run")
    assert code == 0 and access.jobsets(name) == [], shown
    assert access.run("submit", name)[0] == 0
    (made,) = access.jobsets(name)
    assert f"name: {made['metadata']['name']}\n" in shown


def test_a_ttl_too_short_to_read_the_end_is_refused(access: Access, project: Describe) -> None:
    code, shown = access.run("submit", project("echo done", "kubernetes: {ttl: 1s}\n"))
    assert code == 2 and "ttl" in shown
