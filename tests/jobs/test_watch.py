"""A job's folder, read again and again; the pages made of it."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError
from builder.engine import containers
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import usage
from builder.jobs.backends.local.backend import ThisMachine
from builder.jobs.watch import html as report
from builder.jobs.watch import page
from builder.jobs.watch.reader import Reader


def reader_of(folder: Path) -> Reader:
    """A reader of the job in this folder."""
    place = ThisMachine(folder)
    return Reader(place, place.find(str(folder)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_state(tmp_path, "running")
    here = tmp_path / folders.LOCAL
    (here / "job.log").write_text("2026-11-21T07:00:00.000+00:00 job: 2 replicas of <image>\n")
    lines = [line(step, 1 / step) for step in (10, 20, 30)]
    (here / "chief-0.log").write_text("".join(lines))
    (here / "worker-0.log").write_text("2026-11-21T07:00:01.000+00:00 plain <b>words</b>\n")
    stats = {"time": 1795244405.0, "cpu": 1.5, "memory": 400_000_000, "gpu": 0.7}
    (here / "chief-0.stats").write_text(json.dumps(stats) + "\n")
    return tmp_path


def line(step: int, loss: float) -> str:
    event = {"message": f"step {step}", "event": "step", "step": step, "loss": loss}
    event |= {"examples_per_second": 100.0, "steps": 50, "eta_seconds": 61}
    return f"2026-11-21T07:00:0{step // 10}.000+00:00 {json.dumps(event)}\n"


def write_state(folder: Path, state: str, **more: Any) -> None:
    replica = {"state": state, "exit_code": None, "restarts": 0, "seconds": 5.0}
    content = {
        "job": "cats",
        "state": state,
        "message": "",
        "seconds": 5.0,
        "time": "2026-11-21T07:00:00+00:00",
        "owner": containers.owner(os.getpid()),
        "replicas": [{"name": name, **replica} for name in ("chief-0", "worker-0")],
        **more,
    }
    (folder / folders.LOCAL).mkdir(exist_ok=True)
    (folder / folders.LOCAL / folders.STATE).write_text(json.dumps(content))


def test_a_view_says_where_each_replica_is(folder: Path) -> None:
    view = reader_of(folder).view()
    chief, worker = view.replicas
    assert (chief.step, chief.steps, chief.loss, chief.speed) == (30, 50, 1 / 30, 100.0)
    assert (worker.step, worker.message) == (None, "plain <b>words</b>")
    assert view.series["loss"]["chief-0"] == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    assert not view.over


def test_only_what_is_new_is_read_and_half_a_line_waits(folder: Path) -> None:
    reader = reader_of(folder)
    reader.view()
    path = folder / "local/chief-0.log"
    whole = line(40, 0.01)
    with path.open("a") as file:
        file.write(whole[:50])
    assert reader.view().replicas[0].step == 30
    with path.open("a") as file:
        file.write(whole[50:])
    assert reader.view().replicas[0].step == 40


def test_steps_that_a_restart_made_again_are_drawn_once(folder: Path) -> None:
    reader = reader_of(folder)
    reader.view()
    with (folder / "local/chief-0.log").open("a") as file:
        file.write(line(20, 0.9))
    assert reader.view().series["loss"]["chief-0"] == [(10, 0.1), (20, 0.9)]


def test_a_job_whose_builder_is_gone_is_lost(folder: Path) -> None:
    host = containers.owner(os.getpid()).partition(":")[0]
    write_state(folder, "running", owner=f"{host}:1:12345")
    view = reader_of(folder).view()
    assert (view.state, view.over) == ("lost", True)


def test_a_folder_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no job has run there"):
        reader_of(tmp_path)


def test_a_torn_event_file_and_a_torn_summary_do_no_harm(folder: Path) -> None:
    (folder / "logs/train").mkdir(parents=True)
    (folder / "logs/train/events.out.tfevents.1.x").write_bytes(b"\x18\0\0\0\0\0\0\0torn")
    (folder / "summary.json").write_text('{"time": ')
    assert reader_of(folder).view().summary == {}


def test_the_terminal_page_fits_a_terminal(folder: Path) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=(folder / "out").open("w"))
    console.print(page.page(reader_of(folder).view()))
    text = console.export_text()
    assert "step 30 of 50, 0:01:01 left" in text
    (row,) = [one for one in text.splitlines() if one.startswith("chief-0 ") and "running" in one]
    assert row.split() == ["chief-0", "running", "30", "0.0333", "100"]


class Page(HTMLParser):
    """Which tags there are, whether they close, what they point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_html_page_is_whole_and_asks_for_nothing_from_outside(folder: Path) -> None:
    time = {"seconds": {"startup": 3.0, "compute": 1.0}}
    evaluation = {"step": 30, "accuracy": 0.99}
    (folder / "summary.json").write_text(json.dumps({"time": time, "evaluation": evaluation}))
    write_state(folder, "succeeded", message="the chief is <done>", image="training:cpu")
    text = report.html(reader_of(folder).view())
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert not re.search(r"https?:|<script|url\(|@import", text)
    assert "the chief is <done>" in page.words
    assert "<image>" in page.words, "what a job says is text, never markup"
    assert text.count("<svg") == 2, "loss and examples per second; one point is no course"
    assert "startup 3.0 s (75 %)" in page.words
    assert "accuracy 0.99" in page.words


def test_ticks_are_round_and_span_the_range() -> None:
    for low, high in ((0.0, 1.0), (0.0003, 0.0009), (-5.0, 1234.0), (2.0, 2.0), (0.0, 0.0)):
        found = report.ticks(low, high)
        assert found[0] <= low <= high <= found[-1]
        assert 2 <= len(found) <= 8


def test_a_long_line_is_thinned_and_keeps_its_end() -> None:
    points = [(float(x), float(x)) for x in range(10_001)]
    found = report.thinned(points)
    assert len(found) <= report.MOST_POINTS + 1
    assert (found[0], found[-1]) == (points[0], points[-1])


def test_gpu_figures_of_nvidia_smi_are_of_the_replicas_own() -> None:
    text = "0, 50, 1000\n1, 100, 2000\n2, [N/A], 1\n"
    assert usage.gpu_usage(text, ("0", "1")) == {"gpu": 0.75, "gpu_memory": 3000 * 2**20}
    assert usage.gpu_usage(text, ("2",)) == {}
    assert usage.gpu_usage("", ("0",)) == {}
