"""Each example once an epoch, for any files and workers, in an order that a restart resumes."""

import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tests.trainer.input.samples import (  # noqa: E402
    context,
    labels,
    made,
    photographs,
    shards,
)
from trainer.config import UsageError  # noqa: E402
from trainer.input import augment, data, decoding, splits  # noqa: E402
from trainer.input.parts import Shard  # noqa: E402
from trainer.records import command  # noqa: E402


def test_the_order_changes_with_epoch_and_seed_and_with_nothing_else(tmp_path: Path) -> None:
    files = shards(tmp_path, 40, 40)
    twice = labels(files, 160)
    assert twice[:80] != twice[80:]
    assert twice == labels(files, 160)
    assert labels(files, 80, seed=1) != twice[:80]
    assert twice[:80] != list(range(80))


@settings(max_examples=10, deadline=None)  # Each builds pipelines for every worker; that is slow.
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=10).filter(lambda sizes: sum(sizes) > 5),
    st.integers(1, 6),
    st.integers(0, 2**31),
    st.data(),
)
def test_the_pipeline_misses_no_record_and_sees_none_twice(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    workers: int,
    seed: int,
    choose: st.DataObject,
) -> None:
    files = shards(tmp_path_factory.mktemp("records"), *sizes)
    epochs: tuple[list[int], list[int]] = ([], [])
    for worker in range(workers):
        own = sum(piece.count for piece in data.part(files, worker, workers))
        unbroken = labels(files, 2 * own, worker, workers, seed=seed)
        killed = choose.draw(st.integers(0, 2 * own - 1))
        options = {"seed": seed, "consumed": killed * workers}
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
        batches = list(data.evaluation(files, place, batch_size=batch, image_size=8, classes=99))
        assert len(batches) == replicas * data.evaluation_batches(files, place, batch)
        for images, numbers, weights in batches:
            assert images.shape == (batch, 8, 8, 3)
            seen += [int(n) for n, weight in zip(numbers, weights, strict=True) if weight]
    assert sorted(seen) == list(range(10))


def test_more_workers_than_records_are_refused(tmp_path: Path) -> None:
    files = shards(tmp_path, 2)
    with pytest.raises(UsageError, match="2 training records are too few"):
        labels(files, 1, worker=0, workers=3)


def test_what_the_records_tool_writes_is_trained_and_evaluated_on(tmp_path: Path) -> None:
    out = made(tmp_path)
    for split in ("train", "validation"):
        files = splits.find(str(out), split)
        common = {"batch_size": 4, "image_size": 16, "classes": 2}
        if split == "train":
            batches = data.training(files, context(0, 1), seed=0, consumed=0, **common).take(9)
        else:
            batches = data.evaluation(files, context(0, 1), **common)
        for images, numbers, *_ in batches:
            assert images.shape == (4, 16, 16, 3)
            assert images.dtype == tf.uint8
            for image, number in zip(images.numpy(), numbers.numpy(), strict=True):
                assert image[:, :4].min() > 230
                assert image[8, 12, 0 if number else 2] > 200
                assert image[8, 12, 1] < 60


def pictures(files: tuple[Shard, ...], count: int, size: int, **options: Any) -> list[np.ndarray]:
    """The first `count` batches of 8."""
    dataset = data.training(
        files,
        context(0, 1),
        **{"batch_size": 8, "image_size": size, "classes": 2, "seed": 5, "consumed": 0, **options},
    )
    return [images.numpy() for images, _ in dataset.take(count)]


@pytest.mark.parametrize(
    ("options", "known"), [((), (50, 60, 90)), (("--resize", "48", "--square"), (48, 48, 48))]
)
@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize(
    "how",
    [
        augment.NONE,
        augment.Augmentation(crop=0.3, flip="both", turn=True),
        augment.Augmentation(cut=48, erase=0.1, hue=0.1),
        augment.Augmentation(cut=55, flip="horizontal"),
    ],
)
def test_what_is_known_of_the_files_makes_it_faster_and_changes_no_picture(
    tmp_path: Path,
    options: tuple[str, ...],
    known: tuple[int, int, int],
    size: int,
    how: augment.Augmentation,
) -> None:
    """JPEGs of 90 x 60 and 50 x 70, which are decoded at a half for 16 pixels; squares of 48 need
    no resize for 48."""
    source = photographs(tmp_path / "in", (90, 60), (50, 70))
    assert command.main([str(source), str(tmp_path / "out"), "--workers", "1", *options]) == 0
    files = splits.find(str(tmp_path / "out"), "train")
    assert [shard.jpeg for shard in files] == [known] * len(files)
    others = tuple(replace(shard, jpeg=(0, 0, 0)) for shard in files)  # without dataset.json
    for picture, other in zip(
        pictures(files, 9, size, augmentation=how),
        pictures(others, 9, size, augmentation=how),
        strict=True,
    ):
        np.testing.assert_array_equal(picture, other)


def test_a_cut_is_a_piece_of_the_picture_as_it_is_stored(tmp_path: Path) -> None:
    """The pictures become brighter from left to right, by 4 a pixel, which shows each cut's
    place."""
    for kind in ("one", "other"):
        (tmp_path / "in" / kind).mkdir(parents=True)
        ramp = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8) * 4, (40, 1)))
        for number in range(40):
            ramp.save(tmp_path / "in" / kind / f"{number}.jpg", quality=100)
    assert command.main([*map(str, (tmp_path / "in", tmp_path / "out"))]) == 0
    files = splits.find(str(tmp_path / "out"), "train")
    how = augment.Augmentation(cut=24, flip="horizontal")
    ramps = np.concatenate(pictures(files, 5, 24, augmentation=how))[:, 3, :, 0].astype(int)
    steps = (ramps[:, -1] - ramps[:, 0]) / 23
    np.testing.assert_allclose(abs(steps), 4, atol=0.1)  # Not resized,
    assert min(steps) < 0 < max(steps)  # flipped,
    assert len({min(row) // 4 for row in ramps.tolist()}) > 8  # and elsewhere each time.


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_a_crop_is_what_cutting_it_from_the_whole_picture_gives(subsampling: str) -> None:
    """libjpeg-turbo has separate code for crops of subsampled pictures."""
    buffer = io.BytesIO()
    noise = [Image.effect_noise((141, 97), 60 + channel) for channel in range(3)]
    Image.merge("RGB", noise).save(buffer, "jpeg", quality=90, subsampling=subsampling)
    encoded = tf.constant(buffer.getvalue())
    whole = tf.io.decode_jpeg(encoded, 3).numpy()
    chance = random.Random(0)
    for _ in range(60):
        height, width = chance.randint(1, 97), chance.randint(1, 141)
        top, left = chance.randint(0, 97 - height), chance.randint(0, 141 - width)
        seen = tf.constant([top, left, height, width])
        ours = decoding.jpeg(encoded, seen, 200, 97, whole=False).numpy()
        theirs = whole[top : top + height, left : left + width]
        # At the edge there is no neighbour from which to interpolate the colours.
        edge = 0 if subsampling == "4:4:4" else 1
        inside = (slice(edge, height - edge), slice(edge, width - edge))
        np.testing.assert_array_equal(ours[inside], theirs[inside])


def test_augmentation_is_another_in_each_epoch_and_the_same_after_a_restart(
    tmp_path: Path,
) -> None:
    files = splits.find(str(made(tmp_path)), "train")
    own = sum(shard.records for shard in files)
    how = augment.Augmentation(
        crop=0.3,
        flip="both",
        turn=True,
        brightness=0.3,
        contrast=0.3,
        saturation=0.3,
        hue=0.1,
        erase=0.2,
    )

    def pictures(consumed: int, count: int) -> list[tuple[bytes, int]]:
        dataset = data.training(
            files,
            context(0, 1),
            batch_size=1,
            image_size=16,
            classes=2,
            seed=3,
            consumed=consumed,
            augmentation=how,
        )
        return [(i.numpy().tobytes(), int(n[0])) for i, n in dataset.take(count)]

    unbroken = pictures(0, 2 * own)
    assert len({image for image, _ in unbroken}) > 1.9 * own
    assert pictures(own - 5, 10) == unbroken[own - 5 : own + 5]


@pytest.mark.parametrize(
    ("how", "check"),
    [
        (
            {"flip": "horizontal"},
            lambda image: image[:, :4].min() > 230 or image[:, -4:].min() > 230,
        ),
        ({"turn": True}, lambda image: image[6:10].max() > 230),
        ({"brightness": 0.5}, lambda image: image[8, 2].min() > 100),
        ({"erase": 0.3}, lambda image: True),
    ],
)
def test_each_augmentation_does_what_it_says(tmp_path: Path, how: dict, check) -> None:
    files = splits.find(str(made(tmp_path)), "train")
    common = {"batch_size": 1, "image_size": 16, "classes": 2, "seed": 0, "consumed": 0}
    seen = set()
    augmentation = augment.Augmentation(**how)
    for images, _ in data.training(files, context(0, 1), augmentation=augmentation, **common).take(
        40
    ):
        image = images.numpy()[0]
        assert check(image)
        seen.add(image.tobytes())
    assert len(seen) > 2  # Two classes, without it.


def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same() -> None:
    image = Image.radial_gradient("L").resize((640, 480)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", quality=95)
    for side in (16, 64, 200, 400):
        ours = decoding.decode(tf.constant(buffer.getvalue()), side).numpy().astype(int)
        whole = tf.io.decode_jpeg(buffer.getvalue(), 3)
        theirs = tf.image.resize(whole, (side, side), antialias=True).numpy()
        assert abs(ours - theirs).mean() < 2


def test_pictures_of_any_format_and_colour_decode_to_one_shape() -> None:
    for kind, options in (
        ("jpeg", {}),
        ("png", {}),
        ("gif", {}),
        ("bmp", {}),
        ("webp", {"lossless": True}),
    ):
        buffer = io.BytesIO()
        Image.new("L", (27, 12), 95).convert("L" if kind != "webp" else "RGB").save(
            buffer, kind, **options
        )
        image = decoding.decode(tf.constant(buffer.getvalue()), 16)
        assert image.shape == (16, 16, 3)
        assert int(tf.reduce_min(image)) == int(tf.reduce_max(image)) == 95


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_evaluation_can_see_the_central_square(kind: str) -> None:
    grey = np.add.outer(np.arange(20) * 4, np.arange(40) * 4).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.stack([grey] * 3, axis=-1)).save(file, kind, quality=100, subsampling=0)
    seen = decoding.decode(tf.constant(file.getvalue()), 10, 0.5).numpy()
    np.testing.assert_allclose(seen[..., 0].astype(int), grey[5:15, 15:25], atol=4)
    whole = decoding.decode(tf.constant(file.getvalue()), 20, 1.0).numpy()
    np.testing.assert_allclose(whole[..., 0].astype(int), grey[:, 10:30], atol=4)
