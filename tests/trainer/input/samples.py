"""Records for tests to read."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from PIL import Image

from trainer.config import Config, parse
from trainer.input import data, splits
from trainer.input.parts import Shard
from trainer.records import command
from trainer.records.tfrecord import serialise

_file = io.BytesIO()
Image.new("L", (8, 8)).save(_file, "png")
PIXEL = _file.getvalue()


def shards(folder: Path, *sizes: int, split: str = "train") -> tuple[Shard, ...]:
    """Files with these numbers of records; the labels count all records from 0."""
    label = 0
    for number, size in enumerate(sizes):
        with tf.io.TFRecordWriter(str(folder / f"{split}-{number:05d}.tfrecord")) as writer:
            for _ in range(size):
                writer.write(serialise(PIXEL, label))
                label += 1
    return splits.find(str(folder), split)


def filled(folder: Path, **colours: str) -> Path:
    """Class folders of 40 pictures of 60 x 40, with the left half white and the right half in a
    colour."""
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(40):
            image = Image.new("RGB", (60, 40), colour)
            image.paste("white", (0, 0, 30, 40))
            image.save(folder / name / f"{number}.jpg", quality=95)
    return folder


def photographs(folder: Path, *sizes: tuple[int, int], encoding: str = "jpeg") -> Path:
    """The folder of records of two classes of noise, which has no two parts alike."""
    for kind in ("one", "other"):
        (folder / "in" / kind).mkdir(parents=True)
        for number in range(24):
            image = Image.effect_noise(sizes[number % len(sizes)], 60)
            other = Image.radial_gradient("L").resize(image.size)
            Image.merge("RGB", (image, other, image.transpose(0))).save(
                folder / "in" / kind / f"{number}.jpg", quality=90
            )
    given = ("--workers", "1", "--encoding", encoding)
    assert command.main([str(folder / "in"), str(folder / "out"), *given]) == 0
    return folder / "out"


def made(tmp_path: Path, *options: str) -> Path:
    pictures = filled(tmp_path / "pictures", blue="blue", red="red")
    assert command.main([str(pictures), str(tmp_path / "out"), "--workers", "1", *options]) == 0
    return tmp_path / "out"


def context(worker: int, workers: int, replicas: int = 1) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(workers, worker, workers * replicas)


def options(**chosen: Any) -> Config:
    """The options of a run on pictures of 16 pixels."""
    return replace(parse(("--records", "r", "--job-dir", "j", "--image-size", "16"), {}), **chosen)


def labels(
    files: tuple[Shard, ...],
    count: int,
    worker: int = 0,
    workers: int = 1,
    seed: int = 0,
    consumed: int = 0,
) -> list[int]:
    """The first `count` labels that a worker trains on."""
    config, place = options(image_size=8, seed=seed), context(worker, workers)
    dataset = data.training(files, place, config, 10**6, batch_size=count, consumed=consumed)
    found: list[int] = next(iter(dataset))[1].numpy().tolist()
    return found
