"""A job at a place: what its state, its error, its lines and its folder say of its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import Backend, JobStatus, LogLine
from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose
from tests.jobs import jobfiles

BEGAN = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
OOM = "OOM when allocating tensor with shape[64]"
STATUS = JobStatus(
    name="projects/p/locations/r/customJobs/1",
    display_name="cats",
    state="failed",
    created=BEGAN,
    started=BEGAN,
    ended=BEGAN,
    error="",
    labels={},
    image="",
    output="gs://bucket/cats",
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
    return diagnose(logs.of_job(place, replace(STATUS, **status)))


# --- far away -------------------------------------------------------------------------------------


def test_a_line_stands_in_a_replica_at_a_time() -> None:
    lines = (
        line(1, "chief-0", f"Traceback\n{OOM}"),
        line(2, "worker-0", "Connection reset by peer"),
        line(3, "service", "Job failed."),
    )
    error = "The replica workerpool0-0 exited with a non-zero status of 1."
    diagnosis = why(There(lines), error=error, failed_code=1)
    assert diagnosis.ending == "device-memory"
    assert (diagnosis.evidence[0].text, diagnosis.evidence[0].where) == (
        OOM,
        "chief-0, 2026-11-21 07:00:01 UTC",
    )
    assert diagnosis.evidence[1].text == "exit code 1"
    of_a_trial = why(There((line(1, "chief\x1b[2J-0", f"\x1b]0;x\x07{OOM}", trial="2"),)))
    assert of_a_trial.evidence[0].where.startswith("trial 2, chief-0, ")
    assert "\x1b" not in repr(of_a_trial)  # no escapes of a place
    refused = why(There(), error="Resources are insufficient in region: us-central1.")
    assert (refused.ending, refused.evidence[0].where) == ("stockout", "what Vertex AI says")


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        *(("queued", "waiting"), ("running", "running"), ("cancelling", "running")),
        *(("succeeded", "ended-well"), ("cancelled", "cancelled"), ("expired", "timeout")),
        *(("failed", "unknown"), ("a state of tomorrow", "unknown")),
    ],
)
def test_each_state_has_an_answer(state: str, ending: str) -> None:
    assert why(There((line(1, "chief-0", "loading"),)), state=state).ending == ending


def test_a_log_that_may_not_be_read_or_is_long_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = why(There(refusal="logs: not allowed"), failed_code=137)
    assert diagnosis.ending != "unknown" and diagnosis.certainty == "likely"
    assert diagnosis.notes == ("its log cannot be read: logs: not allowed",)
    monkeypatch.setattr(logs, "MOST", 3)
    diagnosis = why(There(tuple(line(index, "chief-0", f"line {index}") for index in range(10))))
    assert diagnosis.notes == ("older lines that were not read: 7",)
    assert diagnosis.evidence[0].text == "line 9"


# --- on this machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "error", "ending"),
    [
        ("failed", "chief-0 ran out of memory: step 4", "host-memory"),
        ("failed", "not done after its timeout of 5 s", "timeout"),
        ("running", "", "runner-lost"),
    ],
)
def test_what_the_engine_says_and_a_builder_that_was_killed(
    state: str, error: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.engine.containers.is_gone", lambda owner: True)
    jobfiles.ran(tmp_path, state, error=error)
    diagnosis = jobfiles.why(tmp_path)
    assert (diagnosis.ending, diagnosis.certainty) == (ending, "certain")
