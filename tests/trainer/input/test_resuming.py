"""An epoch that was begun goes on in its order, and reads only what is still to come."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.input.samples import context, options
from trainer.input import data, splits
from trainer.input.parts import Repeats, Shard
from trainer.records.tfrecord import frame, serialise

pytestmark = pytest.mark.tensorflow

RECORDS, FILES, CLASSES = 600, 4, 3


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shard, ...]:
    """Pictures of noise of some 20 kB, each another; one in ten is of a rarer class."""
    folder, noise = tmp_path_factory.mktemp("records"), np.random.default_rng(0)
    for file in range(FILES):
        with (folder / f"train-{file}.tfrecord").open("wb") as out:
            for number in range(RECORDS // FILES):
                pixels = noise.integers(0, 256, (80, 80, 3), np.uint8)
                label = 0 if number % 10 else 1 + number % 20 // 10
                out.write(frame(serialise(tf.io.encode_png(pixels).numpy(), label)))
    return splits.find(str(folder), "train")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "WINDOW", 32)


def batches(shards: tuple[Shard, ...], consumed: int, count: int, **how: Any) -> list[bytes]:
    config = options(image_size=8, seed=3, crop=0.5, flip="both")
    given: dict[str, Any] = {"batch_size": 4, **how}
    made = data.training(shards, context(0, 1), config, CLASSES, consumed=consumed, **given)
    return [
        images.numpy().tobytes() + labels.numpy().tobytes() for images, labels in made.take(count)
    ]


def read() -> int:
    """Bytes that this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@pytest.mark.parametrize("balanced", [False, True])
def test_the_order_is_that_of_a_run_that_was_not_interrupted(
    shards: tuple[Shard, ...], balanced: bool
) -> None:
    """The last begins an epoch before its end: of 600 examples, balanced of 1,620."""
    how = {}
    if balanced:
        how["repeats"] = Repeats.balanced(splits.labels(shards, CLASSES), CLASSES)
    positions = (300, 596, 1600 if balanced else 1140)
    unbroken = batches(shards, 0, positions[-1] // 4 + 20, **how)
    for consumed in positions:
        again = batches(shards, consumed, 20, **how)
        assert again == unbroken[consumed // 4 :][:20], consumed


def test_what_was_trained_on_is_not_read_again(shards: tuple[Shard, ...]) -> None:
    size, rest = sum(shard.bytes for shard in shards), 40
    before = read()
    assert len(batches(shards, RECORDS - rest, rest // 4)) == rest // 4
    ahead = size * 3 * data.WINDOW / RECORDS  # with which the next epoch begins
    assert read() - before < size * rest / RECORDS + ahead + FILES * (1 << 19)
