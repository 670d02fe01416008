"""Jobs on a loopback cluster: how each end is told, what a fault does, the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from builder import contract
from builder.core.errors import InputError, OutsideError
from builder.jobs import following, images, submission
from builder.jobs.places.kubernetes import jobset, kubeconfig
from builder.jobs.places.kubernetes import prepare as preparing
from builder.jobs.places.kubernetes.api import Api
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.protocol import JobStatus, LostAnswer
from builder.jobs.ready import Image, Ready
from tests.clock import until
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.kubelet import Script, Scripted
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from tests.jobs.test_kubernetes import ready

JOB = "image: v100\nmachine: n1-standard-8\naccelerators: 2 x V100\njob_dir: gs://b-b/jobs/{job}\n"
CLUSTER = JOB + "replicas: {workers: 2}\n"


@pytest.fixture
def kubelet() -> Scripted:
    return Scripted()


@pytest.fixture
def loopback(tmp_path: Path, kubelet: Scripted) -> Iterator[server.Cluster]:
    with server.running(tmp_path, kubelet) as found:
        yield found


@pytest.fixture
def place(loopback: server.Cluster) -> Kubernetes:
    return connected(loopback)


def connected(loopback: server.Cluster, **user: Any) -> Kubernetes:
    path = loopback.kubeconfig(**user)
    return Kubernetes(Api(kubeconfig.load(None, {"KUBECONFIG": str(path)})), Cluster())


def send(place: Kubernetes, wanted: Ready, tmp_path: Path, **more: Any) -> submission.Submitted:
    return submission.submit(place, wanted, locks=tmp_path / "locks", **more)


def ended(place: Kubernetes, job: JobStatus) -> JobStatus:
    return following.wait(place, job, poll=0.02, timeout=60)


def role_of(pod: Any) -> str:
    return str(pod["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"])


# --- how a job ends -------------------------------------------------------------------------------


def test_a_cluster_says_what_it_ran_on(place: Kubernetes, tmp_path: Path) -> None:
    job = ended(place, send(place, ready(CLUSTER), tmp_path).job)
    assert (job.state, job.exit_code, job.kind, job.run) == ("succeeded", 0, "custom", 1)
    assert job.image == f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"
    assert job.output == f"gs://b-b/jobs/{job.display_name}"
    chief, worker = job.pools
    assert (chief.role, chief.count, chief.machine) == ("chief", 1, "n1-standard-8")
    assert (worker.count, worker.accelerator, worker.accelerators) == (2, "NVIDIA_TESLA_V100", 2)
    assert job.started is not None and job.ended is not None


def test_each_replica_has_its_state_and_its_restarts(
    place: Kubernetes, kubelet: Scripted, tmp_path: Path
) -> None:
    go = threading.Event()

    def script(pod: Any) -> Script:
        seen = [one for one in kubelet.pods if one["spec"]["hostname"] == pod["spec"]["hostname"]]
        broken = role_of(pod) == "worker" and len(seen) == 1
        return Script((f"begin {len(seen)}",), 137 if broken else 0, None if broken else go)

    kubelet.script = script
    job = send(place, ready(CLUSTER + "scheduling: {restarts: worker}\n"), tmp_path).job
    until(lambda: [one.restarts for one in place.get(job.name).replicas] == [0, 1, 1])
    until(lambda: all(one.state == "running" for one in place.get(job.name).replicas))
    now = place.get(job.name)
    assert [one.name for one in now.replicas] == ["chief-0", "worker-0", "worker-1"]
    lines = [line.text for line in place.log(job, "worker-1").new()]
    assert lines == ["begin 1", "begin 2"]
    go.set()
    assert ended(place, job).exit_code == 0


@pytest.mark.parametrize(
    ("restarts", "code", "state", "pods"),
    [
        ("worker", contract.USAGE, "failed", 1),
        ("job", contract.USAGE, "failed", 1),
        ("never", contract.RESTART, "failed", 1),
        ("worker", contract.RESTART, "failed", 6),
        ("job", contract.RESTART, "failed", 6),
    ],
)
def test_exit_codes_and_restarts(
    place: Kubernetes,
    kubelet: Scripted,
    tmp_path: Path,
    restarts: str,
    code: int,
    state: str,
    pods: int,
) -> None:
    kubelet.script = lambda pod: Script(("x",), code)
    job = send(place, ready(JOB + f"scheduling: {{restarts: {restarts}}}\n"), tmp_path).job
    done = ended(place, job)
    assert (done.state, done.exit_code, len(kubelet.pods)) == (state, code, pods)
    assert done.error.startswith(f"chief-0 ended with exit code {code}; ")
    assert done.replicas[0].restarts == pods - 1
    assert send(place, ready(JOB), tmp_path).created  # another job


@pytest.mark.parametrize("restarts", ["worker", "job"])
def test_a_node_that_is_taken_away_counts_nothing(
    loopback: server.Cluster, place: Kubernetes, kubelet: Scripted, tmp_path: Path, restarts: str
) -> None:
    go = threading.Event()
    kubelet.script = lambda pod: Script(("x",), wait=go)
    text = CLUSTER + f"scheduling: {{restarts: {restarts}}}\n"
    job = send(place, ready(text), tmp_path).job
    for number in range(1, 8):  # more often than restarts are allowed
        victim = until(
            lambda: next(
                (
                    one["metadata"]["name"]
                    for one in loopback.store.list("pods")
                    if one["metadata"]["labels"][jobset.NAME_LABEL] == "cats"
                    and role_of(one) == "worker"
                    and one["status"]["phase"] == "Running"
                    and "deletionTimestamp" not in one["metadata"]
                ),
                None,
            )
        )
        loopback.controllers.disrupt(victim)
        count = 3 + number * (1 if restarts == "worker" else 3)
        until(lambda count=count: len(kubelet.pods) == count)  # type: ignore[misc]
    go.set()
    assert ended(place, job).state == "succeeded"


def test_a_job_that_takes_too_long_expires(
    place: Kubernetes, kubelet: Scripted, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script(wait=threading.Event())
    wanted = ready(JOB)
    short = wanted.job.scheduling.model_copy(update={"timeout": 1})
    wanted = replace(wanted, job=wanted.job.model_copy(update={"scheduling": short}))
    done = ended(place, send(place, wanted, tmp_path).job)
    assert (done.state, done.exit_code) == ("expired", 124)
    assert "longer than specified deadline" in done.error


def test_a_job_that_failed_is_made_anew_and_writes_to_the_same_folder(
    place: Kubernetes, kubelet: Scripted, loopback: server.Cluster, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script(code=2)
    first = ended(place, send(place, ready(JOB), tmp_path).job)
    kubelet.script = lambda pod: Script()
    second = send(place, ready(JOB), tmp_path)
    assert second.created and second.job.display_name == f"{first.display_name}-a2"
    assert ended(place, second.job).output == first.output
    third = send(place, ready(JOB), tmp_path, again=True)
    assert third.job.display_name == f"{first.display_name}-r2"
    assert third.job.output == f"{first.output}-r2"
    assert len(loopback.jobsets()) == 3


def test_a_pod_that_finds_no_node_says_so(
    place: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.controllers.pods_stay_pending = (
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    job = send(place, ready(JOB), tmp_path).job
    now = until(lambda: (s := place.get(job.name)).error and s)
    assert now.state == "pending"
    assert now.error == f"chief-0 finds no node: {loopback.controllers.pods_stay_pending}"


# --- Kueue ----------------------------------------------------------------------------------------


def test_a_job_in_a_queue_waits_and_is_cancelled_there(
    place: Kubernetes, loopback: server.Cluster, kubelet: Scripted, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script(wait=threading.Event())
    queued = replace(place, cluster=Cluster(queue="gpus"))
    job = send(queued, ready(JOB), tmp_path).job
    made = loopback.jobsets()[0]
    made["spec"]["suspend"] = True  # as Kueue's webhook does
    loopback.store.update("jobsets", made)
    uid = made["metadata"]["uid"]
    workload = {"metadata": {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": uid}}, "spec": {}}
    loopback.store.create("workloads", "default", workload)
    now = queued.get(job.name)
    assert (now.state, now.error) == ("queued", "waits in the queue gpus")
    queued.cancel(job)
    assert loopback.store.get("workloads", "default", "w")["spec"] == {"active": False}
    assert ended(queued, job).state == "cancelled"


def test_a_queue_label_on_a_cluster_without_kueue(
    place: Kubernetes, loopback: server.Cluster, kubelet: Scripted, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script(wait=threading.Event())
    loopback.faults.missing = {"kueue.x-k8s.io/v1beta1"}
    queued = replace(place, cluster=Cluster(queue="gpus"))
    job = send(queued, ready(JOB), tmp_path).job
    queued.cancel(job)
    assert ended(queued, job).exit_code == 143


# --- once -----------------------------------------------------------------------------------------


def test_a_connection_that_broke_after_the_deed_makes_no_second_job(
    place: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.faults.cut_create = 1
    assert send(place, ready(JOB), tmp_path).created
    assert len(loopback.jobsets()) == 1


def test_a_server_that_is_busy_is_asked_again(
    place: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.faults.bursts = [("POST .*jobsets$", 503, 1), ("GET .*jobsets$", 500, 2)]
    with pytest.raises(OutsideError, match="error 503"):  # it was not made: 503 says so
        place.create(ready(JOB))
    loopback.faults.bursts = [("POST .*jobsets$", 504, 1), ("GET .*jobsets$", 500, 2)]
    assert send(place, ready(JOB), tmp_path).created
    assert len(loopback.jobsets()) == 1


def test_many_commands_at_once_make_one_job(
    place: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.faults.cut_create = 2
    with ThreadPoolExecutor(6) as pool:
        folders = [tmp_path / str(number) for number in range(6)]  # as on six machines
        places = [connected(loopback) for _ in folders]
        sent = list(pool.map(lambda one, folder: send(one, ready(JOB), folder), places, folders))
    assert len(loopback.jobsets()) == 1
    assert len({one.job.name for one in sent}) == 1


def test_another_namespace_knows_nothing_of_it(place: Kubernetes, tmp_path: Path) -> None:
    job = send(place, ready(JOB), tmp_path).job
    other = replace(place, cluster=Cluster("training"))
    assert other.newest() == () and [one.name for one in place.newest()] == [job.name]
    assert other.find(job.name).name == job.name  # by its whole name
    with pytest.raises(OutsideError, match="no job is called cats in the namespace training"):
        other.find("cats")


def test_the_hundredth_attempt_is_refused() -> None:
    with pytest.raises(InputError, match="99 times already") as error:
        jobset.name(ready(JOB), Cluster(), 1, 100)
    assert error.value.fix.startswith("kubectl delete jobset -l builder-key=")


# --- refusals -------------------------------------------------------------------------------------


def refused(place: Kubernetes) -> OutsideError:
    with pytest.raises(OutsideError) as caught:
        place.create(ready(JOB))
    assert "\n" not in caught.value.message and caught.value.fix
    return caught.value


def test_each_refusal_is_one_line_and_a_way_out(
    place: Kubernetes, loopback: server.Cluster
) -> None:
    loopback.faults.forbidden = ["POST .*jobsets"]
    assert "not allowed: User" in refused(place).message
    loopback.faults.forbidden = []
    loopback.faults.missing = {server.JOBSETS}
    assert "the cluster knows no JobSet" in refused(place).message
    loopback.faults.missing = set()
    loopback.faults.token = "other"
    found = refused(place)
    assert "the credentials are not accepted" in found.message and "log in again" in found.fix


def test_a_field_that_the_server_does_not_know(place: Kubernetes) -> None:
    wanted = place.render(ready(JOB))
    wanted["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 1
    with pytest.raises(
        OutsideError, match=r"refused: JobSet in version .*strict decoding error.*completion"
    ):
        place.api.create(place.api.path(server.JOBSETS, "jobsets"), wanted)


def test_a_name_that_the_webhook_refuses(place: Kubernetes) -> None:
    wanted = place.render(ready(JOB))
    wanted["metadata"]["name"] = "n" * 60
    with pytest.raises(OutsideError, match=r"refused: JobSet .* is invalid: .*63 characters"):
        place.api.create(place.api.path(server.JOBSETS, "jobsets"), wanted)


def test_nobody_listens(loopback: server.Cluster) -> None:
    access = replace(connected(loopback).api.access, server="http://127.0.0.1:9")
    with pytest.raises(OutsideError, match=r"127.0.0.1:9 cannot be reached: .*refused") as caught:
        Api(access).create("/", {})
    assert not isinstance(caught.value, LostAnswer)  # nothing was sent
    assert "kubectl --context loopback version" in caught.value.fix


# --- logs and usage -------------------------------------------------------------------------------


def test_a_log_that_grows_is_told_once_within_one_second(
    place: Kubernetes, loopback: server.Cluster, kubelet: Scripted, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script((), wait=threading.Event())
    job = send(place, ready(JOB), tmp_path).job
    running = until(lambda: next(iter(loopback.controllers.running.values()), None))
    log, told = place.log(job), list[str]()
    for number in range(60):
        running.say(f"line {number // 2}")  # each text twice
        if number % 7 == 0:
            told += [line.text for line in log.new()]
    running.say('{"severity": "ERROR", "message": "the end", "event": "error"}')
    last = log.new()
    told += [line.text for line in last]
    assert told == [f"line {number // 2}" for number in range(60)] + ["the end"]
    assert (last[-1].severity, last[-1].fields["event"]) == ("ERROR", "error")
    assert log.new() == ()
    place.cancel(job)


def test_cpu_and_memory_where_there_is_a_metrics_server(
    place: Kubernetes, loopback: server.Cluster, kubelet: Scripted, tmp_path: Path
) -> None:
    kubelet.script = lambda pod: Script(wait=threading.Event())
    job = send(place, ready(JOB), tmp_path).job
    sample = until(lambda: place.usage(job).new())[0]
    assert (sample.replica, sample.cpu, sample.memory) == ("chief-0", 0.25, 64 * 2**20)
    loopback.faults.missing = {"metrics.k8s.io/v1beta1"}
    assert place.usage(job).new() == ()
    place.cancel(job)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def cats(
    here: Path,  # noqa: F811
    loopback: server.Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A project whose job cats names an image by digest, which lies in no registry."""
    found = Image(f"me.example/own@{jobfiles.DIGEST}", jobfiles.DIGEST)
    monkeypatch.setattr(images, "pushed_image", lambda *_: (found, ()))
    monkeypatch.setenv("KUBECONFIG", str(loopback.kubeconfig()))
    text = f"image: {found.reference}\nmachine: n1-standard-8\narguments: {{steps: 3}}\n"
    (here / "jobs" / "cats.yaml").write_text(text)
    return here


ON = ("--on", "kubernetes")
FAST = ("--poll", "0.05")


def test_submit_and_all_that_asks_about_it(
    run: Run,  # noqa: F811
    cats: Path,
    kubelet: Scripted,
) -> None:
    kubelet.script = lambda pod: Script(("step 3 of 3: loss 0.5",), code=2)
    code, _, err = run("job", "submit", "cats", *ON, "--logs", *FAST)
    assert code == 2 and "chief-0" in err and "step 3 of 3: loss 0.5" in err
    assert "failed" in err
    assert json.loads(run("job", "status", "cats", *ON, "--json")[1])["code"] == 2
    assert json.loads(run("job", "list", *ON, "--json")[1])[0]["exit_code"] == 2
    assert run("job", "wait", "cats", *ON, *FAST)[0] == 2
    assert "loss 0.5" in run("job", "logs", "cats", *ON)[2]
    page = json.loads(run("job", "watch", "cats", *ON, "--json")[1])
    assert (page["state"], page["replicas"][0]["step"]) == ("failed", 3)
    why = json.loads(run("job", "why", "cats", *ON, "--json")[1])
    assert "exit code 2" in json.dumps(why)
    code, _, err = run("job", "cost", "cats", *ON, "--after")
    assert code == 0 and "a cluster's nodes may differ" in err and "n1-standard-8" in err
    code, _, err = run("job", "cost", "cats", *ON, "--for", "1h")
    assert code == 0 and "1 x n1-standard-8" in err


def test_cancel_and_the_command_that_finds_it(
    run: Run,  # noqa: F811
    cats: Path,
    kubelet: Scripted,
) -> None:
    kubelet.script = lambda pod: Script(wait=threading.Event())
    made = json.loads(run("job", "submit", "cats", *ON, "--json")[1])
    assert made["made"] is True
    assert json.loads(run("job", "submit", "cats", *ON, "--json")[1])["made"] is False
    assert run("job", "cancel", "cats", *ON)[0] == 0
    assert run("job", "wait", "cats", *ON, *FAST)[0] == 143
    assert "it has cancelled already" in run("job", "cancel", "cats", *ON)[2]


def test_a_dry_run_is_checked_there_and_creates_nothing(
    run: Run,  # noqa: F811
    cats: Path,
    loopback: server.Cluster,
) -> None:
    code, out, _ = run("job", "submit", "cats", *ON, "--dry-run", "--", "--steps", "9")
    made = YAML(typ="safe").load(out)
    assert code == 0 and made["kind"] == "JobSet" and loopback.jobsets() == []
    container = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert container["containers"][0]["args"] == ["--steps=3", "--steps", "9"]
    assert made["metadata"]["namespace"] == "default"
    loopback.faults.missing = {server.JOBSETS}
    code, out, err = run("job", "submit", "cats", *ON, "--dry-run")
    assert (code, out) == (3, "") and "the cluster knows no JobSet" in err


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        (("status", "cats", "--on", "eks"), "--on eks: no place", "kubernetes"),
        (("status", "cats", "--on", "here"), "no job is sent to this machine", "watch"),
        (("status", "cats", "--context", "c"), "--context is an option of --on kubernetes", "--on"),
        (("list", *ON, "--region", "us-central1"), "--region is an option of --on vertex", "--on"),
        (
            ("submit", "cats", *ON, "--project", "p-12345"),
            "--project: --on kubernetes has none",
            "",
        ),
        (("submit", "cats", "--queue", "q"), "--queue: --on vertex has none", "remove --queue"),
        (("status", "cats", *ON, "--context", "c"), "no context is called c", "loopback"),
        (("status", "cats", *ON, "--namespace", "N"), "--namespace: 'N'", "training"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_way_out_another(
    run: Run,  # noqa: F811
    cats: Path,
    words: tuple[str, ...],
    said: str,
    fix: str,
) -> None:
    code, out, err = run("job", *words)
    assert (code, out) == (2, "") and said in err.splitlines()[-2] and fix in err.splitlines()[-1]


def test_a_package_is_checked_before_it_is_built(
    cats: Path, place: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cats / "jobs" / "cats.yaml").write_text(
        "image: v100\nmachine: n1-standard-8\naccelerators: T4\n"
    )
    from builder.core import settings
    from builder.jobs.images import ProgramFolder

    (cats / "program").mkdir()
    (cats / "program" / "train.py").write_text("")

    def connect() -> Any:
        raise AssertionError("the engine was asked before the check")

    package = ProgramFolder(cats / "program", "train", connect)
    with pytest.raises(InputError, match=r"cats\.yaml:1: image"):
        preparing.prepare(cats, "cats", settings.load(cats), place.cluster, True, package)
