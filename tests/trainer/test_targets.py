"""Several labels of a picture, and values: from a CSV file to the served model."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn import metrics as sklearn

from tests.trainer.runs import scalars
from trainer.config import UsageError, parse
from trainer.input import splits, targets
from trainer.records import command

pytestmark = pytest.mark.tensorflow

QUICK = ("--image-size", 16, "--learning-rate", 0.005)
COUNT = 160


def pictures(folder: Path, column: str) -> Path:
    """Pictures with a red left, a green right, both or none of them, which `labels` say; `values`
    say how bright each half is, in units of its own."""
    random = np.random.default_rng(0)
    folder.mkdir()
    rows = [("path", column, "split")]
    for number in range(COUNT):
        halves = random.integers(0, 2, 2) if column == "labels" else random.uniform(0, 1, 2)
        pixels = random.integers(0, 60, (16, 16, 3))
        pixels[:, :8, 0] += np.uint8(190 * halves[0])
        pixels[:, 8:, 1] += np.uint8(190 * halves[1])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        if column == "labels":
            said = "|".join(n for n, one in zip(("red", "green"), halves, strict=True) if one)
        else:
            said = f"{1000 * halves[0] + 5000:.3f}|{halves[1] / 100 - 7:.6f}"
        rows.append((f"{number}.png", said, "train" if number < 120 else "validation"))
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "list.csv"


@pytest.fixture(scope="module", params=["labels", "values"])
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    source = pictures(folder / "pictures", request.param)
    out = folder / request.param
    assert command.main([str(source), str(out), "--encoding", "png", "--workers", "1"]) == 0
    return out


def test_records_say_what_is_predicted(records: Path) -> None:
    told = json.loads((records / "dataset.json").read_text())
    shards = splits.find(str(records), "train")
    assert {shard.layout.target for shard in shards} == {told["target"]} == {records.name}
    found = np.concatenate([*splits.labels(shards, 2).values()])
    assert found.shape == (120, 2)
    if records.name == "labels":
        assert told["classes"] == ["green", "red"] == [*splits.class_names(str(records))]
        assert {tuple(row) for row in found.tolist()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        counted = told["splits"]["train"]["classes"]
        assert [counted["green"], counted["red"]] == found.sum(0).tolist()
    else:
        assert told["classes"] == ["value0", "value1"]
        assert -7 <= found[:, 1].min() < found[:, 1].max() <= -6.99


def test_a_run_learns_resumes_and_is_served(records: Path, tmp_path: Path, task) -> None:
    common = ("--records", records, *QUICK, "--job-dir", tmp_path, "--predictions")
    of_labels = records.name == "labels"
    mixed = ("--mixup", 0.2, "--label-smoothing", 0.1) if of_labels else ()
    if not of_labels:  # whose units are learned before the first step
        assert task(*common, "--steps", 50, "--export", "none")[0] == 0
    code, lines = task(*common, "--steps", 120, "--export", "final", *mixed)
    assert code == 0, lines[-1]
    assert [line["step"] for line in lines if line["event"] == "resumed"] == [50][of_labels:]
    job = tmp_path
    measured = json.loads((job / "evaluation.json").read_text())["metrics"]
    rows = list(csv.reader((job / "predictions.csv").open()))
    assert len(rows) == 41
    shards = splits.find(str(records), "validation")
    truth = np.concatenate([*splits.labels(shards, 2).values()])
    records_ = tf.data.TFRecordDataset([shard.path for shard in shards])
    encoded = [
        tf.io.parse_single_example(one, {"image/encoded": tf.io.FixedLenFeature([], tf.string)})
        for one in records_
    ]
    served = tf.saved_model.load(str(job / "model")).signatures["serving_default"]
    answers = served(image_bytes=tf.stack([one["image/encoded"] for one in encoded]))
    page = (job / "report.html").read_text()
    if of_labels:
        said = answers["probabilities"].numpy()
        assert measured["exact_match"] > 0.9
        assert measured["exact_match"] == pytest.approx(
            sklearn.accuracy_score(truth > 0.5, said >= 0.5)
        )
        assert rows[0][2:] == ["label", "prediction", "p(green)", "p(red)"]
        shown = np.array([row[4:] for row in rows[1:]], float)
        assert [row[2] for row in rows[1:5]] == [
            "|".join(np.array(["green", "red"])[one > 0.5]) for one in truth[:4]
        ]
        assert "average_precision" in page and "accuracy" in scalars(job / "logs/train")
    else:
        said = answers["values"].numpy()
        assert measured["r2"] > 0.8
        assert measured["r2"] == pytest.approx(sklearn.r2_score(truth, said), abs=1e-3)
        assert rows[0][2:] == ["value0", "value1", "predicted(value0)", "predicted(value1)"]
        shown = np.array([row[4:] for row in rows[1:]], float)
        assert "The largest mistakes" in page and "mae" in scalars(job / "logs/validation")
        assert "accuracy" not in scalars(job / "logs/train")
        assert lines[-1]["mae"] == pytest.approx(measured["mae"])
    np.testing.assert_allclose(shown, said, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("values", ("--mixup", "1"), "--mixup 1.0 needs one class of each example: r has values"),
        ("values", ("--metric", "f1"), "--metric f1: of values there are loss, mae, rmse, r2"),
        ("labels", ("--metric", "top5"), "--metric top5: of labels there are accuracy, loss,"),
        ("labels", ("--sampling", "balanced"), "--sampling balanced needs one class of each"),
        ("class", ("--metric", "r2"), "--metric r2: of one class of each there are accuracy,"),
    ],
)
def test_what_means_nothing_is_refused(target, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        targets.aimed(parse(["--records", "r", "--job-dir", "j", *options], {}), target)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("given", "found"), [((), "loss"), (("--metric", "r2"), "r2")])
def test_the_metric_of_values_is_their_loss_unless_another_is_given(given: Any, found: str) -> None:
    config = parse(["--records", "r", "--job-dir", "j", *given], {})
    assert targets.aimed(config, "values").metric == found


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("values", ("1|2", "3"), "1.png has 1 values, 0.png has 2"),
        ("values", ("1", "many"), "1.png: its value 'many' is not a number"),
        ("values", ("1", "nan"), "1.png: its value 'nan' is not a number"),
        ("values", ("1", ""), "line 3: needs a path and a label"),
        ("labels", ("a", "a|a"), "needs two or more classes; has 1 (a)"),
    ],
)
def test_a_list_that_cannot_be_right_is_one_line(
    column: str, cells: tuple[str, str], message: str, tmp_path: Path, capsys
) -> None:
    rows = [f"path,{column}"]
    for number, cell in enumerate(cells):
        Image.new("L", (8, 8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{cell}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    assert command.main([str(tmp_path / "list.csv"), str(tmp_path / "out"), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") <= 2
