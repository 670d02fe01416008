"""Jobs on a loopback cluster that really runs them: containers on this machine's engine, by the
host names, the environment and the rights of their pods. And Debian's own kubectl against it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core import yamlfile
from builder.engine import Engine, containers
from builder.jobs import following, submission
from builder.jobs.places.kubernetes import jobset, kubeconfig
from builder.jobs.places.kubernetes.api import Api
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.protocol import JobStatus
from builder.jobs.ready import Image, Ready
from tests.debian import tool
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.kubelet import Containers, Script, Scripted
from tests.jobs import jobfiles
from tests.jobs.test_job_local import PROGRAMS, judge, left, shell, trainer  # noqa: F401
from tests.jobs.test_kubernetes import ready

ROOT = Path(__file__).resolve().parents[2]
NODES = Cluster(nodes="any")
FOREIGN = f"docker.io/me/shell@{jobfiles.DIGEST}"
OURS = f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"
CHIEF = (
    """CHIEF=$(echo "$TF_CONFIG" | awk -F'"' '{for (i = 1; i <= NF; i++) """
    """if ($i ~ /chief-0-0/) {split($i, a, ":"); print a[1]; exit}}'); """
)
"""A piece of script that reads the chief's address."""


@pytest.fixture
def kubelet(engine: Engine, shell: str, tmp_path: Path) -> Iterator[Containers]:  # noqa: F811
    labels = containers.labels("tests.kubernetes", f"k{os.getpid()}")
    network = engine.client.networks.create(f"kubernetes-{os.getpid()}", labels=labels)
    images = {FOREIGN: shell, OURS: "training:cpu"}
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o777)
    binds = {"/disk": str(tmp_path / "disk"), "/records": str(ROOT / "builder/prove/records")}
    yield Containers(engine, images, network.name, labels, binds)
    network.remove()
    assert left(engine) == []


@pytest.fixture
def loopback(tmp_path: Path, kubelet: Containers) -> Iterator[server.Cluster]:
    with server.running(tmp_path, kubelet) as found:
        yield found


def place(loopback: server.Cluster) -> Kubernetes:
    path = loopback.kubeconfig()
    return Kubernetes(Api(kubeconfig.load(None, {"KUBECONFIG": str(path)})), NODES)


def script(text: str, more: str = "") -> Ready:
    """A job whose replicas run this text in the shell."""
    found = ready(f"image: cpu\nmachine: n1-standard-4\n{more}", NODES, Image(FOREIGN, "sha256:x"))
    return replace(found, job=found.job.model_copy(update={"arguments": (text,)}))


def to_the_end(
    loopback: server.Cluster,
    wanted: Ready,
    tmp_path: Path,
    each: Callable[[str, str], None] = lambda replica, text: None,
) -> tuple[JobStatus, list[str]]:
    """Send a job and follow its log: the job as it ended, the lines as `replica: text`."""
    there, told = place(loopback), list[str]()
    sent = submission.submit(there, wanted, locks=tmp_path)

    def tell(line: Any) -> None:
        told.append(f"{line.replica}: {line.text}")
        each(line.replica, line.text)

    ended = following.follow(there, sent.job, tell, pause=lambda: time.sleep(0.05))
    return ended, told


def pod_of(loopback: server.Cluster, replica: str) -> str:
    """The name of the pod that plays a replica now."""
    role, _, index = replica.rpartition("-")
    found = [
        one["metadata"]["name"]
        for one in loopback.store.list("pods")
        if f"-{role}-0-{index}-" in one["metadata"]["name"] and one["status"]["phase"] == "Running"
    ]
    return str(found[-1])


@pytest.mark.engine
def test_pods_meet_under_their_host_names_and_have_no_rights(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    text = (
        CHIEF + 'echo "host $(hostname) index $JOB_COMPLETION_INDEX"; '
        "grep CapEff /proc/self/status; df -m /dev/shm | tail -1; "
        "until [ -e /disk/read ]; do case $(hostname) in "
        "*chief*) timeout 1 nc -l -p 2222;; "
        '*) echo "met $(hostname)" | timeout 1 nc $CHIEF 2222; sleep 0.1;; esac; done; true'
    )
    heard = set[str]()

    def release(replica: str, text: str) -> None:
        """When the chief has succeeded, the cluster deletes the other pods with their logs."""
        if text.startswith(("host ", "met ")):
            heard.add(f"{replica} {text}")
        if len(heard) == 5:
            (tmp_path / "disk" / "read").touch()

    wanted = script(text, "replicas: {workers: 2}\n")
    ended, told = to_the_end(loopback, wanted, tmp_path, release)
    assert (ended.state, ended.exit_code) == ("succeeded", 0), told
    name = ended.display_name
    for replica, host in {
        "chief-0": f"{name}-chief-0-0",
        "worker-0": f"{name}-worker-0-0",
        "worker-1": f"{name}-worker-0-1",
    }.items():
        assert f"{replica}: host {host} index {replica[-1]}" in told
    met = {line for line in told if line.startswith("chief-0: met ")}
    assert met == {f"chief-0: met {name}-worker-0-{index}" for index in (0, 1)}
    assert "chief-0: CapEff:\t0000000000000000" in told
    shm = next(line for line in told if line.endswith("/dev/shm"))
    assert int(shm.split()[2]) > 64


@pytest.mark.engine
def test_each_role_runs_its_own_program(
    kubelet: Containers,
    loopback: server.Cluster,
    judge: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    theirs = f"docker.io/me/judge@{jobfiles.DIGEST}"
    kubelet.images[theirs] = judge
    text = PROGRAMS.replace("SHELL", FOREIGN).replace("JUDGE", theirs).replace("touch /job", ": ")
    text = text.replace("-e /job/worker-1 -a -e /job/judged", "-e /disk/read")
    heard = set[str]()

    def release(replica: str, text: str) -> None:
        heard.add(f"{replica}: {text}")
        if len(heard) == 4:
            (tmp_path / "disk" / "read").touch()

    wanted = ready(text, NODES, Image(FOREIGN, jobfiles.DIGEST))
    ended, told = to_the_end(loopback, wanted, tmp_path, release)
    assert (ended.state, ended.exit_code) == ("succeeded", 0), told
    assert heard == {
        "chief-0: chief 1",
        "worker-0: worker 0 2",
        "worker-1: worker 1 2",
        "evaluator-0: judge says yes nothing",
    }


AGAIN = (
    "trap 'exit 143' TERM; echo $(hostname) >> /disk/starts; "
    "case $(hostname) in *worker-0-1) n=$(grep -c worker-0-1 /disk/starts); echo begin $n; "
    'until [ "$n" -gt 1 ]; do sleep 0.1; done; touch /disk/done;; '
    "*) until [ -e /disk/done ]; do sleep 0.1; done; sleep 2;; esac; echo over"
)
"""The last worker ends well when it starts for the second time; the others wait for it, and a
little longer: when the chief has succeeded, the cluster deletes the other pods with their logs."""


@pytest.mark.engine
@pytest.mark.parametrize("how", ["killed", "disrupted"])
@pytest.mark.parametrize("restarts", ["worker", "job"])
def test_a_worker_comes_back_by_the_failure_policy(
    engine: Engine,
    kubelet: Containers,
    loopback: server.Cluster,
    tmp_path: Path,
    restarts: str,
    how: str,
) -> None:
    def strike(replica: str, text: str) -> None:
        if (replica, text) != ("worker-1", "begin 1"):
            return
        name = pod_of(loopback, replica)
        if how == "killed":
            engine.client.containers.get(kubelet.ids[name]).kill("SIGKILL")
        else:
            loopback.controllers.disrupt(name)

    more = f"replicas: {{workers: 2}}\nscheduling: {{restarts: {restarts}}}\n"
    ended, told = to_the_end(loopback, script(AGAIN, more), tmp_path, strike)
    assert ended.state == "succeeded", told
    assert "worker-1: begin 2" in told
    starts = (tmp_path / "disk" / "starts").read_text().split()
    again = 1 if restarts == "worker" else 3
    assert len(starts) == 3 + again
    counted = loopback.jobsets()[0]["status"].get("restartsCountTowardsMax", 0)
    assert counted == (1 if (restarts, how) == ("job", "killed") else 0)


@pytest.mark.engine
def test_cancelling_ends_the_containers(
    engine: Engine, loopback: server.Cluster, tmp_path: Path
) -> None:
    waits = script("trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.1; done")

    def stop(replica: str, text: str) -> None:
        if text == "ready":
            there = place(loopback)
            there.cancel(there.find("cats"))

    ended, _ = to_the_end(loopback, waits, tmp_path, stop)
    assert (ended.state, ended.exit_code) == ("cancelled", 143)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.tensorflow
def test_a_cluster_whose_worker_is_killed_and_whose_node_goes_is_as_good_as_one_machine(
    engine: Engine,
    kubelet: Containers,
    loopback: server.Cluster,
    trainer: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Within 0.025 of the accuracy, in the image as it is: no root, a read-only root folder."""
    words = "steps: 200, batch-size: 48, checkpoint-every: 40, deterministic: , records: /records"
    base = "image: cpu\nmachine: n1-standard-4\nscheduling: {restarts: job}\n"

    def job(folder: str, more: str = "") -> Ready:
        text = f"{base}arguments: {{{words}, job-dir: /disk/{folder}}}\n{more}"
        return ready(text, NODES, jobfiles.image("cpu"))

    struck = set[str]()

    def strike(replica: str, text: str) -> None:
        found = re.match(r"step ([0-9]+) of ", text) if replica == "chief-0" else None
        for step, victim in ((80, "worker-1"), (130, "worker-0")):
            if found and int(found[1]) >= step and victim not in struck:
                struck.add(victim)
                name = pod_of(loopback, victim)
                if victim == "worker-1":
                    engine.client.containers.get(kubelet.ids[name]).kill("SIGKILL")
                else:
                    loopback.controllers.disrupt(name)

    assert to_the_end(loopback, job("alone"), tmp_path)[0].exit_code == 0
    several = job("several", "replicas: {workers: 2, evaluator: 1}\n")
    ended, told = to_the_end(loopback, several, tmp_path, strike)
    assert ended.exit_code == 0 and struck == {"worker-0", "worker-1"}, "\n".join(told[-60:])
    assert any("resumed after step" in line for line in told)

    def accuracy(folder: str) -> float:
        summary = json.loads((tmp_path / "disk" / folder / "summary.json").read_text())
        return float(summary["evaluation"]["accuracy"])

    assert accuracy("alone") > 0.95
    assert abs(accuracy("several") - accuracy("alone")) <= 0.0251


# --- kubectl --------------------------------------------------------------------------------------


@pytest.mark.network
def test_debians_kubectl_and_the_factory_mean_the_same_objects(tmp_path: Path) -> None:
    kubectl, go = tool("kubectl", ("kubernetes-client",), suite="forky"), threading.Event()
    scripted = Scripted(lambda pod: Script(("one", "two"), wait=go))
    with server.running(tmp_path, scripted) as cluster:
        file = tmp_path / "job.yaml"
        wanted = ready("image: cpu\nmachine: n1-standard-4\n", NODES)
        file.write_text(yamlfile.dump(jobset.jobset(wanted, NODES)))
        config = ["--kubeconfig", cluster.kubeconfig(), "--cache-dir", tmp_path / "cache"]

        def run(*words: str, code: int = 0) -> str:
            done = subprocess.run(
                [kubectl, *config, *words], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        for command in (["create"], ["apply"], ["apply", "--server-side"]):
            assert "(server dry run)" in run(*command, "-f", str(file), "--dry-run=server")
        assert cluster.jobsets() == []
        bad = tmp_path / "bad.yaml"
        bad.write_text(file.read_text().replace("completionMode", "completionMood"))
        assert "completionMood" in run("create", "-f", str(bad), code=1)
        assert "created" in run("apply", "-f", str(file))
        found = submission.submit(place(cluster), wanted, locks=tmp_path)
        assert not found.created  # what kubectl made is the same job
        assert "AlreadyExists" in run("create", "-f", str(file), code=1)
        watching = subprocess.Popen(
            [kubectl, *config, "get", "jobset", "-w", "-o", "name"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        name = found.job.display_name
        assert watching.stdout.readline().strip() == f"jobset.jobset.x-k8s.io/{name}"
        told = run("logs", "-l", "builder-job=cats", "--prefix", "--tail=-1")
        assert [line.split()[-1] for line in told.splitlines()] == ["one", "two"]
        go.set()
        run("wait", "--for=condition=Completed", f"jobset/{name}", "--timeout=30s")
        assert watching.stdout.readline().strip() == f"jobset.jobset.x-k8s.io/{name}"
        watching.terminate()
        watching.wait(10)
        assert place(cluster).find("cats").state == "succeeded"
        run("delete", "jobset", "-l", "builder-job=cats")
        assert cluster.store.list("pods") == [] == cluster.jobsets()
