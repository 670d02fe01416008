"""Balanced classes: weights as scikit-learn's, and an epoch that has rare classes as often."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tests.trainer.input.samples import context, options  # noqa: E402
from trainer.input import data, parts, splits  # noqa: E402
from trainer.records import tfrecord  # noqa: E402


def grey(value: int) -> bytes:
    """A PNG file of 8 x 8 pixels."""
    content: bytes = tf.io.encode_png(np.full((8, 8, 3), value, np.uint8)).numpy()
    return content


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Sixty grey squares in two files: 45 of class 0, 12 of class 1, 3 of class 2; each another."""
    labels = [0] * 45 + [1] * 12 + [2] * 3
    order = np.random.default_rng(0).permutation(60)
    for number, part in enumerate((order[:25], order[25:])):
        content = b"".join(
            tfrecord.frame(tfrecord.serialise(grey(value), labels[value]))
            for value in part.tolist()
        )
        (tmp_path / f"train-{number:05d}.tfrecord").write_bytes(content)
    return tmp_path


def read(records: Path, consumed: int, count: int, worker: int = 0, workers: int = 1) -> list:
    shards = splits.find(str(records), "train")
    repeats = parts.Repeats.balanced(splits.labels(shards, 3), 3)
    config, place = options(image_size=8, seed=5), context(worker, workers)
    given: dict[str, Any] = {"batch_size": 1, "consumed": consumed, "repeats": repeats}
    batches = data.training(shards, place, config, 3, **given)
    return [(int(i[0, 0, 0, 0]), int(n[0])) for i, n in batches.take(count).as_numpy_iterator()]


def test_weights_are_those_of_scikit_learn() -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    labels = np.array([0] * 45 + [1] * 12 + [3] * 3)
    counted = parts.counts({"a": labels[:20], "b": labels[20:]}, 4)
    assert counted.tolist() == [45, 12, 0, 3]
    expected = utils.compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    np.testing.assert_allclose(parts.weights(counted)[[0, 1, 3]], expected, rtol=1e-6)
    assert parts.weights(counted)[2] == 0


def test_an_epoch_has_rare_classes_several_times_and_each_example_as_often(records: Path) -> None:
    shards = splits.find(str(records), "train")
    repeats = parts.Repeats.balanced(splits.labels(shards, 3), 3)
    assert repeats.of == (1, 4, 15)
    size = repeats.size(data.part(shards, 0, 1))
    assert size == 45 + 4 * 12 + 15 * 3
    epoch = Counter(read(records, 0, size))
    assert {epoch[one] for one in epoch} == {1, 4, 15}
    assert Counter(label for _, label in epoch.elements()) == {0: 45, 1: 48, 2: 45}


def test_a_restart_goes_on_in_the_same_order_on_each_worker(records: Path) -> None:
    for worker in range(2):
        whole = read(records, 0, 200, worker, 2)
        assert read(records, 2 * 130, 70, worker, 2) == whole[130:]
