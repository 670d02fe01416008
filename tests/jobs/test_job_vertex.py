"""Jobs sent to a loopback Vertex AI that really runs them: containers on this machine's engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.engine import Engine
from builder.jobs import following, submission
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.backends.vertex import logs
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.service import Service
from builder.jobs.ready import Ready
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.test_job_local import left, shell  # noqa: F401

pytestmark = pytest.mark.engine

JOB = """\
image: cpu
region: us-central1
machine: n1-standard-4
job_dir: gs://my-bucket/jobs/{job}
"""


@pytest.fixture(autouse=True)
def reads_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests ask more often than a person's terminal does; tests/jobs/test_logs.py has the
    limit."""
    monkeypatch.setattr(logs, "READS_A_MINUTE", 100_000)


@pytest.fixture
def loopback(engine: Engine, shell: str, tmp_path: Path) -> Iterator[emulator.Loopback]:  # noqa: F811
    reference = f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"
    executor = emulator.local_executor(engine, tmp_path / "work", {reference: shell})
    with emulator.running(executor) as found:
        yield found


@pytest.fixture
def where(loopback: emulator.Loopback) -> Service:
    return Service(emulator.PROJECT, "us-central1", loopback.grpc, loopback.rest, "grpc")


def ready(script: str, more: str = "") -> Ready:
    made = jobfiles.ready(JOB + more, "cpu", project=emulator.PROJECT)
    job = made.job.model_copy(update={"arguments": (script,)})
    return replace(made, job=job)


def to_the_end(where: Service, wanted: Ready, tmp_path: Path) -> tuple[JobStatus, list[str]]:
    """Send a job and follow its log: the job as it ended, the lines as `replica: text`."""
    place = VertexAI(where)
    sent = submission.submit(place, wanted, submission.Memory(tmp_path))
    told: list[str] = []
    ended = following.follow(
        place,
        sent.job,
        lambda line: told.append(f"{line.replica}: {line.text}"),
        pause=lambda: time.sleep(0.05),
    )
    return ended, told


def test_a_cluster_runs_and_each_replica_knows_its_place(
    engine: Engine, where: Service, tmp_path: Path
) -> None:
    script = 'echo "TF_CONFIG $TF_CONFIG"; echo "AIP $AIP_MODEL_DIR"; sleep 0.5'
    cluster = ready(script, "replicas: {workers: 2, evaluator: 1}\n")
    ended, told = to_the_end(where, cluster, tmp_path)
    assert (ended.state, ended.exit_code) == ("succeeded", 0)
    configs = {
        line.split(": ")[0]: json.loads(line.split("TF_CONFIG ")[1])
        for line in told
        if "TF_CONFIG {" in line
    }
    assert set(configs) == {"chief-0", "worker-0", "worker-1", "evaluator-0"}
    for name, config in configs.items():
        role, _, index = name.rpartition("-")
        assert config["task"]["type"] == role and config["task"]["index"] == int(index)
        assert len(config["cluster"]["worker"]) == 2 and "evaluator" not in config["cluster"]
    assert any(line.startswith("chief-0: AIP /") and "/model/" in line for line in told)
    assert left(engine) == []


def test_a_replica_that_fails_gives_the_job_its_exit_code(where: Service, tmp_path: Path) -> None:
    broken = ready("echo before; exit 9", "scheduling: {restarts: never}\n")
    ended, told = to_the_end(where, broken, tmp_path)
    assert (ended.state, ended.exit_code) == ("failed", 9)
    assert "chief-0: before" in told


def test_a_replica_that_comes_back_is_told_in_the_log(where: Service, tmp_path: Path) -> None:
    once = ready(
        'd=$AIP_CHECKPOINT_DIR; mkdir -p "$d"; '
        'if [ -e "$d/1" ]; then echo again; else touch "$d/1"; exit 134; fi'
    )
    ended, told = to_the_end(where, once, tmp_path)
    assert ended.state == "succeeded", told
    assert "chief-0: again" in told
    assert any("restart" in line for line in told)


def test_cancelling_ends_the_containers(
    engine: Engine, where: Service, loopback: emulator.Loopback, tmp_path: Path
) -> None:
    place = VertexAI(where)
    waits = ready("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    sent = submission.submit(place, waits, submission.Memory(tmp_path))
    reader = place.logs(sent.job)
    while not any(line.text == "ready" for line in reader.read()):
        time.sleep(0.05)
    place.cancel(sent.job)
    loopback.settle(60)
    assert place.get(sent.job.name).exit_code == 143
    assert left(engine) == []


def test_a_study_reports_what_its_trials_measured(where: Service, tmp_path: Path) -> None:
    # the last argument is the trial's, as the service passes it
    script = (
        'echo "{\\"accuracy\\": \\"${0#--units=}\\", \\"global_step\\": \\"1\\"}" '
        '> "$CLOUD_ML_HP_METRIC_FILE"'
    )
    study = ready(
        script, "study: {metric: accuracy, trials: 2, parameters: {units: {min: 1, max: 9}}}\n"
    )
    ended, _ = to_the_end(where, study, tmp_path)
    assert ended.state == "succeeded"
    assert [one.state for one in ended.trials] == ["succeeded", "succeeded"]
    for one in ended.trials:
        assert one.value == float(one.parameters["units"])
