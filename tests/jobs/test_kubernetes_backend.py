"""Jobs on a loopback cluster: how each end reads, one job whatever breaks, the command line."""

from __future__ import annotations

import contextlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from inline_snapshot import snapshot

from builder.core.errors import OutsideError
from builder.jobs import images, submission, watch
from builder.jobs.backends.kubernetes import client
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.backends.kubernetes.status import JOB as JOB_LABEL
from builder.jobs.backends.protocol import LostAnswer
from builder.jobs.ready import JobImage, Ready
from tests.conftest import Run
from tests.emulators import kubernetes as server
from tests.emulators.kubernetes import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import JOB, ready
from tests.shown import shown

CLUSTER = JOB + "replicas: {workers: 2}\n"


def send(
    kubernetes: Kubernetes, wanted: Ready, folder: Path, again: bool = False
) -> submission.Submitted:
    return submission.submit(kubernetes, wanted, submission.Memory(folder), again=again)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a server that is too busy asked for; no request waits."""
    pauses: list[float] = []

    def sleep(_: Any, response: Any = None) -> None:
        pauses.append(float(response.headers.get("Retry-After", 0)) if response else 0.0)

    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", sleep)
    monkeypatch.setattr(submission, "LOOKS_AFTER", (0.0, 0.0, 0.0))
    return pauses


# --- what a cluster says --------------------------------------------------------------------------


def test_a_failure_names_the_replica_that_began_it_and_attempts_have_numbers(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    for attempt, code, error in (
        (1, 2, "worker-1 ended with exit code 2; "),
        (2, 137, "worker-1 ran out of memory; "),
    ):
        loopback.objects.script = lambda pod, code=code: Script(
            code=code if "-worker-0-1-" in pod["metadata"]["name"] else None
        )
        sent = send(backend, ready(CLUSTER), tmp_path / str(attempt))
        job = backend.get(sent.job.name)
        assert sent.created and (job.attempt, job.run) == (attempt, 1)
        assert (job.state, job.exit_code) == ("failed", code) and job.error.startswith(error)
        assert "first failed job: " in job.error
    again = send(backend, ready(CLUSTER), tmp_path, again=True).job
    first = job.display_name.removesuffix("-a2")
    assert again.display_name == f"{first}-r2" and again.output == f"{job.output}-r2"


def test_restarts_expiry_and_a_pod_that_finds_no_node(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    objects = loopback.objects
    objects.script = lambda pod: Script(code=None)
    job = send(backend, ready(CLUSTER), tmp_path).job
    (manifest,) = loopback.jobsets()
    for waiting in objects.pods(manifest):
        why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
        objects.put("pods", {**waiting, "status": {"phase": "Pending", "conditions": [why]}})
    now = backend.get(job.name)
    assert (now.state, now.error) == (
        "pending",
        "chief-0 finds no node: 0/3 nodes are available",
    )
    worker = objects.get("jobs", "default", f"{job.display_name}-worker-0")
    objects.add_pod(worker, 1)  # a Job replaces a pod
    states = {
        replica.name: (replica.state, replica.restarts)
        for replica in backend.get(job.name).replicas
    }
    assert states["worker-1"] == ("running", 1) and states["worker-0"] == ("waiting", 0)
    late = "Job was active longer than specified deadline"
    objects.fail(manifest, worker["metadata"]["name"], "DeadlineExceeded", late)
    expired = backend.get(job.name)
    assert (expired.state, expired.exit_code) == ("expired", 124) and late in expired.error


def test_a_job_in_a_queue_waits_and_is_cancelled_there(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    queued = Kubernetes(Cluster(queue="gpus"))
    loopback.objects.script = lambda pod: Script(code=None)
    job = send(queued, ready(JOB), tmp_path).job
    (manifest,) = loopback.jobsets()
    manifest["spec"]["suspend"] = True  # as Kueue's webhook does
    loopback.objects.put("jobsets", manifest)
    now = queued.get(job.name)
    assert (now.state, now.error) == ("queued", "waits in the queue gpus")
    manifest["metadata"]["deletionTimestamp"] = "2026-11-24T03:00:00Z"  # its pods still end
    loopback.objects.put("jobsets", manifest)
    assert queued.get(job.name).state == "cancelling"
    assert queued.cancel(job).state == "cancelled"
    assert loopback.jobsets() == [] == loopback.objects.list("pods")


@pytest.mark.parametrize("hours", [0, 9, -7])
def test_a_log_that_grows_is_read_once_within_one_second(
    hours: int, backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    """Whatever the node's own time is: at +9 hours, later lines were asked for from tomorrow on."""
    loopback.objects.zone = timezone(timedelta(hours=hours))
    loopback.objects.script = lambda pod: Script((), None)
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = loopback.objects.list("pods")
    log, lines = backend.logs(job), list[str]()
    for number in range(60):
        loopback.objects.say(pod, f"line {number // 2}")  # each text twice
        if number % 7 == 0:
            lines += [line.text for line in log.read()]
    loopback.objects.say(pod, "100%\r50%")
    loopback.objects.say(pod, '{"severity": "ERROR", "message": "the end", "event": "error"}')
    last = log.read()
    lines += [line.text for line in last]
    assert lines == [*(f"line {number // 2}" for number in range(60)), "100%\r50%", "the end"]
    assert (last[-1].severity, last[-1].fields["event"]) == ("ERROR", "error")
    assert log.read() == ()


def test_a_node_that_cannot_be_reached_is_told_once_and_hides_no_other(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.objects.script = lambda pod: Script((), None)
    job = send(backend, ready(CLUSTER), tmp_path).job
    first, *others = loopback.objects.list("pods")
    loopback.faults.nodes_away.add(first["metadata"]["name"])
    for pod in others:
        loopback.objects.say(pod, "well")
    log = backend.logs(job)
    told, *lines = sorted(log.read(), key=lambda line: line.text)
    assert told.text.startswith("its log cannot be read now: ") and "no route" in told.text
    assert [line.text for line in lines] == ["well"] * len(others)
    assert log.read() == ()
    loopback.faults.nodes_away.clear()
    loopback.objects.say(first, "back")
    assert [line.text for line in log.read()] == ["back"]


def test_an_api_server_that_is_away_is_asked_again_and_that_is_said_once(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.objects.script = lambda pod: Script((), None)
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = loopback.objects.list("pods")
    looks, lines = iter(range(100)), list[str]()

    def pause() -> None:
        number = next(looks)
        if number == 0:  # each read is tried four times
            loopback.faults.bursts.append(("GET .*jobsets", 503, 12))
        if number == 20:
            assert loopback.objects.followed[pod["metadata"]["uid"]].wait(60)
            loopback.objects.say(pod, "still here")
            loopback.objects.fail(
                loopback.jobsets()[0], pod["metadata"]["labels"][JOB_LABEL], "x", "y"
            )

    ended = watch.follow(backend, job, lambda line: lines.append(line.text), pause)
    assert ended.state == "failed" and "still here" in lines
    assert len([line for line in lines if line.endswith("asking again")]) == 1


def test_a_pod_that_the_kubelet_turns_away_says_why(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path
) -> None:
    loopback.objects.script = lambda pod: Script((), None)
    job = send(backend, ready(JOB), tmp_path).job
    (pod,) = loopback.objects.list("pods")
    status = {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node: 0 of 1 left"}
    loopback.objects.put("pods", {**pod, "status": status})
    loopback.objects.fail(loopback.jobsets()[0], pod["metadata"]["labels"][JOB_LABEL], "x", "y")
    error = backend.get(job.name).error
    assert error.startswith("chief-0 was not run: OutOfnvidia.com/gpu: Node: 0 of 1 left; ")


def test_a_list_whose_token_expires_is_read_from_its_beginning(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE", 1)
    texts = (f"{JOB}environment: {{N: '{n}'}}\n" for n in range(3))
    names = {send(backend, ready(text), tmp_path).job.name for text in texts}
    loopback.faults.expired = 1
    assert {job.name for job in backend.list()} == names


def test_a_long_list_is_read_page_by_page_and_another_namespace_has_its_own(
    backend: Kubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("builder.jobs.backends.kubernetes.client.PAGE", 2)
    for number in range(5):
        job = send(backend, ready(f"{JOB}arguments: {{steps: {number}}}\n"), tmp_path).job
    assert len(backend.list()) == 5 and len(backend.list(limit=3)) == 3
    other = Kubernetes(Cluster(namespace="training"))
    assert other.list() == () and other.find(job.name).name == job.name  # by its whole name
    with pytest.raises(OutsideError, match="no job is called cats in the namespace training"):
        other.find("cats")


def test_a_list_loads_no_pods_of_others(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace that others use, too, may hold thousands."""
    texts = (f"{JOB}environment: {{N: '{n}'}}\n" for n in range(3))
    names = {send(backend, ready(text), tmp_path).job.display_name for text in texts}
    foreign = backend.render(ready(JOB))
    foreign["metadata"] |= {"name": "theirs", "labels": {}}
    loopback.objects.create("jobsets", "default", foreign)
    assert len(loopback.objects.list("pods")) == 4
    answers, items = list[Any](), client.ClusterClient.items

    def recorded(self: client.ClusterClient, path: str, **query: str) -> list[Any]:
        answers.extend(items(self, path, **query))
        return items(self, path, **query)

    monkeypatch.setattr(client.ClusterClient, "items", recorded)
    monkeypatch.setattr("builder.jobs.backends.kubernetes.backend.NAMES", 2)
    assert {job.display_name for job in backend.list()} == names
    assert len(answers) == 3 * 3  # JobSets, Jobs and pods


# --- one job, whatever breaks ---------------------------------------------------------------------


def test_what_may_have_been_created_is_looked_for_and_not_sent_again(
    backend: Kubernetes, loopback: server.Cluster, tmp_path: Path, pauses: list[float]
) -> None:
    loopback.faults.bursts = [("POST .*jobsets$", 503, 1), ("GET .*jobsets$", 500, 2)]
    with pytest.raises(OutsideError, match="error 503"):  # it was not created: 503 says so
        backend.submit(ready(JOB))
    loopback.faults.bursts = [("POST .*jobsets$", 504, 1)]
    with pytest.raises(LostAnswer):
        send(backend, ready(JOB), tmp_path)
    loopback.faults.cut, loopback.faults.bursts = 1, [("GET .*jobsets$", 429, 2)]
    assert send(backend, ready(JOB), tmp_path).created
    assert pauses[-2:] == [1.0, 1.0] and len(loopback.jobsets()) == 1  # as the server asks for


def test_submissions_in_which_everything_breaks_leave_one_job_each(
    loopback: server.Cluster, tmp_path: Path
) -> None:
    """Busy and failing servers, answers that get lost, lists that lag, two commands at once on two
    machines, a third one later; some jobs fail before. BUILDER_RANDOM_FAULTS: how often."""
    dice, faults, objects = random.Random(15), loopback.faults, loopback.objects
    for number in range(int(os.environ.get("BUILDER_RANDOM_FAULTS", "15"))):
        wanted = ready(f"{JOB}arguments: {{steps: {number}}}\n")
        folder, before = tmp_path / str(number), set[str]()
        if dice.random() < 0.3:
            objects.script = lambda pod: Script(code=1)
            before = {send(Kubernetes(Cluster()), wanted, folder / "before").job.display_name}
            objects.script = lambda pod: Script(code=None)
        create, lists = "POST .*jobsets$", "GET .*(jobsets|pods)$"
        bursts = [
            (create, dice.choice((429, 500, 504)), dice.randint(0, 2)),
            (lists, dice.choice((429, 500, 503)), dice.randint(0, 2)),
        ]
        broken = server.Faults(bursts, dice.randint(0, 2), blind=not before and dice.random() < 0.3)
        vars(faults).update(vars(broken))
        with ThreadPoolExecutor(2) as threads:
            machines = [folder / "a", folder / "b"]
            sent = list(threads.map(lambda at, wanted=wanted: persistent(wanted, at), machines))
        vars(faults).update(vars(server.Faults()))
        sent.append(persistent(wanted, folder / "later"))
        names = {obj["metadata"]["name"] for obj in loopback.jobsets()}
        assert len(names) == len(before) + 1, (number, broken)
        assert {each.job.display_name for each in sent} == names - before, (number, broken)
        assert not sent[-1].created, (number, broken)
        for name in names:
            objects.remove("jobsets", "default", name)


def persistent(wanted: Ready, folder: Path) -> submission.Submitted:
    """Submit as a person does who runs the same command again where the answers got lost."""
    for _ in range(4):
        with contextlib.suppress(OutsideError):
            return send(Kubernetes(Cluster()), wanted, folder)
    return send(Kubernetes(Cluster()), wanted, folder)


# --- refusals -------------------------------------------------------------------------------------


def refused(kubernetes: Kubernetes, body: Any = None) -> OutsideError:
    with pytest.raises(OutsideError) as caught:
        if body is None:
            kubernetes.submit(ready(JOB))
        else:
            kubernetes.client.create(kubernetes.client.path(server.JOBSETS, "jobsets"), body)
    assert "\n" not in caught.value.message and caught.value.fix
    return caught.value


def test_each_refusal_is_one_line_and_a_way_out(
    backend: Kubernetes, loopback: server.Cluster
) -> None:
    faults = loopback.faults
    faults.forbidden = ["POST .*jobsets"]
    assert "not allowed: jobsets.jobset.x-k8s.io is forbidden: User" in refused(backend).message
    faults.forbidden, faults.bursts = [], [("POST .*jobsets", 403, 1)]
    assert "larger quota" in refused(backend).fix
    faults.missing = {server.JOBSETS}
    assert "the cluster knows no JobSet" in refused(backend).message
    faults.missing, faults.token = set(), "other"
    assert "log in again" in refused(backend).fix
    faults.token, faults.bursts = None, [("POST .*jobsets$", 429, 99)]
    assert "too many requests" in refused(backend).message
    faults.bursts = []
    unknown = backend.render(ready(JOB))
    unknown["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 1
    assert "strict decoding error" in refused(backend, unknown).message
    long = backend.render(ready(JOB))
    long["metadata"]["name"] = "n" * 60
    assert "63 characters" in refused(backend, long).message
    away = replace(backend.client, server="http://127.0.0.1:9")
    with pytest.raises(OutsideError, match=r"127.0.0.1:9 cannot be reached: .*refused") as caught:
        away.create("/", {})
    assert not isinstance(caught.value, LostAnswer)  # nothing was sent


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def cats(here: Path, loopback: server.Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose job cats names an image by digest, which lies in no registry."""
    image = JobImage(f"me.example/own@{jobfiles.DIGEST}", jobfiles.DIGEST)
    monkeypatch.setattr(images, "pushed_image", lambda *_: (image, ()))
    text = f"image: {image.reference}\nmachine: n1-standard-8\narguments: {{steps: 3}}\n"
    (here / "jobs" / "cats.yaml").write_text(text)
    return here


ON = ("--on", "kubernetes")


def test_a_dry_run_creates_nothing_and_a_job_is_asked_about(
    run: Run, cats: Path, loopback: server.Cluster
) -> None:
    code, out, _ = run("job", "submit", "cats", *ON, "--dry-run", "--", "--steps", "9")
    manifest = yaml.safe_load(out)
    assert code == 0 and manifest["kind"] == "JobSet" and loopback.jobsets() == []
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["--steps=3", "--steps", "9"]
    loopback.objects.script = lambda pod: Script(("step 3 of 3: loss 0.5",), code=2)
    names = {r"cats-[0-9a-z-]+": "cats-RUN"}
    ask = lambda *words: shown(run("job", *words, *ON), names)  # noqa: E731
    assert ask("submit", "cats", "--logs", "--poll", "0.05") == snapshot("""\
| note: me.example/own@sha256:DIGEST is not an image of ours: its accelerator is not
| .. known
| note: no job_dir: AIP_MODEL_DIR and its like are not set, and outputs are lost
| note: not an image of ours: it may run as root, and may write anywhere
|   = submit cats  N s
| chief-0 | step 3 of 3: loss 0.5
| cats-RUN: failed, N s
|   default/cats-RUN
|   1 x chief
|   chief-0: failed, exit code 2, 0 restarts
|   chief-0 ended with exit code 2; Container trainer for pod default/cats-RUN
| .. failed with exit code 2 matching FailJob rule at index 1; first failed job:
| .. cats-RUN
exit code 2
""")
    assert ask("status", "cats") == snapshot("""\
| cats-RUN: failed, N s
|   default/cats-RUN
|   1 x chief
|   chief-0: failed, exit code 2, 0 restarts
|   chief-0 ended with exit code 2; Container trainer for pod default/cats-RUN
| .. failed with exit code 2 matching FailJob rule at index 1; first failed job:
| .. cats-RUN
""")
    assert ask("why", "cats") == snapshot("""\
| cats-RUN: unknown
| The job failed. Why is not known: no line is in the table of known endings.
|   what the job left: exit code 2
|   what Kubernetes says: chief-0 ended with exit code 2; Container trainer for pod
| .. default/cats-RUN failed with exit code 2 matching FailJob rule at index 1;
| .. first failed job: cats-RUN
| To do: Read the lines before this one. Add a common cause to
| .. builder/jobs/why/endings.yaml.
""")
    assert ask("list") == snapshot("| TIME  cats-RUN  cats-RUN: failed, N s\n")
    loopback.faults.missing = {server.JOBSETS}
    assert ask("submit", "cats", "--dry-run") == snapshot("""\
| note: me.example/own@sha256:DIGEST is not an image of ours: its accelerator is not
| .. known
| note: no job_dir: AIP_MODEL_DIR and its like are not set, and outputs are lost
| note: not an image of ours: it may run as root, and may write anywhere
| error: the cluster knows no JobSet: 404 page not found
| fix:   install JobSet 0.10.1 or later there: docs/kubernetes.md
exit code 3
""")
