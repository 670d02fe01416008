"""Submitting to Vertex AI: once and only once, whatever breaks on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder import googleapi
from builder.core.errors import OutsideError
from builder.jobs import submission, watch
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.service import Service
from builder.jobs.ready import Ready
from tests.clock import replace_pauses
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles

JOB = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
job_dir: gs://my-bucket/jobs/{job}
arguments: {steps: 100}
"""
STUDY = (
    JOB
    + """\
study:
  metric: accuracy
  trials: 3
  parallel: 1
  algorithm: random
  parameters:
    learning-rate: {min: 0.001, max: 0.1, scale: log}
    layers: {min: 1, max: 3}
    batch: {values: [16, 32]}
    optimizer: {values: [adam, sgd]}
"""
)


@pytest.fixture
def loopback() -> Iterator[emulator.Loopback]:
    with emulator.running() as server:
        yield server


@pytest.fixture
def where(loopback: emulator.Loopback) -> Service:
    """The service on loopback."""
    return Service(emulator.PROJECT, "us-central1", loopback.grpc, loopback.rest)


@pytest.fixture
def ready() -> Ready:
    return jobfiles.ready(JOB, project=emulator.PROJECT)


def send(where: Service, ready: Ready, tmp_path: Path, again: bool = False) -> submission.Submitted:
    return submission.submit(VertexAI(where), ready, submission.Memory(tmp_path), again=again)


def to_its_end(where: Service, job: JobStatus) -> JobStatus:
    """Return the job after its end."""
    return watch.follow(VertexAI(where), job, lambda line: None, pause=lambda: time.sleep(0.01))


def test_a_lost_answer_and_a_list_that_lags_leave_one_job(
    loopback, where, ready, tmp_path, monkeypatch
) -> None:
    slept: list[float] = []
    replace_pauses(monkeypatch, slept.append)
    loopback.service.faults.list_lag = 2
    loopback.service.faults.cut_create = 1
    sent = send(where, ready, tmp_path)
    assert sent.created and list(loopback.service.jobs) == [sent.job.id]
    assert sum(slept) <= sum(submission.LOOKS_AFTER)


def test_a_service_that_stays_away_says_that_the_command_can_be_repeated(
    loopback, where, ready, tmp_path, monkeypatch
) -> None:
    replace_pauses(monkeypatch, lambda _: None)
    loopback.service.faults.bursts = [(r"POST .*customJobs$|grpc CreateCustomJob", 503, 9)]
    with pytest.raises(OutsideError) as caught:
        send(where, ready, tmp_path)
    assert "cannot be reached" in caught.value.message
    assert "same command again" in caught.value.fix
    assert not loopback.service.jobs


def test_two_commands_on_this_machine_make_one_job(loopback, where, ready, tmp_path) -> None:
    loopback.service.faults.list_lag = 10_000  # the list shows neither job
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: send(where, ready, tmp_path), range(4)))
    assert len(loopback.service.jobs) == 1
    assert [each.created for each in sent].count(True) == 1
    assert len({each.job.name for each in sent}) == 1


def test_a_job_is_found_by_its_number_on_every_page(loopback, where, ready, tmp_path) -> None:
    place = VertexAI(where)
    jobs = [send(where, ready, tmp_path).job]
    loopback.settle()
    for _ in range(3):  # more than one page
        jobs.append(send(where, ready, tmp_path, again=True).job)
        loopback.settle()
    for name in (jobs[-1].id, jobs[-1].display_name):
        assert place.find(name).name == jobs[-1].name
    assert [each.name for each in place.list()] == [each.name for each in reversed(jobs)]
    for missing in ("99", f"projects/{emulator.NUMBER}/locations/us-central1/customJobs/9"):
        with pytest.raises(OutsideError) as caught:
            place.find(missing)
        assert "builder job list" in caught.value.fix


def test_a_refusal_is_one_line_and_a_way_out(loopback, where, ready, tmp_path) -> None:
    quota = emulator.Refused(429, "RESOURCE_EXHAUSTED", "Quota custom_model_training_v100 is 0")
    loopback.service.faults.refusal = quota
    with pytest.raises(OutsideError, match="no quota left") as caught:
        send(where, ready, tmp_path)
    assert "\n" not in caught.value.message and "another region" in caught.value.fix


def test_expired_credentials_are_told_at_once(loopback, where, ready, tmp_path) -> None:
    loopback.service.faults.bad_credentials = True
    with pytest.raises(OutsideError, match="the credentials are not accepted") as caught:
        send(where, ready, tmp_path)
    assert caught.value.fix == googleapi.LOGIN
    with pytest.raises(OutsideError, match="the credentials are not accepted"):
        VertexAI(where).submit(ready)
    assert len(loopback.service.calls) == 2  # neither was repeated
