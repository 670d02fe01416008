"""The trainer's event lines, for people and for machines. No TensorFlow."""

import json
import sys

import pytest

from trainer import event_lines

STEP = {"step": 50, "steps": 200, "loss": 0.5, "examples_per_second": 1234.5, "eta_seconds": 3725.0}


@pytest.fixture(autouse=True)
def as_it_was() -> None:
    yield
    event_lines.speak_in("json")


def test_json_unless_it_is_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    event_lines.speak_in("auto")
    event_lines.say("step", "step 50 of 200: loss 0.5000", **STEP)
    said = json.loads(capsys.readouterr().out)
    assert said["severity"] == "INFO"
    assert (said["event"], said["step"], said["loss"]) == ("step", 50, 0.5)


def test_numbers_that_json_does_not_know_are_text() -> None:
    assert json.loads(event_lines.line("error", "m", loss=float("nan")))["loss"] == "nan"
    odd = {"a": [float("nan"), 1.0], "b": {"c": float("inf")}, "d": (2,)}
    assert event_lines.finite(odd) == {"a": ["nan", 1.0], "b": {"c": "inf"}, "d": [2]}


def test_words_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    event_lines.speak_in("text")
    event_lines.say("step", "step 50 of 200: loss 0.5000", **STEP)
    event_lines.say("torn", "a checkpoint that is not whole", "WARNING", step=40)
    assert capsys.readouterr().out == (
        "[#####...............] step 50 of 200: loss 0.5000, 1,234 examples/s, 1:02:05 left\n"
        "warning: a checkpoint that is not whole\n"
    )


def test_on_a_terminal_one_line_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    event_lines.speak_in("auto")
    event_lines.say("step", "step 1", step=1, steps=2)
    event_lines.say("step", "step 2", step=2, steps=2)
    event_lines.say("evaluated", "accuracy 1")
    event_lines.say("done", "finished")
    clear = "\r\033[K"
    assert capsys.readouterr().out == (
        f"{clear}[##########..........] step 1"
        f"{clear}[####################] step 2"
        f"{clear}accuracy 1\nfinished\n"
    )
