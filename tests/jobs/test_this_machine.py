"""This machine's jobs, asked from another process than the one that runs them: no engine needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.pools import Pool

Ran = Callable[..., Path]


@pytest.fixture
def ran(project: Path) -> Ran:
    """Writes what the runner leaves of a job."""

    def write(name: str, state: str, **more: Any) -> Path:
        folder = project / "build" / "jobs" / name
        (folder / "local").mkdir(parents=True, exist_ok=True)
        replica = {"state": state, "exit_code": None, "restarts": 2, "seconds": 5.0}
        content = {
            "job": name,
            "state": state,
            "message": "",
            "seconds": 5.0,
            "exit_code": 0,
            "time": "2026-11-21T07:00:05+00:00",
            "owner": containers.owner(os.getpid()),
            "replicas": [{"name": each, **replica} for each in ("chief-0", "worker-0", "worker-1")],
            **more,
        }
        (folder / "local" / "state.json").write_text(json.dumps(content))
        return folder

    return write


def test_a_folder_tells_pools_replicas_and_times(project: Path, ran: Ran) -> None:
    folder = ran("cats", "failed", message="chief-0 failed", exit_code=3)
    job = ThisMachine(project).find("cats")
    assert (job.name, job.id, job.state, job.error) == (
        *(str(folder), "cats", "failed", "chief-0 failed"),
    )
    assert (job.active, job.seconds, job.exit_code) == (False, 5.0, 3)
    assert job.pools == (Pool("chief", 1), Pool("worker", 2))
    assert [(each.name, each.restarts) for each in job.replicas] == [
        *(("chief-0", 2), ("worker-0", 2), ("worker-1", 2)),
    ]


def test_the_newest_first_and_those_of_one_description(project: Path, ran: Ran) -> None:
    ran("cats", "succeeded", time="2026-11-21T07:00:00+00:00")
    ran("dogs", "succeeded", time="2026-11-21T08:00:00+00:00")
    place = ThisMachine(project)
    assert [each.display_name for each in place.list()] == ["dogs", "cats"]
    assert [each.display_name for each in place.list("cats")] == ["cats"]
    assert len(place.list(limit=1)) == 1


def test_a_job_whose_builder_was_killed_is_lost(project: Path, ran: Ran) -> None:
    host = containers.owner(os.getpid()).partition(":")[0]
    ran("cats", "running", owner=f"{host}:1:12345")
    job = ThisMachine(project).find("cats")
    assert (job.state, job.active, job.exit_code) == ("lost", False, 1)
    assert "killed" in job.error


def test_cancelling_ends_the_process_that_runs_the_job(project: Path, ran: Ran) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as runner:
        ran("cats", "running", owner=containers.owner(runner.pid))
        place = ThisMachine(project)
        place.cancel(place.find("cats"))
        assert runner.wait(30) == -signal.SIGTERM
    ran("dogs", "running", owner="elsewhere:1:2")
    with pytest.raises(OutsideError, match="dogs runs on elsewhere"):
        place.cancel(place.find("dogs"))


def test_what_cannot_be_asked_is_refused(project: Path, ran: Ran) -> None:
    place = ThisMachine(project)
    with pytest.raises(InputError, match="no job has run there"):
        place.find("cats")
    with pytest.raises(OutsideError, match="no job has run there"):
        place.get(str(project / "build" / "jobs" / "cats"))
    (ran("tuned", "running") / "study.json").write_text("{}")
    with pytest.raises(InputError, match="a study; name one of its trials") as error:
        place.find("tuned")
    assert "build/jobs/tuned/1" in error.value.fix
