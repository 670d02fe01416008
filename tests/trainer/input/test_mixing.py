"""Mixup and cutmix, against what their papers say."""

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.input.samples import context, made, options

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import UsageError  # noqa: E402
from trainer.input import data, mixing, splits  # noqa: E402


def batches(folder: Path, count: int, consumed: int = 0, **how: float) -> list:
    files, config = splits.find(str(folder), "train"), options(seed=3, **how)
    dataset = data.training(files, context(0, 1), config, 2, batch_size=8, consumed=consumed)
    return [(images.numpy(), labels.numpy()) for images, labels in dataset.take(count)]


def test_mixup_blends_each_picture_with_the_one_before_it_and_their_labels_alike(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path)
    plain = batches(folder, 6)
    found = batches(folder, 6, mixup=1.0)
    shares = set()
    for (images, labels), (mixed, soft) in zip(plain, found, strict=True):
        own, other = np.eye(2)[labels], np.eye(2)[np.roll(labels, 1)]
        np.testing.assert_allclose(soft.sum(-1), 1, rtol=1e-6)
        at = int(np.argmax(own[:, 0] != other[:, 0]))
        share = float(soft[at] @ own[at])
        np.testing.assert_allclose(soft, share * own + (1 - share) * other, atol=1e-6)
        expected = share * images.astype(float) + (1 - share) * np.roll(images, 1, 0)
        assert abs(mixed - expected).max() <= 0.51
        shares.add(round(share, 6))
    assert len(shares) == 6, "each batch has its own share"


@pytest.mark.parametrize("size", [(16, 16), (10, 30)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_cutmix_s_rectangle_has_the_area_that_it_reports(
    size: tuple[int, int], share: float
) -> None:
    images = np.zeros((2, *size, 3), np.uint8)
    images[1] = 255
    for number in range(20):
        centre = tf.random.stateless_uniform([2], [number, 1])
        seen, own = mixing.cutmix(tf.constant(images), tf.constant(share), centre)
        taken = seen.numpy()[0, ..., 0] == 255
        assert float(own) == pytest.approx(1 - taken.mean())
        assert taken.mean() <= 1 - share + 1e-6, "no more than was drawn"
        if taken.any():
            rows, columns = np.where(taken)
            assert taken[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert (share == 1) == (not taken.any())


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_shares_are_of_the_beta_distribution(alpha: float) -> None:
    seeds = tf.constant([[[n, 0], [n, 1]] for n in range(4000)], tf.int64)

    @tf.function
    def shares() -> tf.Tensor:
        return tf.map_fn(lambda n: mixing._beta(alpha, n), seeds, fn_output_signature=tf.float32)

    found = shares()
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)
    assert np.var(found) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_mixtures_are_the_same_after_a_restart_and_both_ways_are_used(tmp_path: Path) -> None:
    folder, how = made(tmp_path), {"mixup": 0.2, "cutmix": 1.0}
    unbroken = batches(folder, 20, **how)
    resumed = batches(folder, 7, 8 * 13, **how)
    for (images, labels), (again, soft) in zip(unbroken[13:], resumed, strict=True):
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(labels, soft)
    plain = batches(folder, 20)
    cut = [
        all(((m == i) | (m == np.roll(i, 1, 0))).ravel())
        for (m, _), (i, _) in zip(unbroken, plain, strict=True)
    ]
    assert any(cut)
    assert not all(cut)


def test_a_batch_of_one_picture_is_refused(tmp_path: Path) -> None:
    files = splits.find(str(made(tmp_path)), "train")
    with pytest.raises(UsageError, match=r"^--mixup and --cutmix: each replica needs a batch"):
        data.training(files, context(0, 1), options(mixup=1.0), 2, batch_size=1, consumed=0)
