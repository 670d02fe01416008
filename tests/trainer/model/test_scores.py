"""Metrics of an evaluation: those of scikit-learn and of the papers, however batches are cut."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

from tests.trainer.runs import SMOKE, mirrored
from trainer.config import METRICS_OF, parse
from trainer.input import splits
from trainer.loop import inner
from trainer.model import networks, scores

pytestmark = pytest.mark.tensorflow

mirrored()  # Before TensorFlow touches the first device, or there is no second one.

CLASSES = 7


def measured(target: str, truth: np.ndarray, outputs: np.ndarray, units: tuple = (0, 1)) -> Any:
    """The scores of batches of 60 that are filled up with examples that do not count."""
    kind, total = scores.OF[target], {}
    for at in range(0, len(truth), 60):
        labels, logits = (
            np.concatenate([part[at : at + 60], part[:4]]) for part in (truth, outputs)
        )
        weights = tf.constant([1.0] * (len(labels) - 4) + [0.0] * 4)
        labels = labels if target == "class" else labels.astype(np.float32)
        counts = kind.count(tf.constant(labels), tf.constant(logits, tf.float32), weights, units)
        total = {name: total.get(name, 0.0) + n.numpy().astype(float) for name, n in counts.items()}
    return kind(total, np.asarray(units[1]))


@pytest.fixture(scope="module")
def found() -> tuple[np.ndarray, np.ndarray, scores.OfClasses]:
    """Labels, logits and scores of 600 examples."""
    random = np.random.default_rng(3)
    labels = random.integers(0, CLASSES - 1, 600)  # nothing is of the last class
    logits = random.normal(0, 2, (600, CLASSES)).astype(np.float32)
    logits[np.arange(600), labels] += 2
    return labels, logits, measured("class", labels, logits)


def test_precision_recall_and_f1_are_scikit_learn_s(found) -> None:
    labels, logits, scored = found
    answers = logits.argmax(axis=1)
    expected = metrics.precision_recall_fscore_support(
        labels, answers, labels=range(CLASSES), zero_division=0
    )
    mine = (scored.precision, scored.recall, scored.f1, scored.counts["labels"])
    for own, theirs in zip(mine, expected, strict=True):
        np.testing.assert_allclose(own, theirs, atol=1e-6)
    np.testing.assert_array_equal(
        scored.confusion, metrics.confusion_matrix(labels, answers, labels=range(CLASSES))
    )
    mean = metrics.f1_score(labels, answers, average="macro")
    assert scored.metrics()["f1"] == pytest.approx(mean, abs=1e-6)


def test_the_area_under_the_curve_and_top_5_are_scikit_learn_s(found) -> None:
    labels, logits, scored = found
    shares = tf.nn.softmax(logits).numpy()
    for one in range(CLASSES - 1):
        expected = metrics.roc_auc_score(labels == one, shares[:, one])
        assert scored.auc[one] == pytest.approx(expected, abs=2e-3)
    assert np.isnan(scored.auc[-1]), "there is nothing of this class"
    expected = metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(CLASSES))
    assert scored.metrics()["top5"] == pytest.approx(expected, abs=1e-6)
    assert scored.metrics()["loss"] == pytest.approx(
        metrics.log_loss(labels, shares, labels=range(CLASSES)), rel=1e-4
    )


def test_the_calibration_error_is_that_of_the_paper(found) -> None:
    labels, logits, scored = found
    shares = tf.nn.softmax(logits).numpy()
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == labels
    expected = 0.0
    for low in np.arange(15) / 15:
        inside = (sure >= low) & (sure < low + 1 / 15)
        if inside.any():
            expected += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    assert scored.calibration_error == pytest.approx(expected, abs=1e-3)
    assert expected > 0.05, "there is something to measure"


def test_without_a_matrix_the_other_metrics_stay(found, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, logits, scored = found
    monkeypatch.setattr(scores, "LARGE", 3)
    large = measured("class", labels, logits)
    assert large.confusion is None
    for name, value in large.metrics().items():
        assert value == pytest.approx(scored.metrics()[name], abs=0.02), name


def test_metrics_of_several_labels_are_scikit_learn_s() -> None:
    random = np.random.default_rng(0)
    truth = (random.uniform(size=(170, 4)) < [0.5, 0.2, 0.7, 0.05]).astype(int)
    logits = np.round((2 * truth - 1) + random.normal(0, 2, truth.shape), 1)
    said, shares = (logits >= 0).astype(int), 1 / (1 + np.exp(-logits))
    scored = measured("labels", truth, logits)
    found = scored.metrics()
    assert set(found) == set(METRICS_OF["labels"])
    for name, score in (
        ("precision", metrics.precision_score),
        ("recall", metrics.recall_score),
        ("f1", metrics.f1_score),
    ):
        expected = score(truth, said, average="macro", zero_division=0)
        assert found[name] == pytest.approx(expected, rel=1e-5), name
    assert found["accuracy"] == pytest.approx((truth == said).mean())
    assert found["exact_match"] == pytest.approx(metrics.accuracy_score(truth, said))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, logits), abs=2e-3)
    precision = metrics.average_precision_score(truth, logits)
    assert found["average_precision"] == pytest.approx(precision, abs=2e-3)
    losses = [metrics.log_loss(truth[:, one], shares[:, one]) for one in range(4)]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert [row["examples"] for row in scored.table(tuple("abcd"))] == truth.sum(0).tolist()
    assert scored.confusion is None


def test_metrics_of_values_are_scikit_learn_s() -> None:
    random = np.random.default_rng(1)
    scale, mean = np.array([1000.0, 0.01]), np.array([5e4, -3.0])
    truth = mean + scale * random.normal(size=(170, 2))
    outputs = truth + scale * random.normal(0, 0.3, truth.shape)
    units = (mean.astype(np.float32), scale.astype(np.float32))
    scored = measured("values", truth, outputs, units)
    found = scored.metrics()
    assert set(found) == set(METRICS_OF["values"])
    error = np.abs(outputs - truth)
    np.testing.assert_allclose(scored.mae, error.mean(0), rtol=1e-3)
    np.testing.assert_allclose(scored.rmse, np.sqrt((error**2).mean(0)), rtol=1e-3)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, outputs), abs=1e-3)
    assert found["loss"] == pytest.approx(((error / scale) ** 2).mean(), rel=1e-3)
    assert [row["value"] for row in scored.table(("height", "width"))] == ["height", "width"]


def test_what_cannot_be_known_is_not_a_number() -> None:
    same = np.full((120, 1), 3.0)
    scored = measured("values", same, same + 1, (np.float32([3]), np.float32([1])))
    assert np.isnan(scored.metrics()["r2"]) and scored.table(("one",))[0]["r2"] is None
    none = np.zeros((120, 2))
    found = measured("labels", none, none - 1).metrics()
    assert np.isnan(found["auc"]) and np.isnan(found["average_precision"])
    assert (found["f1"], found["exact_match"]) == (0.0, 1.0)


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


def test_a_table_of_many_classes_shows_those_with_the_least_f1() -> None:
    same = {"examples": 1, "precision": 0.5, "recall": 0.5, "auc": None}
    rows = [{"class": f"c{n}", **same, "f1": n / 90} for n in range(90)]
    lines = scores.as_text(rows).splitlines()
    assert len(lines) == scores.MOST + 1
    assert "(40 of 90" in lines[0]
    assert lines[1].startswith("c0 ") and lines[-1].startswith("c39 ")
