"""Each example once an epoch, for any files and workers, in an order that a restart resumes."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.utils.class_weight import compute_class_weight

from tests.trainer.input.samples import context, labels, made, options, photographs, shards
from trainer.config import Config, UsageError
from trainer.input import data, decoding, device, mixing, parts, splits
from trainer.input.parts import Shard
from trainer.records import command, tfrecord

pytestmark = pytest.mark.tensorflow


def test_the_order_changes_with_epoch_and_seed_and_with_nothing_else(tmp_path: Path) -> None:
    files = shards(tmp_path, 40, 40)
    twice = labels(files, 160)
    assert twice[:80] != twice[80:]
    assert twice == labels(files, 160)
    assert labels(files, 80, seed=1) != twice[:80]
    assert twice[:80] != list(range(80))


@pytest.mark.parametrize(("sizes", "workers", "killed"), [((3, 0, 5, 1), 2, 4), ((9, 2), 1, 12)])
def test_the_pipeline_misses_no_record_and_sees_none_twice(
    tmp_path: Path, sizes: tuple[int, ...], workers: int, killed: int
) -> None:
    """Two epochs on each worker, and again from where each was killed."""
    files = shards(tmp_path, *sizes)
    epochs: tuple[list[int], list[int]] = ([], [])
    for worker in range(workers):
        own = sum(piece.count for piece in data.part(files, worker, workers))
        unbroken = labels(files, 2 * own, worker, workers, seed=5)
        options = {"seed": 5, "consumed": killed * workers}
        assert labels(files, 2 * own - killed, worker, workers, **options) == unbroken[killed:]
        epochs[0].extend(unbroken[:own])
        epochs[1].extend(unbroken[own:])
    for epoch in epochs:
        assert sorted(epoch) == list(range(sum(sizes)))


@pytest.mark.parametrize(("workers", "replicas", "batch"), [(1, 1, 8), (3, 1, 4), (2, 2, 3)])
def test_each_record_is_evaluated_once_and_every_replica_has_the_same_number_of_batches(
    tmp_path: Path, workers: int, replicas: int, batch: int
) -> None:
    files = shards(tmp_path, 7, 3, split="validation")
    seen: list[int] = []
    for worker in range(workers):
        place = context(worker, workers, replicas)
        batches = list(data.evaluation(files, place, options(image_size=8), 99, batch))
        assert len(batches) == replicas * data.evaluation_batches(files, place, batch)
        for images, numbers, weights in batches:
            assert images.shape == (batch, 8, 8, 3)
            seen += [int(n) for n, weight in zip(numbers, weights, strict=True) if weight]
    assert sorted(seen) == list(range(10))


def test_more_workers_than_records_are_refused(tmp_path: Path) -> None:
    files = shards(tmp_path, 2)
    with pytest.raises(UsageError, match="2 training records are too few"):
        labels(files, 1, worker=0, workers=3)


def pictures(
    files: tuple[Shard, ...], count: int, config: Config, consumed: int = 0, batch: int = 8
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first batches and their labels."""
    dataset = data.training(files, context(0, 1), config, 2, batch_size=batch, consumed=consumed)
    return [(images.numpy(), numbers.numpy()) for images, numbers in dataset.take(count)]


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Shard, ...]]:
    """By their encoding, the records of 48 pictures of noise, of 90 x 60 and 50 x 70."""
    sizes = (90, 60), (50, 70)
    return {
        kind: splits.find(
            str(photographs(tmp_path_factory.mktemp(kind), *sizes, encoding=kind)), "train"
        )
        for kind in ("jpeg", "png")
    }


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shard, ...]:
    """The records of pictures that are blue or red, and white in their left half."""
    return splits.find(str(made(tmp_path_factory.mktemp("halves"))), "train")


@pytest.mark.parametrize(
    ("encoding", "size", "how"),
    [
        ("jpeg", 16, {}),
        ("jpeg", 16, {"crop": 0.3, "turn": True}),
        ("jpeg", 16, {"cut": True}),
        ("jpeg", 48, {"cut": True}),
        ("png", 16, {"crop": 0.3, "turn": True}),
    ],
)
def test_tensorflow_alone_makes_the_same_pictures(
    noise: dict[str, tuple[Shard, ...]], encoding: str, size: int, how: dict[str, Any]
) -> None:
    """JPEGs are decoded at a half for 16 pixels, and nothing else is."""
    files = noise[encoding]
    config = options(image_size=size, flip="both", **how)
    common: dict[str, Any] = {"batch_size": 8, "consumed": 0, "graph": True}
    theirs = data.training(files, context(0, 1), config, 2, **common)
    for (images, numbers), batch in zip(pictures(files, 7, config), theirs, strict=False):
        others, same = device.augmented(*batch, config, 2)
        np.testing.assert_array_equal(numbers, same)
        far = abs(images.astype(int) - others.numpy()) > 2
        if how:  # A crop that TensorFlow decodes alone lacks the neighbours' colours at its edge.
            assert far[:, 2:-2, 2:-2].mean() < 1e-3
        else:
            assert not far.any()


def test_a_cut_is_a_piece_of_the_picture_as_it_is_stored(tmp_path: Path) -> None:
    """The pictures become brighter from left to right, by 4 a pixel, which shows each cut's
    place."""
    for kind in ("one", "other"):
        (tmp_path / "in" / kind).mkdir(parents=True)
        ramp = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8) * 4, (40, 1)))
        for number in range(40):
            ramp.save(tmp_path / "in" / kind / f"{number}.jpg", quality=100)
    assert command.main([*map(str, (tmp_path / "in", tmp_path / "out")), "--workers", "1"]) == 0
    files = splits.find(str(tmp_path / "out"), "train")
    config = options(image_size=24, cut=True, flip="horizontal")
    ramps = np.concatenate([images for images, _ in pictures(files, 5, config)])
    ramps = ramps[:, 3, :, 0].astype(int)
    steps = (ramps[:, -1] - ramps[:, 0]) / 23
    # Not resized: TensorFlow's fast decoder is off by 3 levels where a block begins.
    np.testing.assert_allclose(abs(steps), 4, atol=3.5 / 23)
    assert min(steps) < 0 < max(steps)  # Flipped,
    assert len({min(row) // 4 for row in ramps.tolist()}) > 8  # and elsewhere each time.


def test_augmentation_is_another_in_each_epoch_and_the_same_after_a_restart(
    halves: tuple[Shard, ...],
) -> None:
    own = sum(shard.records for shard in halves)
    how: dict[str, Any] = {"crop": 0.3, "flip": "both", "turn": True, "erase": 0.2}
    config = options(seed=3, color_jitter=(0.3, 0.3, 0.3, 0.1), **how)

    def seen(consumed: int, count: int) -> list[tuple[bytes, int]]:
        [(images, numbers)] = pictures(halves, 1, config, consumed, batch=count)
        return [(one.tobytes(), number) for one, number in zip(images, numbers, strict=True)]

    unbroken = seen(0, 2 * own)
    assert len({image for image, _ in unbroken}) > 1.9 * own
    assert seen(own - 5, 10) == unbroken[own - 5 : own + 5]


@pytest.mark.parametrize(
    ("how", "check"),
    [
        (
            {"flip": "horizontal"},
            lambda image: image[:, :4].min() > 230 or image[:, -4:].min() > 230,
        ),
        ({"turn": True}, lambda image: image[6:10].max() > 230),
        ({"color_jitter": (0.5, 0.0, 0.0, 0.0)}, lambda image: image[8, 2].min() > 100),
        ({"erase": 0.3}, lambda image: True),
    ],
)
def test_each_augmentation_does_what_it_says(halves: tuple[Shard, ...], how: dict, check) -> None:
    seen = set()
    [(images, _)] = pictures(halves, 1, options(**how), batch=40)
    for image in images:
        assert check(image)
        seen.add(image.tobytes())
    assert len(seen) > 2  # Two classes, without it.


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_evaluation_can_see_the_central_square(kind: str) -> None:
    grey = np.add.outer(np.arange(20) * 4, np.arange(40) * 4).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.stack([grey] * 3, axis=-1)).save(file, kind, quality=100, subsampling=0)
    seen = decoding.decode(tf.constant(file.getvalue()), 10, decoding.centre(0.5)).numpy()
    np.testing.assert_allclose(seen[..., 0].astype(int), grey[5:15, 15:25], atol=4)
    whole = decoding.decode(tf.constant(file.getvalue()), 20, decoding.centre(1.0)).numpy()
    np.testing.assert_allclose(whole[..., 0].astype(int), grey[:, 10:30], atol=4)


# Classes of unequal size


def grey(value: int) -> bytes:
    """A PNG file of 8 x 8 pixels."""
    content: bytes = tf.io.encode_png(np.full((8, 8, 3), value, np.uint8)).numpy()
    return content


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty grey squares in two files: 45 of class 0, 12 of class 1, 3 of class 2; each another."""
    labels, folder = [0] * 45 + [1] * 12 + [2] * 3, tmp_path_factory.mktemp("records")
    order = np.random.default_rng(0).permutation(60)
    for number, part in enumerate((order[:25], order[25:])):
        content = b"".join(
            tfrecord.frame(tfrecord.serialise(grey(value), labels[value]))
            for value in part.tolist()
        )
        (folder / f"train-{number:05d}.tfrecord").write_bytes(content)
    return folder


def read(records: Path, consumed: int, count: int, worker: int = 0, workers: int = 1) -> list:
    shards = splits.find(str(records), "train")
    repeats = parts.Repeats.balanced(splits.labels(shards, 3), 3)
    config, place = options(image_size=8, seed=5), context(worker, workers)
    given: dict[str, Any] = {"batch_size": count, "consumed": consumed, "repeats": repeats}
    images, numbers = next(iter(data.training(shards, place, config, 3, **given)))
    return [*zip(images[:, 0, 0, 0].numpy().tolist(), numbers.numpy().tolist(), strict=True)]


def test_weights_are_those_of_scikit_learn() -> None:
    labels = np.array([0] * 45 + [1] * 12 + [3] * 3)
    counted = parts.counts({"a": labels[:20], "b": labels[20:]}, 4)
    assert counted.tolist() == [45, 12, 0, 3]
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
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


def test_a_restart_of_several_workers_goes_on_in_the_same_order(records: Path) -> None:
    whole = read(records, 0, 200, worker=1, workers=2)
    assert read(records, 2 * 130, 70, worker=1, workers=2) == whole[130:]


# Mixup and cutmix, against what their papers say


def batches(files: tuple[Shard, ...], count: int, consumed: int = 0, **how: Any) -> list:
    return pictures(files, count, options(seed=3, **how), consumed)


@pytest.fixture(scope="module")
def plain(halves: tuple[Shard, ...]) -> list:
    """The first batches that nothing mixes."""
    return batches(halves, 12)


def test_mixup_blends_each_picture_with_the_one_before_it_and_their_labels_alike(
    halves: tuple[Shard, ...], plain: list
) -> None:
    found = batches(halves, 6, mixup=1.0)
    shares = set()
    for (images, numbers), (mixed, soft) in zip(plain, found, strict=False):
        own, other = np.eye(2)[numbers], np.eye(2)[np.roll(numbers, 1)]
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


def test_mixtures_are_the_same_after_a_restart_and_both_ways_are_used(
    halves: tuple[Shard, ...], plain: list
) -> None:
    how = {"mixup": 0.2, "cutmix": 1.0}
    unbroken = batches(halves, 12, **how)
    resumed = batches(halves, 4, 8 * 8, **how)
    for (images, numbers), (again, soft) in zip(unbroken[8:], resumed, strict=True):
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(numbers, soft)
    cut = [
        all(((m == i) | (m == np.roll(i, 1, 0))).ravel())
        for (m, _), (i, _) in zip(unbroken, plain, strict=True)
    ]
    assert any(cut)
    assert not all(cut)


def test_a_batch_of_one_picture_is_refused(halves: tuple[Shard, ...]) -> None:
    with pytest.raises(UsageError, match=r"^--mixup and --cutmix: each replica needs a batch"):
        data.training(halves, context(0, 1), options(mixup=1.0), 2, batch_size=1, consumed=0)
