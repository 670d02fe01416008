"""Studies in a cluster: our own loop, one JobSet a trial, on the loopback API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.jobs.places.kubernetes import kubeconfig
from builder.jobs.places.kubernetes.api import Api
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.kubernetes.trials import MESSAGE, ClusterTrials, run_study
from builder.jobs.running import JobEvent, Stop
from builder.jobs.studies.results import StudyOutcome
from tests.clock import until
from tests.emulators.kubernetes import server
from tests.emulators.kubernetes.kubelet import Script, Scripted, environment
from tests.jobs import jobfiles
from tests.jobs.test_kubernetes import ready

JOB = "image: v100\nmachine: n1-standard-8\naccelerators: V100\njob_dir: gs://b-b/jobs/{job}\n"
STUDY = """\
study:
  metric: score
  trials: 3
  parallel: 2
  algorithm: grid
  parameters: {rate: {values: [1, 2, 3]}}
"""


@pytest.fixture
def kubelet() -> Scripted:
    return Scripted()


@pytest.fixture
def loopback(tmp_path: Path, kubelet: Scripted) -> Iterator[server.Cluster]:
    with server.running(tmp_path, kubelet) as found:
        yield found


def rate(pod: Any) -> float:
    """The parameter that a trial's program got."""
    given = [one for one in pod["spec"]["containers"][0]["args"] if one.startswith("--rate=")]
    return float(given[0].removeprefix("--rate="))


def hypertune(pod: Any) -> Script:
    """A program that reports with cloudml-hypertune: of 100 lines the cluster keeps the end."""
    assert environment(pod)["CLOUD_ML_HP_METRIC_FILE"] == MESSAGE
    lines = [{"score": str(rate(pod) * step), "global_step": str(step)} for step in range(1, 101)]
    return Script(message="".join(json.dumps(one) + "\n" for one in lines))


def printing(pod: Any) -> Script:
    """Our trainer: a line a report."""
    assert "CLOUD_ML_HP_METRIC_FILE" not in environment(pod)
    line = {"event": "trial", "message": "trial", "tag": "score", "value": rate(pod), "step": 5}
    return Script((json.dumps({**line, "severity": "INFO"}),))


def unended(loopback: server.Cluster) -> list[Any]:
    """The trials after the first. Two start at once, so the order of creation tells nothing."""
    found = {one["metadata"]["labels"]["builder-job"]: one for one in loopback.jobsets()}
    return [one for name, one in found.items() if name != "cats-1"]


def study(
    loopback: server.Cluster, folder: Path, prints: bool = True, **options: Any
) -> StudyOutcome:
    path = loopback.kubeconfig()
    place = Kubernetes(Api(kubeconfig.load(None, {"KUBECONFIG": str(path)})), Cluster())
    asked = jobfiles.job(JOB + STUDY).study
    assert asked is not None
    trials = ClusterTrials(place, ready(JOB), folder / "study", prints, poll=0.02)
    return run_study(trials, asked, **options)


@pytest.mark.parametrize(("script", "value"), [(printing, 3.0), (hypertune, 300.0)])
def test_each_trial_is_a_jobset_of_its_own(
    loopback: server.Cluster, kubelet: Scripted, tmp_path: Path, script: Any, value: float
) -> None:
    kubelet.script = script
    found = study(loopback, tmp_path, prints=script is printing)
    assert (found.state, found.best, len(found.trials)) == ("succeeded", 3, 3)
    assert [one.value for one in found.trials] == [value / 3, 2 * value / 3, value]
    names = sorted(one["metadata"]["labels"]["builder-job"] for one in loopback.jobsets())
    assert names == ["cats-1", "cats-2", "cats-3"]
    folders = {environment(pod)["AIP_MODEL_DIR"] for pod in kubelet.pods}
    assert len(folders) == 3 and all(one.endswith("/model/") for one in folders)
    assert sorted(environment(pod)["CLOUD_ML_TRIAL_ID"] for pod in kubelet.pods) == ["1", "2", "3"]


def test_a_study_that_was_interrupted_goes_on(
    loopback: server.Cluster, kubelet: Scripted, tmp_path: Path
) -> None:
    """Its running trials are cancelled, and made anew in their folders."""
    hold, stop = threading.Event(), Stop()

    def slow(pod: Any) -> Script:
        script = printing(pod)
        script.wait = hold if rate(pod) > 1 else None
        return script

    kubelet.script = slow

    def tell(event: JobEvent) -> None:
        if event.replica == "trial 1" and event.text.startswith("succeeded"):
            stop.request()

    first = study(loopback, tmp_path, stop=stop, on_event=tell)
    assert first.state == "cancelled" and first.trials[0].value == 1.0
    until(lambda: all(one["spec"].get("suspend") for one in unended(loopback)))
    hold.set()
    again = study(loopback, tmp_path)
    assert (again.state, again.best) == ("succeeded", 3)
    assert [one.value for one in again.trials] == [1.0, 2.0, 3.0]


def test_a_program_that_reports_nothing_is_told(loopback: server.Cluster, tmp_path: Path) -> None:
    found = study(loopback, tmp_path)
    assert found.state == "failed" and "reported no score" in found.message
