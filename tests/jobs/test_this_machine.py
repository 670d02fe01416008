"""This machine's jobs, asked from another process than the one that runs them: no engine needed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.protocol import JobStatus, TrialStatus
from tests.jobs import jobfiles

Ran = Callable[..., JobStatus]


@pytest.fixture
def ran(project: Path) -> Ran:
    """Writes what the runner leaves of a job."""
    return lambda name, *args, **more: jobfiles.ran(project / "build/jobs" / name, *args, **more)


def owned(job: JobStatus, owner: str) -> JobStatus:
    """Let another process be the one that runs this job."""
    state = Path(job.name) / folders.LOCAL / folders.STATE
    state.write_text(state.read_text().replace(containers.owner(os.getpid()), owner))
    return job


def test_a_folder_tells_pools_replicas_and_times(project: Path, ran: Ran) -> None:
    trials = (TrialStatus("1", "succeeded", {"rate": "0.1"}, 0.9, 3.0),)
    written = ran("cats", "failed", 2, error="chief-0 failed", failed_code=3, trials=trials)
    job = ThisMachine(project).find("cats")
    assert job == written and (job.active, job.exit_code) == (False, 3)
    shutil.move(job.name, project / "moved")
    assert ThisMachine(project).find(str(project / "moved")).error == "chief-0 failed"


def test_the_newest_first_and_those_of_one_description(project: Path, ran: Ran) -> None:
    ran("cats", "succeeded")
    ran("dogs", "succeeded", began=jobfiles.BEGAN + timedelta(hours=1))
    place = ThisMachine(project)
    assert [each.display_name for each in place.list()] == ["dogs", "cats"]
    assert [each.display_name for each in place.list("cats")] == ["cats"]
    assert len(place.list(limit=1)) == 1


def test_a_job_whose_builder_was_killed_is_lost(project: Path, ran: Ran) -> None:
    owned(ran("cats", "running"), f"{socket.gethostname()}:1:12345")
    job = ThisMachine(project).find("cats")
    assert (job.state, job.active, job.exit_code) == ("lost", False, 1)
    assert "killed" in job.error


def test_cancelling_ends_the_process_that_runs_the_job(project: Path, ran: Ran) -> None:
    place = ThisMachine(project)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as runner:
        place.cancel(owned(ran("cats", "running"), containers.owner(runner.pid)))
        assert runner.wait(30) == -signal.SIGTERM
    with pytest.raises(OutsideError, match="dogs runs on elsewhere"):
        place.cancel(owned(ran("dogs", "running"), "elsewhere:1:2"))


def test_what_cannot_be_asked_is_refused(project: Path) -> None:
    place = ThisMachine(project)
    with pytest.raises(InputError, match="no job has run there"):
        place.find("cats")
    state = project / "build/jobs/cats/local/state.json"
    state.parent.mkdir(parents=True)
    for text in ("{", "{}"):  # torn, and of an older builder
        state.write_text(text)
        with pytest.raises(OutsideError, match=r"state.json: cannot be read"):
            place.find("cats")
    assert place.list() == ()
