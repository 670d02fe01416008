"""The page of a finished run: whole, self-contained, and with what the run found."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from trainer.observe import page

pytestmark = pytest.mark.tensorflow


def test_a_run_that_was_restarted_has_one_page_with_all_of_it(tmp_path: Path, task) -> None:
    for steps in (25, 40):
        code, lines = task("--evaluate-every", 10, "--export", "none", "--steps", steps)
        assert code == 0
    assert [line["event"] for line in lines][-2:] == ["report", "done"]
    text = (tmp_path / "report.html").read_text()
    tags, words = set(re.findall(r"<([a-z]+)", text)), re.findall(r">([^<>]+)", text)
    words = [word.strip() for word in words]
    fetched = re.findall(r"(?:src|href)='([^']*)'", text)
    assert {"svg", "polyline", "img", "table"} <= tags
    assert "script" not in tags and "link" not in tags
    assert fetched and all(address.startswith("data:image/png;base64,") for address in fetched)
    assert "overflow-x:auto" in text, "a table wider than the page can be moved"
    assert "://" not in text and "url(" not in text and "@import" not in text
    pictures = [base64.b64decode(one.partition(",")[2]) for one in fetched]
    assert all(tf.io.decode_png(picture).shape[2] == 3 for picture in pictures)
    heads = ("What was measured", "Curves", "Classes", "The surest mistakes")
    assert all(head in words for head in (*heads, "Where the time went", "Options"))
    assert "$" not in text, "every part of the template is there"
    measured = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]
    assert f"{measured['accuracy']:.4f}" in words
    assert any("2 attempt(s)" in word for word in words)
    line, evaluated = re.findall(r"<polyline points='([^']*)'", text)[:2]
    assert len(line.split()) == 40, "each step once, those before the restart too"
    assert len(evaluated.split()) == 4, "the one after step 25 came after its checkpoint"
    assert "--evaluate-every" in words and "--grace" not in words


def test_mistakes_are_looked_for_once(task, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, also of a run that stops early. With --summaries images: test_views.py."""
    looked = Mock(side_effect=page.worst)
    monkeypatch.setattr(page, "worst", looked)
    given = ("--early-stopping", 1, "--learning-rate", 1e-12, "--evaluate-every", 2, "--steps", 90)
    code, lines = task("--export", "none", *given)
    evaluated = [line["step"] for line in lines if line["event"] == "evaluated"]
    assert code == 0, lines[-1]
    assert (code, evaluated, looked.call_count) == (0, [2, 4, 4], 1)


def test_a_long_curve_is_thinned_and_steps_made_again_replace_the_earlier_ones() -> None:
    seen = page.Report(None, None)
    for first in range(1, 5001, 10):
        values = np.arange(first, first + 10, dtype=np.float32)
        seen.steps(None, first, {"loss": values, "accuracy": values})
    curve = seen.curves["loss, training"]
    assert page.POINTS / 4 < len(curve) <= page.POINTS
    assert all(value == step for step, value in curve)
    again = page.Report(None, None)
    again.restore(json.loads(json.dumps(seen.state())))
    again.steps(None, 2001, {"loss": np.full(32, 7.0), "accuracy": np.full(32, 7.0)})
    curve = again.curves["loss, training"]
    assert [step for step, _ in curve] == sorted(step for step, _ in curve)
    assert curve[-1][1] == 7.0


def test_names_of_classes_cannot_break_the_page_and_bad_values_are_left_out() -> None:
    assert "<b>" not in page.table(("a",), [("<b>x", 1)])
    drawn = page.chart("loss", {"loss, training": [(1, 2.0), (2, float("nan")), (3, 1.0)]})
    assert "nan" not in drawn
    assert page.chart("loss", {}) == ""


LEARNT = [(step, 2.0 / step) for step in range(1, 101)]


@pytest.mark.parametrize(
    ("evaluated", "words"),
    [
        ([(30, 0.6), (60, 0.9), (90, 3.74)], "least, 0.6, after step 30 and is 3.74 now"),
        ([(30, 0.9), (60, 0.61), (90, 0.6)], ""),
        ([(30, 0.6), (90, 3.74)], ""),
    ],
)
def test_a_run_that_overfits_is_marked(evaluated: list, words: str) -> None:
    both = {"loss, training": LEARNT, "loss, evaluation": evaluated}
    assert words in page.overfitting(both)
    assert bool(page.overfitting(both)) == bool(words)
    assert ("least after step 30" in page.chart("loss", both)) == bool(words)


def test_the_surest_mistakes_come_first() -> None:
    sure = np.array([0.9, 0.4, 0.5, 0.8, 0.6, 0.95])
    answers, labels = np.array([0, 1, 2, 1, 0, 2]), np.array([0, 1, 1, 0, 2, 0])
    predicted = np.zeros((6, 3))
    predicted[np.arange(6), answers] = sure
    run: Any = SimpleNamespace(config=SimpleNamespace(target="class"), names=("a", "b", "c"))
    assert page.worst(run, labels, predicted) == [
        (5, "is a, 95% c"),
        (3, "is a, 80% b"),
        (4, "is c, 60% a"),
        (2, "is b, 50% c"),
    ]
