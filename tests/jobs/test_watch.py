"""A job's folder, read again and again; the page made of it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.watch import Watch
from tests.jobs import jobfiles


def watched(folder: Path) -> Watch:
    """The job in this folder."""
    here = ThisMachine(folder)
    return Watch(here, here.find(str(folder)))


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


def test_a_page_says_where_each_replica_is(folder: Path) -> None:
    page = shown(watched(folder))
    row = next(line for line in page.splitlines() if line.startswith("chief-0 "))
    assert row.split() == ["chief-0", "running", "30", "of", "50", "0.0333", "100", "0:01:01", "2"]
    assert "worker-0 | plain <b>words</b>" in page and "2 replicas of <image>" in page


def test_only_what_is_new_is_read_and_half_a_line_waits(folder: Path) -> None:
    watch = watched(folder)
    watch.look()
    path = folder / "local/chief-0.log"
    whole = line(40, 0.01)
    for part, step in ((whole[:50], "30 of 50"), (whole[50:], "40 of 50")):
        with path.open("a") as file:
            file.write(part)
        assert step in shown(watch)
