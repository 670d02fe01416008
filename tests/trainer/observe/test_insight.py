"""The account of a run: it adds up, goes on after restarts, and shows what was lost."""

import errno
import json
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import parse
from trainer.job import storage
from trainer.loop.distribution import Cluster
from trainer.observe import insight, page, utilization
from trainer.observe.observer import Observer, Run, Watch

pytestmark = pytest.mark.tensorflow


def test_a_full_disk_at_the_end_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage, "write", full)
    account = insight.Account(None)
    monkeypatch.setattr(account, "summary", lambda run: {"step": 3})
    config = parse(["--records", "r", "--job-dir", "job"], {})
    account.end(types.SimpleNamespace(config=config, place=Cluster()), "fault")
    [line] = told(capsys)
    assert "summary.json cannot be written: " in line["message"]
    assert "No space left on device" in line["message"]


def test_a_call_ends_before_and_after_each_step_of_a_profile() -> None:
    config = parse(["--records", "r", "--job-dir", "j", "--profile-steps", "7,9"], {})
    profile = next(one for one in insight.observers(config) if type(one).__name__ == "Profile")
    assert [profile.until(step) for step in (0, 5, 6, 8, 9)] == [6, 6, 7, 9, None]


def test_few_lines_about_a_long_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("trainer.observe.insight.time.monotonic", lambda: now[0])
    config = parse(["--records", "r", "--job-dir", "j", "--batch", "10", "--steps", "10000"], {})
    position = types.SimpleNamespace(step=0, epoch=0.0)
    run = types.SimpleNamespace(config=config, position=position, place=Cluster())
    machine: Any = types.SimpleNamespace(of_gpus={})
    progress = insight.Progress(config, machine)
    for call in range(10_000):
        now[0] += 0.25
        position.step = call + 1
        seconds = np.array([0.25])
        metrics = {"loss": np.array([call]), "seconds": seconds, "input_wait": seconds / 5}
        machine.of_gpus = {"gpu_percent": 87.5} if call == 5 else {}
        progress.steps(run, call + 1, metrics)
    said = told(capsys)
    [waits] = [line for line in said if line["event"] == "input"]
    assert (waits["severity"], waits["wait_share"], waits["step"]) == ("WARNING", 0.2, 41)
    assert "20.0% of a step waited for; what helps: smaller records" in waits["message"]
    said.remove(waits)
    assert len(said) == 100 + (10_000 - 100) * 0.25 // 10 + 1
    assert (said[-1]["step"], said[-1]["eta_seconds"]) == (10_000, 0)
    assert said[0]["examples_per_second"] == 40
    told_of_gpus = [line["step"] for line in said if "gpu_percent" in line]
    assert told_of_gpus == [6], "a figure of before is not said again"
    # Each line covers all steps since the line before.
    assert said[100]["loss"] == np.mean(range(100, said[100]["step"]))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_format_of_cloudml_hypertune_and_the_last_hundred_are_kept(tmp_path: Path) -> None:
    """What cloudml-hypertune 0.1.0.dev6 writes for report_hyperparameter_tuning_metric."""
    path = tmp_path / "not/there/output.metrics"
    for step in range(insight.KEPT + 20):
        insight.report_metric(path, "7", "accuracy", 0.93, step)
    assert [line["global_step"] for line in lines(path)] == [
        str(n) for n in range(20, insight.KEPT + 20)
    ]
    first = lines(path)[0]
    assert isinstance(first.pop("timestamp"), float)
    assert first == {"accuracy": "0.93", "checkpoint_path": "", "global_step": "20", "trial": "7"}
    assert path.read_text().startswith('{"accuracy"')  # keys sorted, as theirs are
    assert [child.name for child in path.parent.iterdir()] == ["output.metrics"]


@pytest.mark.parametrize(
    ("trial", "file", "reported"),
    [
        ("3", "named", "named"),
        ("3", "", "default"),
        ("", "", ""),
        ("", "named", "named"),
        ("3", "default/below", "error"),
    ],
)
def test_a_trial_reports_and_an_error_is_a_line(
    trial: str,
    file: str,
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(insight, "TUNING", str(tmp_path / "default"))
    if reported == "error":
        (tmp_path / "default").touch()
    environment = {"CLOUD_ML_TRIAL_ID": trial, "CLOUD_ML_HP_METRIC_FILE": ""}
    environment["CLOUD_ML_HP_METRIC_FILE"] = str(tmp_path / file) if file else ""
    config = types.SimpleNamespace(metric="accuracy")
    run = types.SimpleNamespace(config=config)
    insight.Trial(environment).evaluated(run, 10, {"loss": 0.25, "accuracy": 0.75})
    written = {path.name for path in tmp_path.iterdir() if lines(path)}
    assert written == ({reported} if reported in ("named", "default") else set())
    if reported == "error":
        line = json.loads(capsys.readouterr().out)
        assert (line["severity"], line["event"]) == ("ERROR", "trial")


# An observer's fault does not end a run

OCCASIONS = ("begin", "steps", "evaluated", "end", "closed", "state")


def failing(occasion: str) -> Observer:
    """An observer that raises on one occasion; its name is Fails and the occasion."""

    def fail(*_: object) -> None:
        raise ValueError(f"no {occasion}\nand more")

    made = type(f"Fails{occasion.title()}", (Observer,), {occasion: fail, "name": occasion})
    return made()


class Counting(Observer):
    """Counts its calls, and may fail at a step."""

    name = "counting"

    def __init__(self, fails_at: int = 0, every: int = 0) -> None:
        self.fails_at, self.every = fails_at, every
        self.seen: list[int] = []

    def until(self, step: int) -> int | None:
        return (step // self.every + 1) * self.every if self.every else None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self.seen.append(first_step)
        if first_step == self.fails_at:
            raise ZeroDivisionError("by nothing")

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}


def told(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def run_at(step: int = 0) -> Any:
    return types.SimpleNamespace(position=types.SimpleNamespace(step=step), left_out={})


def test_one_that_fails_is_told_of_once_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, third = Counting(), Counting(fails_at=3), Counting()
    watch, run = Watch([first, second, third]), run_at(7)
    for step in range(1, 6):
        watch.each(run, lambda observer, step=step: observer.steps(run, step, {}))
    assert (first.seen, second.seen, third.seen) == ([*range(1, 6)], [1, 2, 3], [*range(1, 6)])
    [line] = told(capsys)
    assert (line["event"], line["severity"], line["step"]) == ("observer", "WARNING", 7)
    assert line["observer"] == "Counting"
    assert "ZeroDivisionError: by nothing" in line["message"]
    assert "test_insight.py" in line["traceback"]
    assert run.left_out == {"Counting": "ZeroDivisionError: by nothing"}


def test_one_that_is_left_out_and_those_of_other_ranks_still_say_where_a_call_ends() -> None:
    both = [[Counting(fails_at=1, every=5), Counting(every=7)] for _ in range(2)]
    here, there = Watch(both[0]), Watch(both[1], chief=False)
    for watch in (here, there):
        watch.each(run_at(), lambda observer: observer.steps(run_at(), 1, {}))
    assert [observer.seen for observer in both[1]] == [[], []], "the chief alone reports"
    assert [here.until(step) for step in range(20)] == [there.until(step) for step in range(20)]
    assert [here.until(step) for step in (0, 5, 7, 10)] == [5, 7, 10, 14]


def test_a_run_with_observers_that_fail_is_done_and_says_which(
    tmp_path: Path, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One observer for each occasion, and four of the trainer's own."""

    def broken(*_: object, **__: object) -> Any:
        raise OSError("broken for the test")

    monkeypatch.setattr(page, "worst", broken)
    monkeypatch.setattr(page, "confusion", broken)
    monkeypatch.setattr(insight.Trial, "evaluated", broken)
    monkeypatch.setattr(utilization, "use_of", broken)
    monkeypatch.setattr(utilization, "SECONDS", 0.01)
    made = insight.observers
    failures = [failing(occasion) for occasion in OCCASIONS]
    monkeypatch.setattr(insight, "observers", lambda *given: [*failures, *made(*given)])
    code, lines = task("--steps", 120, "--checkpoint-every", 40, "--evaluate-every", 40)
    assert (code, lines[-1]["event"], lines[-1]["step"]) == (0, "done", 120)
    warned = [line["observer"] for line in lines if line["event"] == "observer"]
    own = {"Mistakes", "Trial", "Utilization", "Report"}
    assert sorted(warned) == sorted(own | {type(failure).__name__ for failure in failures})
    assert [line["step"] for line in lines if line["event"] == "evaluated"] == [40, 80, 120]
    assert (tmp_path / "model/saved_model.pb").exists()
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["left_out"]["Mistakes"] == "OSError: broken for the test"
    assert found["outcome"] == "done"
