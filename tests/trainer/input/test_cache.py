"""Decoded pictures that are kept: the same batches, from pixels."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainer.input.samples import context, options, photographs
from trainer.input import augment, cache, data, pictures, splits
from trainer.input.parts import Shard

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def empty() -> None:
    """Each test begins without pictures."""
    cache.kept.cache_clear()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shard, ...]:
    """JPEGs of three sizes."""
    folder = photographs(tmp_path_factory.mktemp("records"), (90, 60), (51, 70), (48, 48))
    return splits.find(str(folder), "train")


def batches(shards: tuple[Shard, ...], keep: str, count: int = 12) -> list[Any]:
    """The first batches of the second of two workers, from the middle of an epoch on."""
    how: dict[str, Any] = {"crop": 0.3, "flip": "both", "turn": True, "erase": 0.2}
    config = options(image_size=40, seed=3, cache=keep, **how)
    dataset = data.training(shards, context(1, 2), config, 2, batch_size=4, consumed=16)
    return [(images.numpy(), labels.numpy()) for images, labels in dataset.take(count)]


@pytest.fixture(scope="module")
def expected(shards: tuple[Shard, ...]) -> list[Any]:
    """The batches without a cache."""
    return batches(shards, "none")


def test_kept_pictures_give_the_same_batches_and_each_is_decoded_once(
    shards: tuple[Shard, ...], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    pixels = pictures.pixels

    def counted(content: bytes, *options: Any) -> np.ndarray:
        decoded.append(content)
        return pixels(content, *options)

    monkeypatch.setattr(pictures, "pixels", counted)
    for _ in range(2):  # the second time by another pipeline
        np.testing.assert_equal(batches(shards, "memory"), expected)
    assert len(set(decoded)) <= sum(shard.records for shard in shards) // 2 + 1
    assert len(decoded) - len(set(decoded)) <= 1, "two threads may meet at one picture"


@pytest.mark.parametrize("kind", ["webp", "bmp", "gif", "png"])
def test_a_picture_of_any_format_is_decoded_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to know its size, which the header of a PNG alone tells."""
    file, decoded = io.BytesIO(), []
    Image.effect_noise((20, 30), 60).convert("RGB").save(file, kind)
    pixels = pictures.pixels

    def counted(content: bytes, *options: Any) -> np.ndarray:
        decoded.append(content)
        return pixels(content, *options)

    monkeypatch.setattr(pictures, "pixels", counted)
    decoder = pictures.Decoder(options(image_size=8, crop=0.5), cache.kept().pixels)
    for _ in range(3):
        decoder.batch(tf.constant([file.getvalue()]), tf.fill([1, augment.DRAWS], 0.5))
    assert len(decoded) == 1


def test_what_does_not_fit_is_decoded_each_time(
    shards: tuple[Shard, ...],
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cache, "free", lambda: 100_000)
    np.testing.assert_equal(batches(shards, "memory"), expected)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "{" in line]
    before, full = (event["message"] for event in events if event["event"] == "cache")
    assert before == "--cache memory: keeps up to 0.1 MB of decoded pictures"
    assert full.startswith("--cache memory: is full with ")
    assert 3 <= int(full.split()[5]) <= 11


@pytest.mark.parametrize(
    ("name", "content", "limit"),
    [
        ("memory.max", "1073741824\n", 2**30),
        ("memory.max", "max\n", 2**33),
        ("memory/memory.limit_in_bytes", "536870912\n", 2**29),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", 2**33),
        ("another", "", 2**33),
    ],
)
def test_the_memory_limit(tmp_path: Path, name: str, content: str, limit: int) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / name).write_text(content)
    assert cache.limit(tmp_path, total=2**33) == limit
