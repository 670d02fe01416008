"""This machine's jobs, asked from another process than the one that runs them, and the page that
shows one while it runs: no engine needed."""

from __future__ import annotations

import io
import json
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
from rich.console import Console

from builder.core.errors import InputError, OutsideError
from builder.engine import containers
from builder.jobs.backends.local import backend as folders
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.backends.protocol import JobStatus, TrialStatus
from builder.jobs.watch import Watch
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


def test_the_newest_first_and_one_whose_builder_was_killed_is_lost(project: Path, ran: Ran) -> None:
    owned(ran("cats", "running"), f"{socket.gethostname()}:1:12345")
    ran("dogs", "succeeded", began=jobfiles.BEGAN + timedelta(hours=1))
    place = ThisMachine(project)
    assert [each.display_name for each in place.list()] == ["dogs", "cats"]
    assert len(place.list(limit=1)) == 1
    (job,) = place.list("cats")
    assert (job.state, job.active, job.exit_code) == ("lost", False, 1) and "killed" in job.error


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


# --- the page -------------------------------------------------------------------------------------


def shown(watch: Watch) -> str:
    """The page as a terminal of 80 columns shows it."""
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(watch.look())
    return console.export_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jobfiles.ran(tmp_path, "running", 1)
    here = tmp_path / folders.LOCAL
    (here / "job.log").write_text("2026-11-21T07:00:00.000+00:00 2 replicas of <image>\n")
    lines = [line(step, 1 / step) for step in (10, 20, 30)]
    (here / "chief-0.log").write_text("".join(lines))
    (here / "worker-0.log").write_text("2026-11-21T07:00:01.000+00:00 plain <b>words</b>\n")
    return tmp_path


def line(step: int, loss: float) -> str:
    event = {"message": f"step {step}", "event": "step", "step": step, "loss": loss}
    event |= {"examples_per_second": 100.0, "steps": 50, "eta_seconds": 61}
    return f"2026-11-21T07:00:0{step // 10}.000+00:00 {json.dumps(event)}\n"


def test_a_page_says_where_each_replica_is_and_half_a_line_waits(folder: Path) -> None:
    here = ThisMachine(folder)
    watch = Watch(here, here.find(str(folder)))
    page = shown(watch)
    row = next(line for line in page.splitlines() if line.startswith("chief-0 "))
    assert row.split() == ["chief-0", "running", "30", "of", "50", "0.0333", "100", "0:01:01", "2"]
    assert "worker-0 | plain <b>words</b>" in page and "2 replicas of <image>" in page
    path, whole = folder / "local/chief-0.log", line(40, 0.01)
    for part, step in ((whole[:50], "30 of 50"), (whole[50:], "40 of 50")):
        with path.open("a") as file:
            file.write(part)
        assert step in shown(watch)
    log = here.logs(watch.job)
    assert len(log.read()) == 6 and log.read() == (), "each line once"
    jobfiles.ran(folder, "succeeded", 1)
    assert "succeeded" in shown(watch)
