"""Decoded pictures that are kept: the same batches, from pixels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tests.trainer.input.samples import context  # noqa: E402
from trainer.config import UsageError  # noqa: E402
from trainer.input import augment, cache, data, decoding, splits  # noqa: E402
from trainer.input.parts import Shard  # noqa: E402
from trainer.job import memory  # noqa: E402
from trainer.records import command  # noqa: E402


def records(folder: Path, *options: str, files: int = 5) -> Path:
    """Records of 30 JPEGs of three sizes and two classes, in files of `files`."""
    chance = np.random.default_rng(0)
    for number in range(30):
        path = folder / "in" / ("one" if number % 3 else "other") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = ((90, 60), (51, 70), (48, 48))[number % 3]
        coarse = Image.fromarray(chance.integers(0, 256, (9, 9, 3), np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
    given = ("--workers", "1", "--shard-size", str(files), *options)
    assert command.main([str(folder / "in"), str(folder / "out"), *given]) == 0
    return folder / "out"


def batches(shards: tuple[Shard, ...], count: int, keep: str, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"batch_size": 4, "image_size": 40, "classes": 2, "seed": 3}
    worker, workers = options.pop("place", (0, 1))
    dataset = data.training(
        shards, context(worker, workers), **{**given, "consumed": 0, "keep": keep, **options}
    )
    return [(images.numpy(), labels.numpy()) for images, labels in dataset.take(count)]


@pytest.mark.parametrize(
    "how",
    [
        augment.NONE,
        augment.Augmentation(crop=0.3, flip="both", turn=True),
        augment.Augmentation(cut=40, flip="horizontal"),
        augment.Augmentation(crop=0.5, erase=0.2, brightness=0.3),
    ],
)
def test_kept_pictures_give_the_same_batches_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: augment.Augmentation
) -> None:
    """The second of two workers, from the middle of an epoch into the next but one. libjpeg-turbo
    makes the colours at the edge of a crop a little different (tests/trainer/input/test_data.py),
    so here all crops are cut from whole pictures."""

    def cut(encoded: Any, seen: Any, channels: int, ratio: int) -> Any:
        image = tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio)
        return decoding.part(image, seen)

    monkeypatch.setattr(tf.image, "decode_and_crop_jpeg", cut)
    shards = splits.find(str(records(tmp_path, files=2)), "train")  # more than are read at once
    options: dict[str, Any] = {"augmentation": how, "consumed": 16, "place": (1, 2)}
    decoded = batches(shards, 8, cache.NONE, **options)
    for keep in (cache.MEMORY, str(tmp_path)):
        np.testing.assert_equal(batches(shards, 8, keep, **options), decoded)


def test_no_jpeg_is_read_after_the_first_batch(tmp_path: Path) -> None:
    """The records are gone, and a second pipeline of this process still has the pictures."""
    shards = splits.find(str(records(tmp_path)), "train")
    first = batches(shards, 20, cache.MEMORY)
    for shard in shards:
        Path(shard.path).unlink()
    np.testing.assert_equal(batches(shards, 20, cache.MEMORY), first)


def test_the_bytes_are_told_before_and_the_file_has_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = splits.find(str(records(tmp_path, "--validation", "0.2")), "train")
    (tmp_path / "disk").mkdir()
    batches(shards, 1, str(tmp_path / "disk"))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "{" in line]
    before, after = (line for line in told if line["event"] == "cache")
    raw = [(90, 60), (51, 70), (48, 48)]
    least = 6 * 3 * min(w * h for w, h in raw)
    assert least < before["bytes"] < 30 * 3 * 90 * 64
    assert f"take {before['bytes'] / 1e6:,.1f} MB of " in before["message"]
    assert "decoded in" in after["message"]
    assert not list((tmp_path / "disk").iterdir())


def test_pictures_that_do_not_fit_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = splits.find(str(records(tmp_path)), "train")
    monkeypatch.setattr(cache, "_images", None)
    monkeypatch.setattr(memory, "free", lambda: 300_000)
    text = r"--cache memory: 27 decoded pictures take 0\.\d MB, at most 80% of the 0\.3 MB that are"
    with pytest.raises(UsageError, match=text):
        batches(shards, 1, cache.MEMORY)


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ("gs://bucket/cache", "is not a folder on a local disk"),
        ("/nonexistent/folder", "No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, keep: str, text: str) -> None:
    shards = splits.find(str(records(tmp_path)), "train")
    with pytest.raises(UsageError, match=f"--cache {keep}: {text}"):
        batches(shards, 1, keep)


@pytest.mark.parametrize(
    ("options", "size", "text"),
    [
        (("--encoding", "png"), 40, "takes records of JPEGs"),
        ((), 30, "shorter side of 60 are decoded at a half for --image-size 30: make smaller"),
    ],
)
def test_records_whose_pixels_would_not_be_the_same_are_refused(
    tmp_path: Path, options: tuple[str, ...], size: int, text: str
) -> None:
    shards = splits.find(str(records(tmp_path, *options)), "train")
    with pytest.raises(UsageError, match=f"--cache memory: .*{text}"):
        batches(shards, 1, cache.MEMORY, image_size=size)
