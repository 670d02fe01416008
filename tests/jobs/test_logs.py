"""A job's log: each line once, with its replica, though entries come late, twice, in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tests.jobs.test_submission import JOB, STUDY

LINES = tuple(
    (f"workerpool{pool}-{index}", f"{pool}.{index} step {step}")
    for step in range(4)
    for pool, index in ((0, 0), (1, 0), (1, 1), (3, 0))
)
TEXTS = [text for _, text in LINES]


@pytest.fixture
def loopback() -> Iterator[emulator.Loopback]:
    with emulator.running(emulator.Script(lines=LINES)) as server:
        server.service.entries_page = 3
        yield server


@pytest.fixture
def read(loopback: emulator.Loopback, tmp_path: Path) -> Callable[..., CloudLog]:
    """Send a job, wait for its end, and return a reader of its log."""

    def send(text: str = JOB) -> CloudLog:
        where = Service(emulator.PROJECT, "us-central1", loopback.grpc, loopback.rest)
        ready = jobfiles.ready(text, project=emulator.PROJECT)
        job = submission.submit(VertexAI(where), ready, submission.Memory(tmp_path)).job
        loopback.settle()
        return CloudLog(service.logging_client(where), emulator.PROJECT, job.id)

    return send


def test_each_line_once_with_its_replica_though_it_comes_late_or_twice(loopback, read) -> None:
    reader = read()
    loopback.service.faults.late_entries = 3
    loopback.service.faults.double_entries = True
    lines = [line for _ in range(6) for line in reader.read()]
    assert [line.text for line in lines] == TEXTS and lines[0].severity == "INFO"
    assert {line.replica for line in lines} == {"chief-0", "worker-0", "worker-1", "evaluator-0"}
    loopback.service.faults.double_entries = False
    loopback.service.faults.age = timedelta(minutes=10)
    loopback.service.tell(reader.job_id, "workerpool1-0", "said long ago")
    document = '{"severity": "WARNING", "message": "a bucket is slow", "step": 3}'
    loopback.service.tell(reader.job_id, "workerpool0-0", document)
    late, json_line = reader.read()
    assert (late.text, json_line.text) == ("said long ago", "a bucket is slow")
    assert (json_line.severity, json_line.fields["step"]) == ("WARNING", 3)
    assert reader.read() == ()


def test_a_passing_error_repeats_one_page_and_not_all(loopback, read) -> None:
    reader, tokens = read(), list[str]()

    def fail_on_the_fourth(body: dict[str, object]) -> dict[str, object]:
        tokens.append(str(body.get("pageToken", "")))
        if len(tokens) == 4:
            raise exceptions.ServiceUnavailable("soon")
        return plain(body)

    plain, reader.client = reader.client, fail_on_the_fourth
    assert len(reader.read()) == len(LINES)
    assert tokens == ["", "3", "6", "9", "9", "12", "15"]


def test_trials_are_told_apart_and_a_refusal_is_told(loopback, read) -> None:
    reader = read(STUDY)
    assert {line.trial for line in reader.read()} == {"1", "2", "3"}
    loopback.service.faults.bursts = [("entries:list", 403, 1)]
    with pytest.raises(OutsideError, match="logs: not allowed"):
        reader.read()


def test_names_of_replicas() -> None:
    for ours, theirs in (("chief-0", "workerpool0-0"), ("ps-3", "workerpool2-3")):
        assert logs.replica_of(theirs) == ours
    assert logs.replica_of("service") == "service"
