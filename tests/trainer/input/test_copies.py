"""Repeated augmentation, against what its papers say (Hoffer et al. 2020, Augment your batch;
Berman et al. 2019, MultiGrain, section 3.3): a batch has each of its pictures several times, each
time augmented anew."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.input.samples import context, labels, shards
from tests.trainer.runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.config import UsageError, parse  # noqa: E402
from trainer.input import data, mixing, splits  # noqa: E402
from trainer.input.augment import Augmentation  # noqa: E402
from trainer.loop import inner  # noqa: E402


@pytest.mark.parametrize(("workers", "copies"), [(1, 2), (1, 4), (2, 2)])
def test_a_batch_has_few_pictures_and_each_of_them_so_many_times(
    workers: int, copies: int, tmp_path: Path
) -> None:
    files, batch = shards(tmp_path, 12, 20), 8
    for worker in range(workers):
        own = 32 // workers * copies
        seen = labels(files, own // batch, worker, workers, batch_size=batch, copies=copies)
        for start in range(0, own, batch):
            assert set(Counter(seen[start : start + batch]).values()) == {copies}
        assert set(Counter(seen).values()) == {copies}, "an epoch of the input has each so often"
        assert len(set(seen)) == 32 // workers


def test_each_time_it_is_augmented_anew_and_after_a_restart_the_same() -> None:
    files = splits.find(str(SMOKE), "train")

    def batches(consumed: int, count: int) -> list[np.ndarray]:
        made = data.training(
            files,
            context(0, 1),
            batch_size=8,
            image_size=16,
            classes=10,
            seed=0,
            consumed=consumed,
            augmentation=Augmentation(brightness=0.5, trivial=True),
            copies=4,
        )
        return [images.numpy() for images, _ in made.take(count)]

    unbroken = batches(0, 6)
    views = {image.tobytes() for images in unbroken for image in images}
    assert len(views) > 40, "of 48, of which TrivialAugment leaves one in fourteen as it is"
    for one, again in zip(unbroken[4:], batches(4 * 8, 2), strict=True):
        np.testing.assert_array_equal(one, again)


def test_copies_are_mixed_with_other_pictures_not_with_each_other(tmp_path: Path) -> None:
    files = shards(tmp_path, 24)
    common = {"batch_size": 6, "image_size": 8, "classes": 24, "seed": 0, "consumed": 0}
    how = mixing.Mixing(mixup=1.0)
    for _, shares in data.training(files, context(0, 1), **common, mix=how, copies=2).take(8):
        assert set((shares.numpy() > 0).sum(-1).tolist()) == {2}, "two classes, so two pictures"
    with pytest.raises(UsageError, match="a batch of 2 pictures or more"):
        data.training(files, context(0, 1), **common, mix=how, copies=6)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    given = ["--records", "r", "--job-dir", "j", "--image-size", "8", "--augment-repeats", "3"]
    with pytest.raises(UsageError, match=r"^--augment-repeats 3: the batch of 32 of a replica"):
        inner.Trainer(tf.distribute.get_strategy(), parse(given, {}), 2, "float32")
