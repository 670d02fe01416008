"""The page of a finished run: whole, self-contained, and with what the run found."""

import base64
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.observe import page  # noqa: E402


class Reader(html.parser.HTMLParser):
    """The text, the headings, and all that the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        self.fetched += [given[key] for key in ("src", "href") if key in given]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_run_that_was_restarted_has_one_page_with_all_of_it(tmp_path: Path, task) -> None:
    common = ("--records", SMOKE, "--job-dir", tmp_path, "--evaluate-every", 10)
    common += ("--image-size", 8, "--export", "none")
    for steps in (25, 40):
        code, lines = task(*common, "--steps", steps)
        assert code == 0
    assert [line["event"] for line in lines][-2:] == ["report", "done"]
    text = (tmp_path / "report.html").read_text()
    found = Reader(text)
    assert {"svg", "polyline", "img", "table"} <= set(found.tags)
    assert "script" not in found.tags and "link" not in found.tags
    assert found.fetched and all(one.startswith("data:image/png;base64,") for one in found.fetched)
    assert "overflow-x:auto" in text, "a table wider than the page can be moved"
    assert "://" not in text and "url(" not in text and "@import" not in text
    pictures = [base64.b64decode(one.partition(",")[2]) for one in found.fetched]
    assert all(tf.io.decode_png(picture).shape[2] == 3 for picture in pictures)
    heads = ("What was measured", "Curves", "Classes", "The surest mistakes")
    assert all(head in found.words for head in (*heads, "Where the time went", "Options"))
    measured = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]
    assert f"{measured['accuracy']:.4f}" in found.words
    assert any("2 attempt(s)" in word for word in found.words)
    line, evaluated = re.findall(r"<polyline points='([^']*)'", text)[:2]
    assert len(line.split()) == 40, "each step once, those before the restart too"
    assert len(evaluated.split()) == 4, "the one after step 25 came after its checkpoint"
    assert "--evaluate-every" in found.words and "--grace" not in found.words


def test_a_long_curve_is_thinned_and_steps_made_again_replace_the_earlier_ones() -> None:
    seen = page.Page(None, None)
    for first in range(1, 5001, 10):
        values = np.arange(first, first + 10, dtype=np.float32)
        seen.steps(None, first, {"loss": values, "accuracy": values})
    curve = seen._curves["loss, training"]
    assert page.POINTS / 4 < len(curve) <= page.POINTS
    assert all(value == step for step, value in curve)
    again = page.Page(None, None)
    again.restore(json.loads(json.dumps(seen.state())))
    again.steps(None, 2001, {"loss": np.full(32, 7.0), "accuracy": np.full(32, 7.0)})
    curve = again._curves["loss, training"]
    assert [step for step, _ in curve] == sorted(step for step, _ in curve)
    assert curve[-1] == (2032, 7.0) or curve[-1][1] == 7.0


def test_names_of_classes_cannot_break_the_page_and_bad_values_are_left_out() -> None:
    assert "<b>" not in page._table(("a",), [("<b>x", 1)])
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
    curves = {"loss, training": LEARNT, "loss, evaluation": evaluated}
    assert words in page.overfitting(curves)
    assert bool(page.overfitting(curves)) == bool(words)
    assert ("least after step 30" in page.chart("loss", curves)) == bool(words)


def test_shares_of_a_class_have_four_places_and_values_are_as_they_are() -> None:
    assert [page._number(one, ".4f") for one in (1.0, 0.25, 18, "cat", None)] == [
        "1.0000",
        "0.2500",
        "18",
        "cat",
        "-",
    ]
    assert page._number(1234.5, "") == "1234.5"
