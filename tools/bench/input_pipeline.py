"""Processor time of the input pipeline, beside others on the same pictures and one core.

    python -m tools.bench input_pipeline

The pictures are photographs that come with scikit-learn and scikit-image, cut into 768 JPEG files
of 500 x 375 pixels. Every pipeline gives batches of 64 pictures, and nothing trains on them.

* ours: `python -m trainer.records --resize 256` once, then the training pipeline with a random crop
  of at least 35 % of the area and flips, 224 x 224 out. The variants: squares (`--resize 256
  --square`), cut (a random square of 224 x 224, not resized), kept (with `--cache memory`, once it
  has decoded all), changed (with `--rand-augment 2`; on a device: the host's share, where a GPU
  changes the colours), and squares of 224 as they are, the same work as the usual TFRecords.
* Keras: image_dataset_from_directory on the folder of files, with a prefetch.
* usual TFRecords, as a well-known blog post shows them: JPEGs of 224 x 224, quality 95, augmented
  when they were written; parallel reads, a map for each record, a prefetch, uint8 out. The shuffle
  buffer is 10 batches instead of 100, which makes this pipeline a little faster.
* tf.data by hand: our records, the same work, as the ImageNet recipes of TensorFlow's model garden
  write it: sample_distorted_bounding_box, decode_and_crop_jpeg, resize, random_flip_left_right. The
  shuffle buffer has 10 batches.
* libjpeg-turbo alone (in simplejpeg): decodes what our records hold, in memory.

The program keeps to one core. All take turns; a turn makes a new pipeline, warms it up, and counts
the processor time of all threads. The table has the least of the turns, which other programs
disturb least. On a loaded machine there is no verdict.
"""

from __future__ import annotations

import io
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench import Row, load, report

FILES, SIZE, BATCH, ROUNDS, SECONDS, WARM = 768, 224, 64, 5, 1.0, 14
CROP = 0.35
LOADED = 0.5
"""No verdict where more processes a core wanted to run in the minute before."""
VERSIONS = ("tensorflow-cpu", "simplejpeg", "cykooz-resizer")
Pictures = Generator[int, None, None]
"""Yields the number of pictures in each batch."""
KERAS, USUAL, BY_HAND = "Keras", "usual TFRecords", "tf.data by hand"
TURBO, TURBO_SQUARES = "libjpeg-turbo for ours", "libjpeg-turbo for squares"
COMPARED: dict[str, dict[str, float | None]] = {
    "ours": {TURBO: 0.65, KERAS: None, USUAL: None, BY_HAND: None},
    "ours, squares": {TURBO: None, TURBO_SQUARES: None, USUAL: None},
    "ours, cut": {TURBO: None, USUAL: None},
    "ours, kept": {TURBO: None, USUAL: None},
    "ours, changed": {TURBO: None, USUAL: None},
    "ours, changed on a device": {TURBO: None, USUAL: None},
    "ours, squares as they are": {TURBO_SQUARES: None, USUAL: None},
}
"""Our variants, those that each is compared with, and how many times as fast it has to be: see
docs/decisions/0011-no-second-resizer.md."""


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    busy, loaded = load(), os.getloadavg()[0] > LOADED * (os.cpu_count() or 1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="input-", dir="/var/tmp") as folder:
        used = measure(Path(folder))
    how = f"least of {ROUNDS} turns of {SECONDS} s on one core; processor time of 1,000 images"
    rows = [
        Row(ours, 1000 * used[ours], 1000 * used[theirs], theirs, how,
            bar=None if loaded or faster is None else 1 / faster)
        for ours, compared in COMPARED.items()
        for theirs, faster in compared.items()
    ]  # fmt: skip
    facts = {
        "us of processor time an image": ", ".join(
            f"{name} {1e6 * seconds:,.0f}" for name, seconds in used.items()
        ),
        "times as fast": ", ".join(f"{row.what} / {row.theirs_is} {1 / row.ratio:.2f}"
                                   for row in rows if row.ratio),
        "load before": busy + ("; the machine is loaded: no verdict" if loaded else ""),
        **{name: _version(name) for name in VERSIONS},
    }  # fmt: skip
    report("input_pipeline", rows, facts, processor_seconds=used)
    return 0


def measure(folder: Path) -> dict[str, float]:
    """Processor seconds an image of each."""
    files = folder / "files"
    photographs(files)
    resized = records(files, folder / "resized", "--resize", "256")
    squares = records(files, folder / "squares", "--resize", "256", "--square")
    small = records(files, folder / "small", "--resize", str(SIZE), "--square")
    write_usual(files, folder / "usual")

    crop = ("--crop", str(CROP), "--flip", "horizontal")
    cut = ("--cut", "--flip", "horizontal")
    changed = (*crop, "--rand-augment", "2")
    contestants: dict[str, Callable[[], Pictures]] = {
        "ours": lambda: ours(resized, *crop),
        "ours, squares": lambda: ours(squares, *crop),
        "ours, cut": lambda: ours(resized, *cut),
        "ours, kept": lambda: ours(resized, *crop, "--cache", "memory"),
        "ours, changed": lambda: ours(resized, *changed),
        "ours, changed on a device": lambda: ours(resized, *changed, on_device=True),
        "ours, squares as they are": lambda: ours(small),
        KERAS: lambda: keras(files),
        USUAL: lambda: usual(folder / "usual"),
        BY_HAND: lambda: by_hand(resized),
        TURBO: partial(turbo, held(resized)),
        TURBO_SQUARES: partial(turbo, held(small)),
    }
    turns: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, start in contestants.items():
            turns[name].append(processor_time(start()))
    return {name: min(seconds) for name, seconds in turns.items()}


def processor_time(images: Pictures) -> float:
    """The processor seconds an image, over SECONDS of them or more."""
    with closing(images):
        for _ in range(WARM):
            next(images)
        count, began = 0, time.process_time()
        while (used := time.process_time() - began) < SECONDS:
            count += next(images)
        return used / count


def ours(folder: Path, *options: str, on_device: bool = False) -> Pictures:
    """The trainer's own input over records, with these options."""
    import tensorflow as tf

    from trainer.config import parse
    from trainer.input import data, splits

    given = ("--records", str(folder), "--job-dir", "-", "--image-size", str(SIZE), *options)
    dataset = data.training(
        splits.find(str(folder), "train"),
        tf.distribute.InputContext(1, 0, 1),
        parse(given, {}),
        2,
        batch_size=BATCH,
        consumed=0,
        on_device=on_device,
    )
    for _, labels in dataset:
        yield len(labels)


def keras(files: Path) -> Pictures:
    """Keras' pipeline over a folder of files."""
    import keras as k
    import tensorflow as tf

    dataset = k.utils.image_dataset_from_directory(
        str(files), image_size=(SIZE, SIZE), batch_size=BATCH, verbose=False
    )
    for images, _ in dataset.repeat().prefetch(tf.data.AUTOTUNE):
        yield len(images)


def write_usual(files: Path, out: Path) -> None:
    """Write the usual TFRecords: 128 JPEGs of 224 x 224 a file, quality 95, 4:4:4."""
    import tensorflow as tf

    out.mkdir()
    paths = sorted(files.rglob("*.jpg"))
    for start in range(0, len(paths), 128):
        with tf.io.TFRecordWriter(str(out / f"{start:05d}.tfrec")) as writer:
            for number, path in enumerate(paths[start : start + 128]):
                image = tf.io.decode_jpeg(path.read_bytes(), 3)
                image = tf.image.resize(image, (SIZE, SIZE))
                image = tf.image.flip_left_right(image) if number % 2 else image
                encoded = tf.io.encode_jpeg(
                    tf.cast(image, tf.uint8), quality=95, chroma_downsampling=False
                )
                feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded.numpy()]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2]))
                features = tf.train.Features(feature={"image": feature, "class": label})
                writer.write(tf.train.Example(features=features).SerializeToString())


def usual(folder: Path) -> Pictures:
    """The usual pipeline over those TFRecords."""
    import tensorflow as tf

    kinds = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "class": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, kinds)
        image = tf.io.decode_jpeg(example["image"], 3)
        return tf.reshape(image, [SIZE, SIZE, 3]), example["class"]

    paths = sorted(map(str, folder.glob("*.tfrec")))
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.with_options(options).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.repeat().shuffle(10 * BATCH).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    for images, _ in dataset:
        yield len(images)


def by_hand(folder: Path) -> Pictures:
    """Our records, cropped, resized and flipped as TensorFlow's own ImageNet recipes do it."""
    import tensorflow as tf

    kinds = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, kinds)
        encoded = example["image/encoded"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            area_range=(CROP, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (SIZE, SIZE)))
        return tf.cast(image + 0.5, tf.uint8), example["image/class/label"]

    dataset = tf.data.TFRecordDataset(
        sorted(map(str, folder.glob("train-*.tfrecord"))), num_parallel_reads=tf.data.AUTOTUNE
    )
    dataset = dataset.repeat().shuffle(10 * BATCH).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    for images, _ in dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE):
        yield len(images)


def held(folder: Path) -> list[bytes]:
    """The JPEGs that records hold."""
    import tensorflow as tf

    paths = sorted(map(str, folder.glob("train-*.tfrecord")))
    records = tf.data.TFRecordDataset(paths).as_numpy_iterator()
    examples = (tf.train.Example.FromString(record).features.feature for record in records)
    return [example["image/encoded"].bytes_list.value[0] for example in examples]


def turbo(encoded: list[bytes]) -> Pictures:
    """libjpeg-turbo alone."""
    import simplejpeg

    while True:
        for content in random.sample(encoded, BATCH):
            simplejpeg.decode_jpeg(content)
        yield BATCH


def records(files: Path, out: Path, *options: str) -> Path:
    """Make records of `files` with the trainer's own command; their folder."""
    from trainer.records import command as tool

    if tool.main([str(files), str(out), *options]):
        raise RuntimeError("no records were made")
    return out


def photographs(folder: Path) -> None:
    """Write FILES different pieces of real photographs, in two classes."""
    import numpy as np
    import skimage.data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    names = ("astronaut", "chelsea", "coffee", "rocket")
    whole = [*load_sample_images().images, *(getattr(skimage.data, name)() for name in names)]
    chance = random.Random(0)
    for name in ("one", "other"):
        (folder / name).mkdir(parents=True)
    for number in range(FILES):
        image = Image.fromarray(np.asarray(whole[number % len(whole)]))
        wide = chance.uniform(0.6, 1.0) * min(image.width, image.height * 4 / 3)
        left = chance.uniform(0, image.width - wide)
        top = chance.uniform(0, image.height - wide * 3 / 4)
        box = (left, top, left + wide, top + wide * 3 / 4)
        piece = image.resize((500, 375), Image.Resampling.LANCZOS, box=box)
        buffer = io.BytesIO()
        piece.save(buffer, "JPEG", quality=90, subsampling=2)
        kind = ("one", "other")[number % 2]
        (folder / kind / f"{number}.jpg").write_bytes(buffer.getvalue())


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "-"
