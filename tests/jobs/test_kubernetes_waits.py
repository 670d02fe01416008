"""What holds a job up in a cluster, as status and `why` say it: pods that cannot be created, nodes
that are lost, queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.core.errors import OutsideError
from builder.jobs import watch
from builder.jobs.backends.kubernetes import logs as logs_of_pods
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.backends.kubernetes.waits import Around, looked_at
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.why import diagnose, logs
from tests.conftest import Run
from tests.emulators import kubernetes as server
from tests.emulators.controllers import ROLE
from tests.emulators.kubernetes import Script
from tests.jobs.clusters import JOB, ready
from tests.jobs.test_kubernetes_backend import CLUSTER, ON, cats, send  # noqa: F401

PRIORITY = "no PriorityClass with name high was found"
ACCOUNT = 'error looking up service account default/me: serviceaccount "me" not found'
QUOTA = "failed quota: compute: must specify requests.cpu for: trainer"
SECURITY = 'violates PodSecurity "restricted:latest": runAsNonRoot != true'


@pytest.fixture
def objects(loopback: server.Cluster) -> server.Objects:
    """The objects of a cluster whose pods go on until somebody ends them."""
    loopback.objects.script = lambda pod: Script((), None)
    return loopback.objects


def why(backend: Kubernetes, job: JobStatus) -> diagnose.Diagnosis:
    return diagnose.diagnose(logs.of_job(backend, backend.find(job.display_name)))


@pytest.mark.parametrize("reason", [PRIORITY, ACCOUNT, QUOTA, SECURITY])
def test_pods_that_cannot_be_created_say_why_and_what_to_do(
    reason: str, backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    objects.denied = lambda pod: reason
    job = send(backend, ready(JOB), tmp_path).job
    now = backend.find("cats")
    assert now.state == "pending"
    assert now.error == f"the pods of chief cannot be created: {reason}"
    many = f"(combined from similar events): Error creating: pods is forbidden: {reason}"
    objects.event("Job", objects.list("jobs")[0], "Warning", "FailedCreate", many)
    answer = why(backend, job)
    assert (answer.ending, answer.certainty, answer.again) == ("pod-refused", "certain", "no")
    assert "combined" not in answer.evidence[0].text
    assert reason in answer.evidence[0].text
    objects.denied = lambda pod: ""
    objects.add_pod(objects.list("jobs")[0], 0)  # as soon as the reason is gone
    assert (backend.find("cats").state, backend.find("cats").error) == ("running", "")


def test_events_that_may_not_be_read_hide_nothing_else(
    backend: Kubernetes, loopback: server.Cluster, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    loopback.faults.forbidden = ["GET .*/events", "GET .*/nodes"]
    assert backend.get(job.name).state == "running"


def lose(objects: server.Objects, pod: dict[str, Any]) -> None:
    """Let the node of a pod fall silent, as the node lifecycle controller notices it."""
    words = "Kubelet stopped posting node status."
    ready = {"type": "Ready", "status": "Unknown", "message": words}
    node = {"metadata": {"name": "node-7"}, "status": {"conditions": [ready]}}
    objects.put("nodes", node)
    pod["spec"]["nodeName"] = "node-7"
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    objects.put("pods", pod)


def test_a_node_that_falls_silent_is_named_with_what_to_do(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(CLUSTER), tmp_path).job
    pod = objects.list("pods")[-1]
    lose(objects, pod)
    silent = "worker-1: its node node-7 does not answer: Kubelet stopped posting node status."
    assert (backend.get(job.name).state, backend.get(job.name).error) == ("running", silent)
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    taken["message"] = "Taint manager: deleting due to NoExecute taint"
    pod["status"]["conditions"].append(taken)
    pod["metadata"]["deletionTimestamp"] = server.now()
    objects.put("pods", pod)
    answer = why(backend, job)
    assert answer.ending == "node-lost" and "kubectl delete node" in answer.do
    objects.known.pop(("nodes", "", "node-7"))  # it is gone, and nobody has ended the pod yet
    error = backend.get(job.name).error
    assert error.startswith("worker-1: its node node-7 gives it up: DeletionByTaintManager: Taint")


def test_restarts_count_pods_that_are_gone(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    """A lost node, an eviction and a suspension delete the pod."""
    job = send(backend, ready(JOB), tmp_path).job
    for _ in range(2):
        (pod,) = objects.list("pods")
        objects.remove("pods", "default", pod["metadata"]["name"])
        objects.add_pod(objects.list("jobs")[0], 0)
    (chief,) = backend.get(job.name).replicas
    assert (chief.state, chief.restarts) == ("running", 2)


def expire(objects: server.Objects, jobset: dict[str, Any]) -> None:
    """Let a Job's time be over, whose pods its controller deletes."""
    for pod in objects.pods(jobset):
        objects.remove("pods", "default", pod["metadata"]["name"])
    late = "Job was active longer than specified deadline"
    objects.fail(jobset, objects.list("jobs")[0]["metadata"]["name"], "DeadlineExceeded", late)


def test_a_job_that_expired_without_a_node_never_ran(
    backend: Kubernetes, loopback: server.Cluster, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = objects.list("pods")
    no = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    more = "no new claims to deallocate, preemption: 0/3 nodes are available: 3 No victims."
    objects.event("Pod", pod, "Warning", "FailedScheduling", f"{no}. {more}")
    expire(objects, loopback.jobsets()[0])
    now = backend.find("cats")
    assert (now.state, now.exit_code) == ("expired", 124)
    assert now.error.startswith(f"it never ran: {pod['metadata']['name']} finds no node: {no}; ")
    assert why(backend, job).ending == "stockout"


def test_a_job_that_waited_and_ran_then_expired_needs_more_time(
    backend: Kubernetes, loopback: server.Cluster, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = objects.list("pods")
    objects.event("Pod", pod, "Warning", "FailedScheduling", "0/3 nodes are available: ...")
    objects.event("Pod", pod, "Normal", "Scheduled", "Successfully assigned default/x to node-1")
    expire(objects, loopback.jobsets()[0])
    assert "never ran" not in backend.find("cats").error
    assert why(backend, job).ending == "timeout"


def test_a_volume_that_cannot_be_mounted_is_told_by_its_event(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = objects.list("pods")
    starting = [{"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    objects.put("pods", {**pod, "status": {"phase": "Pending", "containerStatuses": starting}})
    no = 'MountVolume.SetUp failed for volume "bucket-0": driver gcsfuse.csi.storage.gke.io'
    objects.event("Pod", pod, "Warning", "FailedMount", no)
    assert backend.get(job.name).error == f"chief-0: FailedMount: {no}"
    assert why(backend, job).ending == "volume"


FULL = "couldn't assign flavors to pod set chief: insufficient unused quota for nvidia.com/gpu"
UNFIT = "couldn't assign flavors to pod set chief: resource memory unavailable in ClusterQueue"


@pytest.mark.parametrize(
    ("status", "words", "ending"),
    [
        ({"type": "QuotaReserved", "status": "False", "message": FULL}, FULL, "waiting"),
        ({"type": "QuotaReserved", "status": "False", "message": UNFIT}, UNFIT, "queue-unfit"),
        (
            {"type": "QuotaReserved", "status": "False", "message": "LocalQueue a doesn't exist"},
            "LocalQueue a doesn't exist",
            "queue-unfit",
        ),
        ({"type": "QuotaReserved", "status": "True", "message": "Quota reserved"}, "", "waiting"),
    ],
)
def test_a_queued_job_says_what_kueue_says(
    status: dict[str, str], words: str, ending: str, loopback: server.Cluster, tmp_path: Path
) -> None:
    queued, loopback.objects.script = (
        Kubernetes(Cluster(queue="gpus")),
        lambda pod: Script((), None),
    )
    job = send(queued, ready(JOB), tmp_path).job
    (manifest,) = loopback.jobsets()
    manifest["spec"]["suspend"] = True
    loopback.objects.put("jobsets", manifest)
    labels = {"kueue.x-k8s.io/job-uid": manifest["metadata"]["uid"]}
    meta = {"name": "jobset-cats-1a2b3", "namespace": "default", "labels": labels}
    workload: dict[str, Any] = {"metadata": meta, "status": {"conditions": [status]}}
    loopback.objects.put("workloads", workload)
    now = queued.find("cats")
    assert (now.state, now.error) == (
        "queued",
        "waits in the queue gpus" + (f": {words}" if words else ""),
    )
    assert why(queued, job).ending == ending
    check = {"name": "dws", "state": "Pending", "message": "Waiting for resources."}
    workload["status"]["admissionChecks"] = [check]
    loopback.objects.put("workloads", workload)
    said = "; ".join(filter(None, (words, "dws: Waiting for resources.")))
    assert queued.find("cats").error == f"waits in the queue gpus: {said}"
    for gone in ([("workloads", "default", meta["name"])], []):
        for key in gone:
            del loopback.objects.known[key]
        loopback.faults.forbidden = [] if gone else ["GET .*/workloads"]
        assert queued.find("cats").error == "waits in the queue gpus"


QUOTA_LEFT = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved"}
EVICTED = (("QuotaReserved", "False"), ("Evicted", "True"))
RESET = {
    "name": "dws",
    "state": "Pending",
    "message": "Reset to Pending after eviction. Previously: Retry",
}


def waiting(*conditions: dict[str, str], cpu: str = "1", checks: Any = ()) -> dict[str, Any]:
    """A Workload of a queue."""
    container = {"resources": {"requests": {"cpu": cpu}}}
    pods = {"name": "chief", "count": 1, "template": {"spec": {"containers": [container]}}}
    spec = {"queueName": "gpus", "priority": 0, "podSets": [pods]}
    return {"spec": spec, "status": {"conditions": list(conditions), "admissionChecks": checks}}


def test_of_jobs_that_are_alike_kueue_looks_at_one() -> None:
    """As Kueue 0.19.2 does; of the others it said nothing, and so did we."""
    full = waiting({"type": "QuotaReserved", "status": "False", "message": FULL})
    assert Around(workloads=[waiting(), waiting(QUOTA_LEFT), full]).queue() == (
        f"as another job: {FULL}"
    )
    assert Around(workloads=[waiting(cpu="2"), full]).queue() == ""
    assert looked_at(waiting(QUOTA_LEFT)) and not looked_at(waiting())


def test_an_eviction_is_told_once_and_a_check_that_begins_again_with_its_reason() -> None:
    """As Kueue 0.19.2 words it."""
    off = "The workload is deactivated due to AdmissionCheck in Rejected state"
    gone = [{"type": kind, "status": status, "message": off} for kind, status in EVICTED]
    assert Around(workloads=[waiting(*gone, checks=[RESET])]).queue() == off
    before = "Previously: Evicted due to AdmissionCheck in Retry state: no machines"
    again = {"type": "Evicted", "status": "False", "message": before}
    assert Around(workloads=[waiting(QUOTA_LEFT, again, checks=[RESET])]).queue() == before


# --- before a job is sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        (PRIORITY, "kubectl get priorityclasses"),
        (ACCOUNT, "kubectl create sa"),
        (QUOTA, "kubernetes: {requests: {cpu"),
        (SECURITY, "--namespace"),
        ("exceeded quota: a, requested: pods=1, used: pods=2, limited: pods=2", "larger quota"),
    ],
)
def test_pods_are_tried_before_a_job_is_sent(
    reason: str, fix: str, backend: Kubernetes, loopback: server.Cluster, objects: server.Objects
) -> None:
    objects.denied = lambda pod: reason if pod["metadata"]["labels"] else ""
    with pytest.raises(OutsideError) as caught:
        backend.preflight(ready(CLUSTER))
    assert caught.value.message == f"the cluster refuses the pods of chief: {reason}"
    assert fix in caught.value.fix and loopback.jobsets() == [] == objects.list("pods")
    loopback.faults.forbidden = ["POST .*/pods$"]  # who may not try is not hindered
    backend.preflight(ready(CLUSTER))


def test_a_quota_that_is_used_up_does_not_keep_a_job_from_a_queue(objects: server.Objects) -> None:
    objects.denied = lambda pod: "exceeded quota: a, used: pods=2, limited: pods=2"
    Kubernetes(Cluster(queue="gpus")).preflight(ready(JOB, Cluster(queue="gpus")))


@pytest.mark.parametrize("again", [(), (), ("--again",)])
def test_a_dry_run_names_the_job_that_submit_creates(
    again: Any,
    run: Run,
    cats: Path,  # noqa: F811
    loopback: server.Cluster,
) -> None:
    """In the context's namespace, also of a second attempt and of another run."""
    loopback.objects.script = lambda pod: Script(code=2)
    code, out, _ = run("job", "submit", "cats", *ON, "--dry-run", *again)
    assert code == 0
    named = yaml.safe_load(out)["metadata"]["name"]
    doctor = run("doctor", "--job", "cats", *ON)[1]
    assert f"the cluster takes {named.partition('-a')[0].partition('-r')[0]}" in doctor
    assert run("job", "submit", "cats", *ON, *again)[0] == 0
    assert loopback.jobsets()[-1]["metadata"]["name"] == named


# --- losses ---------------------------------------------------------------------------------------


def test_a_spot_job_of_several_replicas_outlives_any_number_of_losses(
    backend: Kubernetes, loopback: server.Cluster, objects: server.Objects, tmp_path: Path
) -> None:
    """One worker is preempted; before its grace is over, the others have lost their peer, with 143
    or with NCCL's 1. Each of these counts, and starts again by itself for the moment."""
    job = send(backend, ready(CLUSTER + "scheduling: {strategy: spot}\n"), tmp_path).job
    for number in range(12):
        chief, *_, worker = objects.list("pods")
        objects.end(chief, (143, 1)[number % 2])
        assert backend.get(job.name).replicas[0].restarts == number + 1
        objects.end(worker, 143, "TerminationByKubelet")
        assert backend.get(job.name).state == "running"
        assert len(objects.list("pods")) == 3
    objects.end(objects.list("pods")[0], 2)  # a fault ends it
    now = backend.get(job.name)
    assert (now.state, now.failed_code) == ("failed", 2)


def test_a_program_that_always_ends_with_1_is_given_up(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    objects.script = lambda pod: Script(code=1)
    now = backend.get(send(backend, ready(CLUSTER), tmp_path).job.name)
    assert (now.state, now.failed_code) == ("failed", 1)
    assert "specified backoff limit" in now.error


def test_the_chiefs_last_words_are_kept_when_a_worker_fails(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    """The controller deletes what still runs, and with it the log."""
    job = send(backend, ready(CLUSTER), tmp_path).job
    looks, lines = iter(range(100)), list[str]()

    def pause() -> None:
        number = next(looks)
        if number < 3:
            chief, *_, worker = objects.list("pods")
            objects.say(chief, f"step {number}")
        if number == 2:
            assert objects.followed[chief["metadata"]["uid"]].wait(60)  # the thread has begun
            objects.say(chief, "worker-1 is lost")
            objects.end(worker, 2)
            assert objects.list("pods", selector=f"{ROLE}=chief") == []

    ended = watch.follow(backend, job, lambda line: lines.append(line.text), pause)
    assert (ended.state, ended.failed_code) == ("failed", 2)
    assert lines == ["step 0", "step 1", "step 2", "worker-1 is lost"]


def test_who_follows_a_job_that_somebody_deletes_ends_as_cancelled(
    backend: Kubernetes, objects: server.Objects, tmp_path: Path
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    looks = iter(range(100))

    def pause() -> None:
        if next(looks) == 1:  # as kubectl delete jobset
            objects.remove("jobsets", "default", job.display_name)

    ended = watch.follow(backend, job, lambda line: None, pause)
    assert (ended.state, ended.exit_code, ended.error) == ("cancelled", 143, "somebody deleted it")


# --- nodes on their way, and what is used ---------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "words", "ending"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{pool-a 1->2 (max: 2)}]", "waiting"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max size reached", "unschedulable"),
    ],
)
def test_a_pod_without_a_node_says_whether_one_is_on_its_way(
    reason: str,
    words: str,
    ending: str,
    backend: Kubernetes,
    objects: server.Objects,
    tmp_path: Path,
) -> None:
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = objects.list("pods")
    no = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    condition = {"type": "PodScheduled", "status": "False", "message": no}
    objects.put("pods", {**pod, "status": {"phase": "Pending", "conditions": [condition]}})
    objects.event("Pod", pod, "Normal", reason, words)
    assert backend.get(job.name).error == f"chief-0 finds no node: {no}; {words}"
    assert why(backend, job).ending == ending


def test_status_shows_what_replicas_use_where_the_cluster_measures_it(
    run: Run,
    cats: Path,  # noqa: F811
    loopback: server.Cluster,
    objects: server.Objects,
) -> None:
    assert run("job", "submit", "cats", *ON)[0] == 0
    (pod,) = objects.list("pods")
    meta = {name: pod["metadata"][name] for name in ("name", "namespace", "labels")}
    usage = {"cpu": "3243694900n", "memory": "3846476Ki"}
    containers = [{"name": "trainer", "usage": usage}]
    objects.put("podmetrics", {"metadata": meta, "containers": containers})
    assert "chief-0: running, 3.2 CPUs, 3.7 GiB, 0 restarts" in run("job", "status", "cats", *ON)[2]
    loopback.faults.bursts = [("GET .*metrics.k8s.io", 503, 99)]  # metrics-server is down
    code, _, err = run("job", "status", "cats", *ON)
    assert code == 0 and "running" in err and "CPUs" not in err
    loopback.faults.missing = {server.METRICS}
    assert run("job", "status", "cats", *ON)[0] == 0


def step(number: int, **gpu: float) -> str:
    return json.dumps({"event": "step", "message": f"step {number}", "step": number, **gpu})


def test_status_shows_what_a_replicas_last_step_said_of_its_gpus(
    backend: Kubernetes, objects: server.Objects, loopback: server.Cluster, tmp_path: Path
) -> None:
    """Where it says nothing, that is said, and not 0; what another pod said before is no news."""
    job = send(backend, ready(CLUSTER), tmp_path).job
    chief, worker, other = objects.list("pods")

    def uses() -> list[str]:
        return [row.uses for row in watch.measured(backend, backend.get(job.name)).replicas]

    assert uses() == ["GPU: not told"] * 3
    full = {"gpu_percent": 87.5, "gpu_memory_bytes": 12 << 30}
    objects.say(chief, step(10, **full))
    objects.say(worker, step(10, gpu_percent=0.0))
    objects.say(chief, "a line of the program")
    told = "GPU 88 %, 12.0 GiB of GPU memory"
    assert uses() == [told, "GPU 0 %", "GPU: not told"]
    page = watch.Watch(backend, job)
    page.look()
    assert [row.uses for row in page.job.replicas] == uses()
    for number in range(logs_of_pods.LATEST):
        objects.say(chief, f"line {number}")
    objects.say(worker, step(11))  # the library has gone away
    assert uses() == ["GPU: not told"] * 3
    objects.say(other, step(12, **full))
    assert uses()[2] == told
    objects.end(other, 143)
    assert uses()[2] == "GPU: not told"  # of the pod that takes its place
    other = objects.list("pods")[-1]
    objects.say(other, step(12, **full))
    loopback.faults.nodes_away = {other["metadata"]["name"]}
    assert uses() == ["GPU: not told"] * 3
    loopback.faults.forbidden = ["GET .*/log"]
    assert uses() == ["GPU: not told"] * 3
    objects.end(chief, 2)
    assert not any(uses())
