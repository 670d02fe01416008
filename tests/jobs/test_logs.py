"""A job's log: each line once, with its replica, though entries come late, twice, in pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from google.api_core import exceptions

from builder.core.errors import OutsideError
from builder.jobs import submission
from builder.jobs.backends.vertex import logs, service
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.logs import CloudLog
from builder.jobs.backends.vertex.service import Service
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.test_submission import JOB

LINES = tuple(
    (f"workerpool{pool}-{index}", f"{pool}.{index} step {step}")
    for step in range(4)
    for pool, index in ((0, 0), (1, 0), (1, 1), (3, 0))
)


@pytest.fixture
def loopback() -> Iterator[emulator.Loopback]:
    with emulator.running(emulator.Script(lines=LINES)) as server:
        server.service.entries_page = 3
        yield server


@pytest.fixture
def where(loopback: emulator.Loopback) -> Service:
    return Service(emulator.PROJECT, "us-central1", loopback.grpc, loopback.rest)


def sent(where: Service, tmp_path: Path) -> str:
    ready = jobfiles.ready(JOB, project=emulator.PROJECT)
    return submission.submit(VertexAI(where), ready, submission.Memory(tmp_path)).job.id


def follower(where: Service, job: str, replica: str | None = None) -> CloudLog:
    return CloudLog(service.logging_client(where), emulator.PROJECT, job, replica)


def test_lines_carry_their_replica(loopback, where, tmp_path) -> None:
    job = sent(where, tmp_path)
    loopback.settle()
    lines = follower(where, job).read()
    assert [line.text for line in lines] == [text for _, text in LINES]
    assert {line.replica for line in lines} == {"chief-0", "worker-0", "worker-1", "evaluator-0"}
    assert lines[0].severity == "INFO"


def test_a_line_of_json_is_its_message_and_severity(loopback, where, tmp_path) -> None:
    document = '{"severity": "WARNING", "message": "a bucket is slow", "step": 3}'
    loopback.service.executor = emulator.Script(lines=(("workerpool0-0", document),))
    job = sent(where, tmp_path)
    loopback.settle()
    (line,) = follower(where, job).read()
    assert (line.severity, line.text) == ("WARNING", "a bucket is slow")


def test_each_line_once_though_it_comes_late_or_twice(loopback, where, tmp_path) -> None:
    job = sent(where, tmp_path)
    loopback.settle()
    loopback.service.faults.late_entries = 3
    loopback.service.faults.double_entries = True
    reader = follower(where, job)
    texts = [line.text for _ in range(6) for line in reader.read()]
    assert texts == [text for _, text in LINES]


def test_a_line_that_arrives_minutes_late(loopback, where, tmp_path) -> None:
    job = sent(where, tmp_path)
    loopback.settle()
    reader = follower(where, job)
    assert len(reader.read()) == len(LINES)
    loopback.service.faults.age = timedelta(minutes=10)
    loopback.service.tell(job, "workerpool1-0", "said long ago")
    assert [line.text for line in reader.read()] == ["said long ago"]
    assert reader.read() == ()


def test_a_passing_error_repeats_one_page_and_not_all(loopback, where, tmp_path) -> None:
    job = sent(where, tmp_path)
    loopback.settle()
    reader = follower(where, job)
    tokens: list[str] = []

    def fail_on_the_fourth(body: dict[str, object]) -> dict[str, object]:
        tokens.append(str(body.get("pageToken", "")))
        if len(tokens) == 4:
            raise exceptions.ServiceUnavailable("soon")
        return plain(body)

    plain, reader.client = reader.client, fail_on_the_fourth
    assert len(reader.read()) == len(LINES)
    assert tokens == ["", "3", "6", "9", "9", "12", "15"]


def test_trials_are_told_apart(loopback, where, tmp_path) -> None:
    from tests.jobs.test_submission import STUDY

    ready = jobfiles.ready(STUDY, project=emulator.PROJECT)
    job = submission.submit(VertexAI(where), ready, submission.Memory(tmp_path)).job
    loopback.settle()
    assert {line.trial for line in follower(where, job.id).read()} == {"1", "2", "3"}


def test_logging_that_refuses(loopback, where, tmp_path) -> None:
    job = sent(where, tmp_path)
    loopback.service.faults.bursts = [("entries:list", 403, 1)]
    with pytest.raises(OutsideError, match="logs: not allowed"):
        follower(where, job).read()
    loopback.service.faults.bursts = [("entries:list", 503, 2)]
    loopback.settle()
    assert follower(where, job).read()  # what passes is asked again


def test_names_of_replicas() -> None:
    for ours, theirs in (("chief-0", "workerpool0-0"), ("ps-3", "workerpool2-3")):
        assert logs.task(ours) == theirs and logs.replica_of(theirs) == ours
    assert logs.replica_of("service") == "service"
    assert logs.task("nobody") == "nobody"
