"""Metrics of an evaluation: those of scikit-learn and of the papers, however batches are cut."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import SMOKE, mirrored

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
metrics = pytest.importorskip("sklearn.metrics")

from trainer.config import METRICS_OF, parse  # noqa: E402
from trainer.input import splits  # noqa: E402
from trainer.loop import inner  # noqa: E402
from trainer.model import networks, scores  # noqa: E402
from trainer.observe import classes  # noqa: E402

mirrored()  # Before TensorFlow touches the first device, or there is no second one.

CLASSES = 7


@pytest.fixture(scope="module")
def found() -> tuple[np.ndarray, np.ndarray, scores.Tally]:
    """Labels and logits of 600 examples, counted in batches of which each ends with fillers."""
    random = np.random.default_rng(3)
    labels = random.integers(0, CLASSES - 1, 600)  # nothing is of the last class
    logits = random.normal(0, 2, (600, CLASSES)).astype(np.float32)
    logits[np.arange(600), labels] += 2
    total = 0
    for at in range(0, 600, 60):
        filler = np.zeros((4, CLASSES), np.float32)
        own = tf.constant(np.concatenate([logits[at : at + 60], filler]))
        numbers = tf.constant(np.concatenate([labels[at : at + 60], np.zeros(4, np.int64)]))
        weights = tf.constant([1.0] * 60 + [0.0] * 4)
        total = total + scores.tally(numbers, own, weights).numpy()
    return labels, logits, scores.Tally.of(total, CLASSES)


def test_precision_recall_and_f1_are_scikit_learn_s(found) -> None:
    labels, logits, tally = found
    answers = logits.argmax(axis=1)
    expected = metrics.precision_recall_fscore_support(
        labels, answers, labels=range(CLASSES), zero_division=0
    )
    for mine, theirs in zip(
        (tally.precision, tally.recall, tally.f1, tally.examples), expected, strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    np.testing.assert_array_equal(
        tally.confusion, metrics.confusion_matrix(labels, answers, labels=range(CLASSES))
    )
    mean = metrics.f1_score(labels, answers, average="macro")
    assert tally.metrics()["f1"] == pytest.approx(mean, abs=1e-6)


def test_the_area_under_the_curve_and_top_5_are_scikit_learn_s(found) -> None:
    labels, logits, tally = found
    shares = tf.nn.softmax(logits).numpy()
    for one in range(CLASSES - 1):
        expected = metrics.roc_auc_score(labels == one, shares[:, one])
        assert tally.auc[one] == pytest.approx(expected, abs=2e-3)
    assert np.isnan(tally.auc[-1]), "there is nothing of this class"
    expected = metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(CLASSES))
    assert tally.metrics()["top5"] == pytest.approx(expected, abs=1e-6)
    assert tally.metrics()["loss"] == pytest.approx(
        metrics.log_loss(labels, shares, labels=range(CLASSES)), rel=1e-4
    )


def test_the_calibration_error_is_that_of_the_paper(found) -> None:
    labels, logits, tally = found
    shares = tf.nn.softmax(logits).numpy()
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == labels
    expected = 0.0
    for low in np.arange(15) / 15:
        inside = (sure >= low) & (sure < low + 1 / 15)
        if inside.any():
            expected += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    assert tally.calibration_error == pytest.approx(expected, abs=1e-3)
    assert expected > 0.05, "there is something to measure"


def test_without_a_matrix_the_other_metrics_stay(found, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, logits, tally = found
    monkeypatch.setattr(scores, "LARGE", 3)
    flat = scores.tally(tf.constant(labels), tf.constant(logits), tf.ones(600)).numpy()
    large = scores.Tally.of(flat, CLASSES)
    assert large.confusion is None
    for name, value in large.metrics().items():
        assert value == pytest.approx(tally.metrics()[name], abs=0.02), name


def test_two_replicas_measure_what_one_does() -> None:
    options = ["--records", str(SMOKE), "--job-dir", "-", "--image-size", "8"]
    config = parse(options, {})
    shards = splits.of(config, 10)[1]
    results = []
    for strategy in (tf.distribute.get_strategy(), mirrored()):
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            network = networks.build(config, 10, "float32")
        results.append(inner.Evaluation(strategy, network, config, 10, shards).run())
    names = (*METRICS_OF["class"], "examples")
    assert results[0].keys() == {*names, "seconds"}
    for name in names:
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-5), name


def test_a_run_leaves_its_classes_and_predictions_and_is_judged_by_any_metric(
    tmp_path: Path, task
) -> None:
    code, lines = task(
        *("--records", SMOKE, "--job-dir", tmp_path, "--steps", 60, "--image-size", 8),
        *("--predictions", "--metric", "f1", "--export", "none"),
    )
    assert code == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["metrics"]["examples"] == 200
    names = [row["class"] for row in found["classes"]]
    answers = [names.index(row["prediction"]) for row in rows]
    labels = [names.index(row["label"]) for row in rows]
    assert found["confusion"] == metrics.confusion_matrix(labels, answers).tolist()
    assert sum(float(rows[0][f"p({name})"]) for name in names) == pytest.approx(1, abs=1e-4)
    assert rows[0]["file"].startswith("validation-00000") and rows[-1]["record"] == "199"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best"]["metric"] == "f1"
    assert summary["best"]["value"] == pytest.approx(
        metrics.f1_score(labels, answers, average="macro")
    )
    [said] = [line["message"] for line in lines if line["event"] == "classes"]
    assert len(said.splitlines()) == 11


def test_a_table_of_many_classes_shows_those_with_the_least_f1() -> None:
    rows = [
        {
            "class": f"c{n}",
            "examples": 1,
            "precision": 0.5,
            "recall": 0.5,
            "f1": n / 90,
            "auc": None,
        }
        for n in range(90)
    ]
    lines = classes.table(rows).splitlines()
    assert len(lines) == classes.MOST + 1
    assert "(40 of 90" in lines[0]
    assert lines[1].startswith("c0 ") and lines[-1].startswith("c39 ")
