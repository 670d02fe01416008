"""A job at a place: what its state, its error, its lines and its folder say of its end."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from builder.core.errors import OutsideError
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.protocol import Backend, JobStatus, LogLine
from builder.jobs.why import jobs
from builder.jobs.why.diagnose import Diagnosis, diagnose

BEGAN = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
OOM = "OOM when allocating tensor with shape[64]"
STATUS = JobStatus(
    name="projects/p/locations/r/customJobs/1",
    display_name="cats",
    state="failed",
    region="r",
    created=BEGAN,
    started=BEGAN,
    ended=BEGAN,
    error="",
    labels={},
    image="",
    output="gs://bucket/cats",
    strategy="standard",
    pools=(),
)


@dataclass
class There:
    """A place with one job's lines, or with a log that may not be read."""

    lines: tuple[LogLine, ...] = ()
    refusal: str = ""
    title: str = "Vertex AI"

    def logs(self, job: JobStatus, replica: str | None = None) -> There:
        return self

    def read(self) -> tuple[LogLine, ...]:
        if self.refusal:
            raise OutsideError(self.refusal, "ask")
        return self.lines


def line(second: float, replica: str, text: str, **more: Any) -> LogLine:
    return LogLine(BEGAN + timedelta(seconds=second), replica, "INFO", text, **more)


def why(there: There, **status: Any) -> Diagnosis:
    place = cast("Backend", there)
    return diagnose(jobs.of_job(place, replace(STATUS, **status)))


# --- far away -------------------------------------------------------------------------------------


def test_a_line_stands_in_a_replica_at_a_time() -> None:
    diagnosis = why(
        There(
            (
                line(1, "chief-0", f"Traceback\n{OOM}"),
                line(2, "worker-0", "Connection reset by peer"),
                line(3, "service", "Job failed."),
            )
        ),
        error="The replica workerpool0-0 exited with a non-zero status of 1.",
        failed_code=1,
    )
    assert diagnosis.ending == "device-memory"
    assert (diagnosis.evidence[0].text, diagnosis.evidence[0].where) == (
        OOM,
        "chief-0, 2026-11-21 07:00:01 UTC",
    )
    assert diagnosis.evidence[1].text == "exit code 1"


def test_the_error_of_the_service_is_evidence() -> None:
    diagnosis = why(There(), error="Resources are insufficient in region: us-central1.")
    assert (diagnosis.ending, diagnosis.evidence[0].where) == ("stockout", "what Vertex AI says")


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ("queued", "waiting"),
        ("running", "running"),
        ("cancelling", "running"),
        ("succeeded", "ended-well"),
        ("cancelled", "cancelled"),
        ("expired", "timeout"),
        ("failed", "unknown"),
        ("a state of tomorrow", "unknown"),
    ],
)
def test_each_state_has_an_answer(state: str, ending: str) -> None:
    assert why(There((line(1, "chief-0", "loading"),)), state=state).ending == ending


def test_a_log_that_may_not_be_read_is_said() -> None:
    diagnosis = why(There(refusal="logs: not allowed"), failed_code=137)
    assert diagnosis.ending != "unknown" and diagnosis.certainty == "likely"
    assert diagnosis.notes == ("its log cannot be read: logs: not allowed",)


def test_of_a_long_log_the_newest_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST", 3)
    lines = tuple(line(index, "chief-0", f"line {index}") for index in range(10))
    diagnosis = why(There(lines))
    assert diagnosis.notes == ("older lines that were not read: 7",)
    assert diagnosis.evidence[0].text == "line 9"


def test_a_study_names_the_trial() -> None:
    lines = (line(1, "chief-0", "fine", trial="1"), line(2, "chief-0", OOM, trial="2"))
    diagnosis = why(There(lines))
    assert diagnosis.evidence[0].where.startswith("trial 2, chief-0, ")


def test_escapes_of_a_place_are_left_out() -> None:
    diagnosis = why(
        There((line(1, "chief\x1b[2J-0", f"\x1b]0;x\x07{OOM}"),)), display_name="c\x1bats"
    )
    assert "\x1b" not in repr(diagnosis)


# --- on this machine ------------------------------------------------------------------------------


def write(folder: Path, state: str = "failed", message: str = "", **more: Any) -> Path:
    """The folder of a local job that ended now."""
    content = {
        "job": "cats",
        "state": state,
        "message": message,
        "seconds": 5.0,
        "time": datetime.now(UTC).isoformat(),
        "owner": "",
        "replicas": [
            {"name": "chief-0", "state": state, "exit_code": 1, "restarts": 0, "seconds": 5.0}
        ],
    }
    (folder / "local").mkdir()
    (folder / "local/state.json").write_text(json.dumps(content | more))
    return folder


def here(folder: Path) -> Diagnosis:
    place = ThisMachine(folder)
    return diagnose(jobs.of_job(place, place.find(str(folder))))


@pytest.mark.parametrize(
    ("message", "ending", "certainty"),
    [
        ("chief-0 ran out of memory: step 4", "host-memory", "certain"),
        ("not done after its timeout of 5 s", "timeout", "certain"),
    ],
)
def test_what_the_engine_says(tmp_path: Path, message: str, ending: str, certainty: str) -> None:
    diagnosis = here(write(tmp_path, message=message))
    assert (diagnosis.ending, diagnosis.certainty) == (ending, certainty)


def test_the_word_of_the_trainer_counts_where_its_lines_are_gone(tmp_path: Path) -> None:
    write(tmp_path, message="chief-0 failed with exit code 4")
    word = tmp_path / "FAILED"
    word.write_text(json.dumps({"code": 4, "message": "step 7: the loss is not finite"}))
    diagnosis = here(tmp_path)
    assert (diagnosis.ending, diagnosis.certainty) == ("nan-loss", "certain")
    os.utime(word, (time.time() - 3600,) * 2)  # an earlier run's
    assert here(tmp_path).ending == "unknown"
    for broken in ("", "[]", "{", "\x00\xff", json.dumps({"code": "x"})):
        word.write_text(broken)
        assert here(tmp_path).ending == "unknown"


def test_a_builder_that_was_killed_and_a_state_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.engine.containers.is_gone", lambda owner: True)
    assert here(write(tmp_path, "running", owner="host:1:1")).ending == "runner-lost"
    (tmp_path / "local/state.json").write_text("{")
    with pytest.raises(OutsideError, match=r"state.json: cannot be read"):
        here(tmp_path)
