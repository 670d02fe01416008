"""An observer's fault does not end a run: it is reported, and the observer is left out."""

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.observe import insight, page, utilization
from trainer.observe.observer import Observer, Run, Watch

pytestmark = pytest.mark.tensorflow

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
    assert "test_observer.py" in line["traceback"]
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
