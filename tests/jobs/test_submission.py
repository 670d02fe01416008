"""Submitting to Vertex AI: once and only once, whatever breaks on the way."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as api

from builder import googleapi
from builder.core.errors import InputError, OutsideError
from builder.jobs import submission, watch
from builder.jobs.backends.protocol import JobStatus, LostAnswer
from builder.jobs.backends.vertex import service
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.checks import check_bucket
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


def test_a_job_runs_to_its_end_and_says_what_it_ran_on(loopback, where, ready, tmp_path) -> None:
    ended = to_its_end(where, send(where, ready, tmp_path).job)
    assert ended.image == f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"  # by digest, never by tag
    assert ended.output == f"gs://my-bucket/jobs/{ended.display_name}"
    (chief,) = ended.pools
    assert (chief.role, chief.machine) == ("chief", "n1-standard-8")
    assert (chief.accelerator, chief.accelerators) == ("NVIDIA_TESLA_V100", 2)
    assert ended.seconds is not None and ended.seconds >= 0


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


def test_faults_in_random_order_leave_one_job(loopback, where, tmp_path, monkeypatch) -> None:
    """Lost answers, a service that is away and a list that lags: one job, by a few commands."""
    replace_pauses(monkeypatch, lambda _: None)
    dice, jobs = random.Random(7), loopback.service.jobs
    for number in range(int(os.environ.get("BUILDER_RANDOM_FAULTS", "20"))):
        faults = loopback.service.faults
        faults.list_lag, faults.cut_create = dice.randint(0, 2), dice.randint(0, 1)
        create, lists = r"customJobs$|CreateCustomJob", r"GET .*customJobs|ListCustomJobs"
        faults.bursts = [(create, 503, dice.randint(0, 1)), (lists, 503, dice.randint(0, 2))]
        dice.shuffle(faults.bursts)
        ready = jobfiles.ready(JOB.replace("100}", f"{number}}}"), project=emulator.PROJECT)
        for _ in range(3):
            with contextlib.suppress(LostAnswer):  # "run the same command again"
                send(where, ready, tmp_path)
        assert len(jobs) == number + 1, (number, faults)


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


def test_a_job_that_failed_is_made_anew_in_the_same_folder(where, ready, tmp_path) -> None:
    with emulator.running(emulator.Script(code=1)) as broken:
        there = replace(where, endpoint=broken.grpc)
        first = send(there, ready, tmp_path)
        broken.settle()
        second = send(there, ready, tmp_path)
        broken.settle()
    assert first.created and second.created
    assert first.job.name != second.job.name
    assert first.job.output == second.job.output  # the trainer takes up its checkpoints


def test_two_commands_on_this_machine_make_one_job(loopback, where, ready, tmp_path) -> None:
    loopback.service.faults.list_lag = 10_000  # the list shows neither job
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: send(where, ready, tmp_path), range(4)))
    assert len(loopback.service.jobs) == 1
    assert [each.created for each in sent].count(True) == 1
    assert len({each.job.name for each in sent}) == 1


def test_an_image_without_a_digest_is_not_sent(loopback, where, ready, tmp_path) -> None:
    by_tag = replace(ready, image=replace(ready.image, digest=None))
    with pytest.raises(InputError, match="not known by its digest"):
        send(where, by_tag, tmp_path)
    assert not loopback.service.jobs


@pytest.mark.parametrize(
    ("state", "code"),
    [(api.JobState.JOB_STATE_EXPIRED, 124), (api.JobState.JOB_STATE_PARTIALLY_SUCCEEDED, 0)],
)
def test_every_other_end_has_an_exit_code(loopback, where, ready, tmp_path, state, code) -> None:
    loopback.service.faults.end_as = state
    sent = send(where, ready, tmp_path)
    ended = to_its_end(where, sent.job)
    assert ended.exit_code == code


def test_a_job_is_found_by_each_of_its_names(loopback, where, ready, tmp_path) -> None:
    place = VertexAI(where)
    jobs = [send(where, ready, tmp_path).job]
    loopback.settle()
    for _ in range(3):  # more than one page
        jobs.append(send(where, ready, tmp_path, again=True).job)
        loopback.settle()
    newest = jobs[-1]
    for name in (newest.name, newest.id, newest.display_name, "cats"):
        assert place.find(name).name == newest.name
    assert [each.name for each in place.list()] == [each.name for each in reversed(jobs)]
    assert place.list("dogs") == ()
    for missing in ("dogs", "99", f"projects/{emulator.NUMBER}/locations/us-central1/customJobs/9"):
        with pytest.raises(OutsideError) as caught:
            place.find(missing)
        assert "builder job list" in caught.value.fix


def test_a_study_runs_its_trials(loopback, where, tmp_path) -> None:
    loopback.service.executor = emulator.Script(metric=lambda given: float(given["layers"]))
    study = jobfiles.ready(STUDY, project=emulator.PROJECT)
    sent = send(where, study, tmp_path)
    ended = to_its_end(where, sent.job)
    assert ended.state == "succeeded"
    assert [trial.id for trial in ended.trials] == ["1", "2", "3"]
    for each in ended.trials:
        assert set(each.parameters) == {"learning-rate", "layers", "batch", "optimizer"}
        assert each.value == float(each.parameters["layers"])
    assert not send(where, study, tmp_path).created
    assert VertexAI(where).find(ended.id).name == ended.name


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


@pytest.mark.parametrize(
    ("bucket", "error", "problem"),
    [
        (("us-central1", "region"), None, ""),
        (("us", "multi-region"), InputError, "multi-region bucket"),
        (("europe-west4", "region"), InputError, "in europe-west4, the job in us-central1"),
        (None, OutsideError, "there is no bucket gs://my-bucket"),
    ],
)
def test_the_bucket_is_in_the_jobs_region(
    loopback, ready, monkeypatch, bucket, error, problem
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", loopback.rest)
    if bucket:
        loopback.service.buckets["my-bucket"] = bucket
    storage = service.storage_client(Service(project=emulator.PROJECT))
    if error is None:
        assert check_bucket(ready, storage) == ()
        return
    with pytest.raises(error) as caught:
        check_bucket(ready, storage)
    assert problem in caught.value.message
    assert "us-central1" in caught.value.fix or "europe-west4" in caught.value.fix
