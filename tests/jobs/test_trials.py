"""A study in a cluster: each trial is one JobSet, whatever breaks, and the study is one table."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from builder.core.errors import InputError, OutsideError
from builder.jobs import images, trials
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine
from builder.jobs.ready import JobImage
from builder.jobs.trials import SentStudy
from builder.jobs.why import diagnose, logs
from tests.clock import until
from tests.conftest import Run
from tests.emulators import kubernetes as server
from tests.emulators.kubernetes import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import JOB, ready
from tests.shown import shown

STUDY = """\
study:
  {{metric: score, trials: {}, parallel: {}, algorithm: random, parameters: {{
    rate: {{min: 0.1, max: 0.9}}, kind: {{values: [a, b]}}}}}}
"""
POLL = 0.02
Act = Callable[[int], Script]


def told(value: float) -> Script:
    """A trial whose metric gets better, said by our trainer's line or as a field of any event."""
    first = {"event": "trial", "message": "m", "tag": "score", "value": value - 0.5, "step": 1}
    other = {"event": "trial", "message": "m", "tag": "loss", "value": 9.0}
    last = {"event": "evaluated", "message": "m", "score": value}
    nan = {"event": "evaluated", "message": "m", "score": "nan"}
    return Script(tuple(map(json.dumps, (first, last, nan, other))))


def number(pod: server.Object) -> int:
    return int(pod["metadata"]["labels"]["builder-trial"])


@pytest.fixture
def objects(loopback: server.Cluster) -> server.Objects:
    """A cluster in which trial N ends at once and scores N / 10."""
    loopback.objects.script = lambda pod: told(number(pod) / 10)
    return loopback.objects


@pytest.fixture
def sent(loopback: server.Cluster, tmp_path: Path) -> Callable[..., SentStudy]:
    """Returns a study as a command has prepared it, of a project in a folder."""

    def prepared(count: int = 4, parallel: int = 2, text: str = JOB, **cluster: Any) -> SentStudy:
        on = Cluster(**cluster)
        backend = Kubernetes(on, tmp_path)
        return SentStudy(tmp_path, backend, ready(text + STUDY.format(count, parallel), on))

    return prepared


Sent = Callable[..., SentStudy]


def names(objects: server.Objects) -> list[str]:
    return sorted(item["metadata"]["labels"]["builder-trial"] for item in objects.list("jobsets"))


def test_each_trial_is_a_jobset_with_its_number_and_the_study_one_table(
    sent: Sent, objects: server.Objects
) -> None:
    lines = list[LogLine]()
    study = sent(queue="gpus")
    ended = study.run(lines.append, POLL)
    assert (ended.state, ended.exit_code) == ("succeeded", 0)
    assert ended.error == "4 of 4 trials; the best is trial 4: score 0.4"
    assert [(row.id, row.value) for row in ended.trials] == [
        ("1", 0.1), ("2", 0.2), ("3", 0.3), ("4", 0.4)
    ]  # fmt: skip
    assert names(objects) == ["1", "2", "3", "4"]
    studies = set()
    for item, row in zip(sorted(objects.list("jobsets"), key=number), ended.trials, strict=True):
        labels = item["metadata"]["labels"]
        assert item["metadata"]["name"].startswith(f"cats-t{row.id}-")
        assert (labels["builder-job"], labels["kueue.x-k8s.io/queue-name"]) == ("cats", "gpus")
        studies.add(labels["builder-study"])
        (role,) = item["spec"]["replicatedJobs"]
        container = role["template"]["spec"]["template"]["spec"]["containers"][0]
        given = [f"--{name}={value}" for name, value in row.parameters.items()]
        assert container["args"] == given
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["CLOUD_ML_TRIAL_ID"] == row.id
        assert variables["AIP_MODEL_DIR"].startswith(f"gs://b-b/jobs/cats-t{row.id}-")
    assert len(studies) == 1
    found = study.backend.find("cats")
    assert (found.trials, found.error, found.state) == (ended.trials, ended.error, "succeeded")
    assert [job.display_name for job in study.backend.list()] == ["cats"]
    printed = {(line.trial, line.replica) for line in study.backend.logs(found).read()}
    assert printed == {(row.id, "chief-0") for row in ended.trials}
    assert {line.trial for line in lines if line.replica != SERVICE} == {"1", "2", "3", "4"}
    elsewhere = Kubernetes(Cluster()).find("cats")
    assert [row.state for row in elsewhere.trials] == ["succeeded"] * 4
    assert "the machine that asks has the rest" in elsewhere.error


def test_no_more_run_at_once_than_the_study_says(sent: Sent, objects: server.Objects) -> None:
    objects.script = lambda pod: Script((), None)
    seen = set[int]()
    done = threading.Event()

    def end_one_by_one() -> None:
        while not done.wait(0.01):
            running = [pod for pod in objects.list("pods") if pod["status"]["phase"] == "Running"]
            seen.add(len(running))
            if len(running) == 2:
                objects.say(running[0], told(0.5).lines[1])
                objects.end(running[0], 0)
            elif len(names(objects)) == 5 and running:
                objects.end(running[0], 3)

    thread = threading.Thread(target=end_one_by_one)
    thread.start()
    try:
        ended = sent(5, 2).run(poll=POLL)
    finally:
        done.set()
        thread.join()
    assert max(seen) == 2 and ended.state == "succeeded"
    assert [row.state for row in ended.trials].count("failed") == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(code=3), "3 trials failed, the first: chief-0 ended with exit code 3"),
        (Script(("a line",)), "3 trials failed, the first: no line of it tells score"),
        (
            Script(('{"event": "evaluated", "score": "nan"}',)),
            "3 trials failed, the first: no line of it tells score",
        ),
    ],
    ids=["exit code", "metric never printed", "not finite"],
)
def test_a_study_whose_trials_fail_says_why(
    script: Script, said: str, sent: Sent, objects: server.Objects, tmp_path: Path
) -> None:
    objects.script = lambda pod: script
    lines = list[LogLine]()
    ended = sent(9, 1).run(lines.append, POLL)
    assert (ended.state, ended.exit_code, len(ended.trials)) == ("failed", 1, 3)
    assert ended.error.startswith(said)
    backend = Kubernetes(Cluster(), tmp_path)
    diagnosis = diagnose.diagnose(logs.of_job(backend, backend.find("cats")))
    assert any(said in line.text for line in diagnosis.evidence), diagnosis
    assert any(line.text.startswith("trial 1 failed: ") for line in lines)


def interrupted(study: SentStudy, when: Callable[[], object]) -> JobStatus:
    """How a study ends for a person who presses Ctrl-C when something is true."""

    def press() -> None:
        until(when)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        return study.run(poll=POLL)
    finally:
        thread.join()


def test_a_study_outlives_ctrl_c_and_no_trial_runs_twice(
    sent: Sent, objects: server.Objects, tmp_path: Path
) -> None:
    """Meanwhile one trial ends, one fails, one is deleted, one goes on."""
    finished = told(0.5)
    objects.script = lambda pod: Script((), None)
    left = interrupted(sent(6, 4), lambda: len(objects.list("pods")) == 4)
    assert (left.state, left.exit_code) == ("running", 130)
    assert "its trials go on in Kubernetes, and the same command with them" in left.error
    assert len(objects.list("pods")) == 4, "they go on"
    now = Kubernetes(Cluster(), tmp_path).find("cats")
    assert (now.state, [row.state for row in now.trials]) == ("running", ["running"] * 4)
    by_number = {number(pod): pod for pod in objects.list("pods")}
    objects.say(by_number[1], finished.lines[1])
    objects.end(by_number[1], 0)
    objects.end(by_number[2], 3)
    third = by_number[3]["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]
    objects.remove("jobsets", "default", third)
    made = set(names(objects))
    objects.script = lambda pod: finished
    thread = threading.Thread(
        target=lambda: (
            until(lambda: len(names(objects)) == 5),
            objects.say(by_number[4], finished.lines[1]),
            objects.end(by_number[4], 0),
        )
    )
    thread.start()
    ended = sent(6, 4).run(poll=POLL)
    thread.join()
    assert made == {"1", "2", "4"} and names(objects) == ["1", "2", "4", "5", "6"]
    states = {row.id: (row.state, row.value) for row in ended.trials}
    assert states == {
        **dict.fromkeys(("1", "4", "5", "6"), ("succeeded", 0.5)),
        **dict.fromkeys(("2", "3"), ("failed", None)),
    }
    assert sent(6, 4).run(poll=POLL).trials == ended.trials and len(names(objects)) == 5


def test_a_command_that_died_before_it_kept_a_job_finds_it(
    sent: Sent, objects: server.Objects, loopback: server.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks, and the process with it."""
    loopback.faults.cut = 1
    with monkeypatch.context() as patched:
        patched.setattr(trials._Jobs, "_pause", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            sent(3, 1).run(poll=POLL)
    assert names(objects) == ["1"]
    assert sent(3, 1).run(poll=POLL).state == "succeeded"
    assert names(objects) == ["1", "2", "3"]


def test_a_study_waits_for_an_api_server_that_is_away(
    sent: Sent, objects: server.Objects, loopback: server.Cluster
) -> None:
    loopback.faults.bursts = [("(GET|POST) .*/jobsets", 503, 30)]
    lines = list[LogLine]()
    assert sent(3, 1).run(lines.append, POLL).state == "succeeded"
    asked = [line.text for line in lines if "asking again" in line.text]
    assert asked and names(objects) == ["1", "2", "3"]


def test_a_cluster_that_refuses_ends_the_command_and_no_trial_has_failed(
    sent: Sent, objects: server.Objects, loopback: server.Cluster
) -> None:
    loopback.faults.missing = {server.JOBSETS}
    with pytest.raises(OutsideError, match="the cluster knows no JobSet"):
        sent(2, 1).run(poll=POLL)
    loopback.faults.missing = set()
    ended = sent(2, 1).run(poll=POLL)
    assert [row.state for row in ended.trials] == ["succeeded"] * 2
    loopback.faults.bursts = [("POST .*/jobsets", 403, 1)]
    with pytest.raises(OutsideError, match="exceeded quota") as caught:
        sent(3, 1).run(poll=POLL)
    assert "larger quota" in caught.value.fix
    assert sent(3, 1).run(poll=POLL).state == "succeeded" and len(names(objects)) == 3


def test_cancel_ends_all_trials_and_the_command_that_asks(
    sent: Sent, objects: server.Objects, tmp_path: Path
) -> None:
    """Also one that the study has just begun; the trials that ended before stay."""
    objects.script = lambda pod: told(0.5) if number(pod) == 1 else Script((), None)
    here = Kubernetes(Cluster(), tmp_path)
    ended = list[JobStatus]()
    thread = threading.Thread(target=lambda: ended.append(sent(9, 3).run(poll=POLL)))
    thread.start()
    until(lambda: len([p for p in objects.list("pods") if p["status"]["phase"] == "Running"]) == 3)
    cancelled = here.cancel(here.find("cats"))
    thread.join(60)
    assert (cancelled.state, cancelled.exit_code) == ("cancelled", 143)
    assert (ended[0].state, ended[0].exit_code) == ("cancelled", 143)
    assert names(objects) == ["1"]
    assert here.find("cats").state == "cancelled"
    assert here.cancel(here.find("cats")).state == "cancelled"
    objects.script = lambda pod: told(0.5)
    again = sent(9, 3).run(poll=POLL)
    assert again.state == "succeeded" and len(again.trials) == 9
    assert [row.state for row in again.trials].count("failed") == 3


def test_a_trial_that_somebody_deletes_ends_the_others(sent: Sent, objects: server.Objects) -> None:
    objects.script = lambda pod: Script((), None)

    def delete() -> None:
        pod = until(lambda: len(objects.list("pods")) == 3 and objects.list("pods")[1])
        name = pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]
        objects.remove("jobsets", "default", name)

    thread = threading.Thread(target=delete)
    thread.start()
    ended = sent(9, 3).run(poll=POLL)
    thread.join()
    assert (ended.state, ended.exit_code, names(objects)) == ("cancelled", 143, [])


def test_trials_that_nobody_waits_for_are_cancelled(
    sent: Sent, objects: server.Objects, tmp_path: Path
) -> None:
    objects.script = lambda pod: Script((), None)
    interrupted(sent(4, 3), lambda: len(objects.list("pods")) == 3)
    here = Kubernetes(Cluster(), tmp_path)
    assert here.cancel(here.find("cats")).state == "cancelled"
    assert objects.list("jobsets") == [] == objects.list("pods")
    with pytest.raises(OutsideError, match="no job is called cats"):
        here.find("cats")


def test_another_study_in_the_same_folder_is_refused(
    sent: Sent, objects: server.Objects, tmp_path: Path
) -> None:
    sent(2, 1).run(poll=POLL)
    for other in (sent(2, 1, JOB + "arguments: {steps: 6}\n"), sent(2, 1, namespace="training")):
        with pytest.raises(InputError, match=r"another description.*cannot be compared") as caught:
            other.run(poll=POLL)
        assert "remove " in caught.value.fix
    folder = trials.folder_of(tmp_path, "cats", "kubernetes")
    (folder / trials.TABLE).write_text('{"of another": "version"}')
    assert Kubernetes(Cluster(), tmp_path).find("cats").state == "succeeded"
    (folder / "study.journal").write_text('{"op_code": 99, "worker_id": "a"}\n')
    with pytest.raises(InputError, match=r"study\.journal: no study that can be continued"):
        sent(2, 1).run(poll=POLL)
    assert names(objects) == ["1", "2"]


def test_trials_without_a_placeholder_have_folders_of_their_own(
    sent: Sent, objects: server.Objects
) -> None:
    text = JOB.replace("jobs/{job}", "jobs/fixed/")
    sent(2, 1, text).run(poll=POLL)
    written = {
        item["metadata"]["annotations"]["builder-output"] for item in objects.list("jobsets")
    }
    assert written == {"gs://b-b/jobs/fixed/1", "gs://b-b/jobs/fixed/2"}


def test_long_names_keep_the_number_of_the_trial(sent: Sent, objects: server.Objects) -> None:
    sent(2, 1, f"name: {'n' * 40}\n{JOB}").run(poll=POLL)
    named = [item["metadata"]["name"].split("-")[1] for item in objects.list("jobsets")]
    assert named == ["t1", "t2"]


# --- the command line -----------------------------------------------------------------------------

ON = ("--on", "kubernetes")


@pytest.fixture
def tuned(here: Path, objects: server.Objects, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a study whose image lies in no registry."""
    image = JobImage(f"me.example/own@{jobfiles.DIGEST}", jobfiles.DIGEST)
    monkeypatch.setattr(images, "pushed_image", lambda *_: (image, ()))
    text = f"image: {image.reference}\nmachine: n1-standard-8\njob_dir: gs://b-b/jobs/{{job}}\n"
    (here / "jobs" / "tuned.yaml").write_text(text + STUDY.format(2, 1))
    return here


def test_the_commands_about_a_study(run: Run, tuned: Path, loopback: server.Cluster) -> None:
    known = {
        r"0\.\d{3,}": "0.N",
        r"kind( |=)[ab]": r"kind\g<1>K",
        r"studies/[0-9a-f]+": "studies/ID",
    }
    ask = lambda *words: shown(run("job", *words), known)  # noqa: E731
    assert run("job", "submit", "tuned", *ON, "--dry-run")[0] == 0 and loopback.jobsets() == []
    assert ask("submit", "tuned", *ON, "--again") == snapshot("""\
| note: me.example/own@sha256:DIGEST is not an image of ours: its accelerator is not
| .. known
| note: study: each of its 2 trials is a JobSet like this, with its number and its
| .. own --NAME=VALUE; this command asks for them, to the end
| note: not an image of ours: it may run as root, and may write anywhere
| error: tuned: --again is for one job, and this is a study
| fix:   without --again it goes on; for another one, copy its file
exit code 2
""")
    assert ask("submit", "tuned", *ON, "--poll", "0.05") == snapshot("""\
| note: me.example/own@sha256:DIGEST is not an image of ours: its accelerator is not
| .. known
| note: study: each of its 2 trials is a JobSet like this, with its number and its
| .. own --NAME=VALUE; this command asks for them, to the end
| note: not an image of ours: it may run as root, and may write anywhere
| service | trial 1 starts: rate 0.N, kind K
| service | trial 1 ended: score 0.1
| service | trial 2 starts: rate 0.N, kind K
| service | trial 2 ended: score 0.2
| tuned: succeeded, N s
|   tuned
|   1 x chief: n1-standard-8
|   writes to gs://b-b/jobs/{job}
|   trial 1 (succeeded): 0.1  rate=0.N, kind=K
|   trial 2 (succeeded): 0.2  rate=0.N, kind=K
|   2 of 2 trials; the best is trial 2: score 0.2
""")
    status = ask("status", "tuned")
    assert status == snapshot("""\
| tuned: succeeded, N s
|   default/studies/ID
|   1 x chief: n1-standard-8
|   writes to gs://b-b/jobs/{job}
|   trial 1 (succeeded): 0.1  rate=0.N, kind=K
|   trial 2 (succeeded): 0.2  rate=0.N, kind=K
|   2 of 2 trials; the best is trial 2: score 0.2
""")
    assert ask("list", *ON) == snapshot("| TIME  c6daba09132c  tuned: succeeded, N s\n")
    assert ask("cancel", "tuned") == "| tuned: it has succeeded already\n" + status
    rows = json.loads(run("job", "status", "tuned", "--json")[1])["trials"]
    assert [row["value"] for row in rows] == [0.1, 0.2]
