"""What is measured of several labels and of values, beside scikit-learn."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
sklearn = pytest.importorskip("sklearn.metrics")

from trainer.config import METRICS_OF  # noqa: E402
from trainer.model import measures, scores  # noqa: E402


def measured(target: str, truth: np.ndarray, outputs: np.ndarray, units: tuple) -> object:
    """The tally of two batches, the second one filled up with examples that do not count."""
    measure, count = measures.of(target), outputs.shape[1]
    total = 0.0
    for at in (slice(0, 100), slice(100, None)):
        own = [np.concatenate([some[at], some[:3]]).astype(np.float32) for some in (truth, outputs)]
        weights = np.ones(len(own[0]), np.float32)
        weights[-3:] = 0
        given = (*map(tf.constant, own), tf.constant(weights))
        total += measure.count(*given, units).numpy().astype(np.float64)
    return measure.tally(scores.split(total, measure.sizes(count)), count, np.asarray(units[1]))


def test_metrics_of_several_labels_are_scikit_learn_s() -> None:
    random = np.random.default_rng(0)
    truth = (random.uniform(size=(170, 4)) < [0.5, 0.2, 0.7, 0.05]).astype(int)
    logits = np.round((2 * truth - 1) + random.normal(0, 2, truth.shape), 1)
    said, shares = (logits >= 0).astype(int), 1 / (1 + np.exp(-logits))
    tally = measured("labels", truth, logits, (0.0, 1.0))
    found = tally.metrics()
    assert set(found) == set(METRICS_OF["labels"])
    for name, score in (
        ("precision", sklearn.precision_score),
        ("recall", sklearn.recall_score),
        ("f1", sklearn.f1_score),
    ):
        expected = score(truth, said, average="macro", zero_division=0)
        assert found[name] == pytest.approx(expected, rel=1e-5), name
    assert found["accuracy"] == pytest.approx((truth == said).mean())
    assert found["exact_match"] == pytest.approx(sklearn.accuracy_score(truth, said))
    assert found["auc"] == pytest.approx(sklearn.roc_auc_score(truth, logits), abs=2e-3)
    precision = sklearn.average_precision_score(truth, logits)
    assert found["average_precision"] == pytest.approx(precision, abs=2e-3)
    losses = [sklearn.log_loss(truth[:, one], shares[:, one]) for one in range(4)]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert [row["examples"] for row in tally.table(tuple("abcd"))] == truth.sum(0).tolist()
    assert tally.confusion is None


def test_metrics_of_values_are_scikit_learn_s() -> None:
    random = np.random.default_rng(1)
    scale, mean = np.array([1000.0, 0.01]), np.array([5e4, -3.0])
    truth = mean + scale * random.normal(size=(170, 2))
    outputs = truth + scale * random.normal(0, 0.3, truth.shape)
    units = (mean.astype(np.float32), scale.astype(np.float32))
    tally = measured("values", truth, outputs, units)
    found = tally.metrics()
    assert set(found) == set(METRICS_OF["values"])
    error = np.abs(outputs - truth)
    np.testing.assert_allclose(tally.mae, error.mean(0), rtol=1e-3)
    np.testing.assert_allclose(tally.rmse, np.sqrt((error**2).mean(0)), rtol=1e-3)
    assert found["r2"] == pytest.approx(sklearn.r2_score(truth, outputs), abs=1e-3)
    assert found["loss"] == pytest.approx(((error / scale) ** 2).mean(), rel=1e-3)
    assert [row["value"] for row in tally.table(("height", "width"))] == ["height", "width"]


def test_what_cannot_be_known_is_not_a_number() -> None:
    same = np.full((120, 1), 3.0)
    tally = measured("values", same, same + 1, (np.float32([3]), np.float32([1])))
    assert np.isnan(tally.metrics()["r2"]) and tally.table(("one",))[0]["r2"] is None
    none = np.zeros((120, 2))
    tally = measured("labels", none, none - 1, (0.0, 1.0))
    found = tally.metrics()
    assert np.isnan(found["auc"]) and np.isnan(found["average_precision"])
    assert (found["f1"], found["exact_match"]) == (0.0, 1.0)
