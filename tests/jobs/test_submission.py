"""Jobs on a loopback Vertex AI: sent once, whatever breaks on the way; each line read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from google.oauth2.credentials import Credentials

from builder import googleapi
from builder.core.errors import OutsideError
from builder.jobs import submission
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.status import CloudLog
from tests.clock import replace_pauses
from tests.emulators import vertex as emulator
from tests.emulators.google import Refused
from tests.jobs import jobfiles
from tests.jobs.conftest import JOB

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
LINES = tuple(
    (f"workerpool{pool}-{index}", f"{pool}.{index} step {step}")
    for step in range(4)
    for pool, index in ((0, 0), (1, 0), (1, 1), (3, 0))
)
Send = Callable[..., submission.Submitted]


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Loopback]:
    """The service; its jobs print LINES. No command waits."""
    replace_pauses(monkeypatch, lambda _: None)
    with emulator.running(emulator.Script(lines=LINES)) as server:
        server.service.entries_page = 3
        yield server


@pytest.fixture
def place(loopback: emulator.Loopback) -> VertexAI:
    return VertexAI(loopback.where)


@pytest.fixture
def send(place: VertexAI, tmp_path: Path) -> Send:
    """Submit a job as a command of this machine does."""

    def send(text: str = JOB, again: bool = False) -> submission.Submitted:
        ready = jobfiles.ready(text, project=emulator.PROJECT)
        return submission.submit(place, ready, submission.Memory(tmp_path), again=again)

    return send


def test_a_lost_answer_and_a_list_that_lags_leave_one_job(
    loopback: emulator.Loopback, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    replace_pauses(monkeypatch, slept.append)
    loopback.service.faults.list_lag = 2
    loopback.service.faults.cut_create = 1
    sent = send()
    assert sent.created and list(loopback.service.jobs) == [sent.job.id]
    assert sum(slept) <= sum(submission.LOOKS_AFTER)


def test_two_commands_on_this_machine_make_one_job(loopback: emulator.Loopback, send: Send) -> None:
    loopback.service.faults.list_lag = 10_000  # the list shows neither job
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: send(), range(4)))
    assert len(loopback.service.jobs) == 1
    assert [each.created for each in sent].count(True) == 1
    assert len({each.job.name for each in sent}) == 1


@pytest.mark.parametrize(
    "missing", ["99", f"projects/{emulator.NUMBER}/locations/us-central1/customJobs/9"]
)
def test_a_job_is_found_by_its_number_on_every_page(
    missing: str, loopback: emulator.Loopback, place: VertexAI, send: Send
) -> None:
    jobs = [send().job]
    loopback.settle()
    for _ in range(3):  # more than one page
        jobs.append(send(again=True).job)
        loopback.settle()
    for name in (jobs[-1].id, jobs[-1].display_name):
        assert place.find(name).name == jobs[-1].name
    assert [each.name for each in place.list()] == [each.name for each in reversed(jobs)]
    with pytest.raises(OutsideError) as caught:
        place.find(missing)
    assert "builder job list" in caught.value.fix


def test_each_refusal_is_one_line_and_a_way_out(
    loopback: emulator.Loopback, place: VertexAI, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = loopback.service.faults
    faults.refusal = Refused(429, "RESOURCE_EXHAUSTED", "Quota custom_model_training_v100 is 0")
    with pytest.raises(OutsideError, match="or no quota left") as caught:
        send()
    assert "\n" not in caught.value.message and "another region" in caught.value.fix
    faults.refusal, faults.bursts = None, [("POST .*customJobs$", 503, 9)]
    with pytest.raises(OutsideError, match="cannot be reached") as caught:
        send()
    assert "same command again" in caught.value.fix and not loopback.service.jobs
    loopback.service.calls.clear()
    gone = Credentials(
        None, refresh_token="x", client_id="x", client_secret="x", token_uri=f"{loopback.url}/token"
    )
    monkeypatch.setattr(googleapi, "credentials", lambda _: (gone, None))
    place.__dict__.pop("client")
    ready = jobfiles.ready(JOB, project=emulator.PROJECT)
    for command in (send, lambda: place.submit(ready)):
        with pytest.raises(OutsideError, match="the credentials are not accepted") as caught:
            command()
        assert caught.value.fix == googleapi.LOGIN and type(caught.value) is OutsideError
    assert set(loopback.service.calls) == {"POST /token"}, "nothing was sent"


# --- lines ----------------------------------------------------------------------------------------


def test_each_line_once_with_its_replica_though_it_comes_late_or_twice(
    loopback: emulator.Loopback, send: Send
) -> None:
    job, service = send().job, loopback.service
    loopback.settle()
    reader = CloudLog.of(loopback.where, job.id)
    service.faults.late_entries = 3
    service.faults.double_entries = True
    lines = [line for _ in range(6) for line in reader.read()]
    assert [(line.text, line.severity) for line in lines] == [(text, "INFO") for _, text in LINES]
    assert {line.replica for line in lines} == {"chief-0", "worker-0", "worker-1", "evaluator-0"}
    service.faults.double_entries = False
    service.faults.age = timedelta(minutes=10)
    service.tell(job.id, "workerpool1-0", "said long ago")
    service.tell(job.id, "service", '{"severity": "WARNING", "message": "slow", "step": 3}')
    late, json_line = reader.read()
    assert (late.replica, late.text) == ("worker-0", "said long ago")
    assert (json_line.replica, json_line.text, json_line.severity) == ("service", "slow", "WARNING")
    assert json_line.fields["step"] == 3 and reader.read() == ()


def test_a_passing_error_repeats_one_page_and_a_refusal_is_told(
    loopback: emulator.Loopback, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = CloudLog.of(loopback.where, send(STUDY).job.id)
    loopback.settle()
    tokens, page = list[str](), loopback.service.logged

    def fail_on_the_fourth(wanted: dict[str, str]) -> dict[str, object]:
        tokens.append(wanted.get("pageToken", ""))
        if len(tokens) == 4:
            raise Refused(503, "UNAVAILABLE", "soon")
        return page(wanted)

    monkeypatch.setattr(loopback.service, "logged", fail_on_the_fourth)
    assert {line.trial for line in reader.read()} == {"1", "2", "3"}
    assert tokens[:6] == ["", "3", "6", "9", "9", "12"] and len(tokens) == 17
    loopback.service.faults.bursts = [("entries:list", 403, 1)]
    with pytest.raises(OutsideError, match="logs: not allowed"):
        reader.read()
