"""Queues of the real Kueue: what a job waits for there, and what its commands say of it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes import client

from tests.cluster import kueue, programs
from tests.cluster.access import Access, Gate, ended, lines
from tests.commands import builder

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
Describe = Callable[..., str]
HALF = "kubernetes: {requests: {cpu: 600m}}\n"
"""More than half of a queue."""
RACK = "example.com/rack"


@pytest.fixture(scope="module")
def queues(access: Access) -> Iterator[Access]:
    """A namespace in a cluster with Kueue."""
    if not access.own:
        pytest.skip("no cluster into which a test may install Kueue")
    try:
        built = programs.kueue()
    except programs.NotBuilt as missing:
        pytest.skip(str(missing))
    with kueue.running(access, built), access.within() as inside:
        yield inside


@dataclass(frozen=True)
class Queue:
    access: Access
    name: str

    def start(self, job: str) -> subprocess.Popen[str]:
        """Submit a job and follow it."""
        return self.access.start("submit", job, "--queue", self.name, "--logs", "--poll", "0.5")

    def waits(self, job: str, words: str) -> str:
        """Wait until a job is queued for this reason. Returns what is said of it."""
        here = f"waits in the queue {self.name}: "
        now = self.access.until(job, lambda now: now.error.startswith(here) and words in now.error)
        assert now.state == "queued"
        return now.error

    def doctor(self) -> str:
        where = ("--namespace", self.access.namespace, "--queue", self.name)
        done = builder("doctor", "--on", "kubernetes", *where, KUBECONFIG=self.access.kubeconfig)
        return done.stdout


Spec = dict[str, Any]


def made(
    access: Access, name: str = "", cpu: str = "1", flavor: Spec | None = None, **more: Any
) -> Queue:
    """Make a queue with some processors and one GPU, and a flavor of its name."""
    name = name or f"queue-{uuid.uuid4().hex[:6]}"
    quota = {"cpu": cpu, "nvidia.com/gpu": "1"}
    amounts = [{"name": kind, "nominalQuota": amount} for kind, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": amounts}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group], **more}
    kueue.create(access, "ResourceFlavor", name, flavor or {})
    kueue.create(access, "ClusterQueue", name, spec)
    kueue.create(access, "LocalQueue", name, {"clusterQueue": name})
    return Queue(access, name)


def test_a_job_waits_for_the_quota_that_another_holds(
    queues: Access, project: Describe, gate: Gate
) -> None:
    queue = made(queues)
    assert f"ok       queue: {queue.name} is there" in queue.doctor()
    first = project(f"{gate.shell}; echo first", HALF)
    running = queue.start(first)
    queues.until(first, lambda now: now.state == "running")
    second = project("echo second", HALF)
    waiting = queue.start(second)
    said = queue.waits(second, f"insufficient unused quota for cpu in flavor {queue.name}")
    assert said in queues.run("why", second)[1]
    third = project("echo third", HALF)
    behind = queue.start(third)
    queue.waits(third, "as another job: couldn't assign flavors")
    gate.open()
    for process, word in ((behind, "third"), (running, "first"), (waiting, "second")):
        code, shown = ended(process)
        assert code == 0 and lines(shown)["chief-0"] == [word], shown
    assert said in shown


def test_a_job_that_no_queue_can_take_says_why(queues: Access, project: Describe) -> None:
    """For a queue that is not there yet, for one that is stopped, and larger than its queue."""
    nowhere = Queue(queues, f"queue-{uuid.uuid4().hex[:6]}")
    name = project("echo done", HALF)
    following = nowhere.start(name)
    nowhere.waits(name, f"LocalQueue {nowhere.name} doesn't exist")
    assert "Waiting does not help" in queues.run("why", name)[1]
    queue = made(queues, nowhere.name)
    code, shown = ended(following)
    assert code == 0 and lines(shown)["chief-0"] == ["done"], shown
    large = project("echo never", "accelerators: 2 x V100\n")
    assert queues.run("submit", large, "--queue", queue.name)[0] == 0
    said = queue.waits(large, "insufficient quota for nvidia.com/gpu")
    assert said in queues.run("why", large)[1]
    kueue.stop(queues, queue.name)
    said = queue.waits(large, f"LocalQueue {queue.name} is inactive")
    assert "Waiting does not help" in queues.run("why", large)[1]
    assert (
        f"error    queue: {queue.name} admits no job now: LocalQueue is stopped" in queue.doctor()
    )


@contextmanager
def priority(access: Access, value: int) -> Iterator[str]:
    api, name = client.SchedulingV1Api(access.api), f"priority-{uuid.uuid4().hex[:6]}"
    api.create_priority_class({"metadata": {"name": name}, "value": value})
    try:
        yield name
    finally:
        api.delete_priority_class(name)


def test_a_higher_priority_takes_the_place_of_a_job_that_then_goes_on(
    queues: Access, project: Describe, gate: Gate
) -> None:
    queue = made(queues, preemption={"withinClusterQueue": "LowerPriority"})
    other = Gate(gate.access, f"{gate.name}-high")
    low = project(f"trap 'exit 143' TERM; echo begins; {gate.shell}; echo ends", HALF)
    evicted = queue.start(low)
    queues.until(low, lambda now: now.state == "running")
    with priority(queues, 1000) as high:
        more = HALF.replace("{requests", f"{{priority: {high}, requests")
        first = queue.start(project(f"{other.shell}; echo first", more))
        queue.waits(low, "Preempted to accommodate a workload")
        code, shown = queues.run("why", low)
        assert code == 0 and "waiting\n" in shown and "Preempted to accommodate" in shown, shown
        other.open()
        assert ended(first)[0] == 0
    queues.until(low, lambda now: now.state == "running" and now.replicas[0].restarts == 1)
    gate.open()
    code, shown = ended(evicted)
    assert code == 0 and lines(shown)["chief-0"] == ["begins", "begins", "ends"], shown
    assert "Preempted to accommodate a workload" in shown


@pytest.fixture
def racks(queues: Access) -> Iterator[Queue]:
    """A queue whose Topology has a rack for each node."""
    nodes, label = ("node-0", "node-1"), f"rack-{uuid.uuid4().hex[:6]}"
    for node in nodes:
        queues.core.patch_node(node, {"metadata": {"labels": {RACK: node, "racks": label}}})
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    kueue.create(queues, "Topology", label, {"levels": levels})
    yield made(queues, cpu="4", flavor={"nodeLabels": {"racks": label}, "topologyName": label})
    for node in nodes:
        queues.core.patch_node(node, {"metadata": {"labels": {RACK: None, "racks": None}}})


def test_pods_of_a_role_stand_in_one_rack_or_the_job_waits(
    racks: Queue, queues: Access, project: Describe, gate: Gate
) -> None:
    """A machine of the tests has two processors."""
    more = "replicas: {workers: 2}\nkubernetes: {requests: {cpu: CPU}, topology: {KIND: RACK}}\n"

    def wanted(cpu: str, kind: str = "required") -> str:
        return more.replace("CPU", cpu).replace("KIND", kind).replace("RACK", RACK)

    large = project("echo never", wanted("1100m"))
    assert queues.run("submit", large, "--queue", racks.name)[0] == 0
    said = racks.waits(large, "allows to fit only 1 out of 2 pod(s)")
    assert said in queues.run("why", large)[1]
    assert queues.run("cancel", large)[0] == 0
    small = project(f"{gate.shell}; echo done", wanted("300m"))
    following = racks.start(small)
    queues.until(small, lambda now: all(each.state == "running" for each in now.replicas))
    assert len({pod.spec.node_name for pod in queues.pods(small, "worker")}) == 1
    gate.open()
    assert ended(following)[0] == 0
