"""Images a second of the input pipeline, compared with others on the same pictures and cores.

    python -m bench input_pipeline

The pictures are photographs that come with scikit-learn and scikit-image, cut into 768 JPEG files
of 500 x 375 pixels. Every pipeline gives batches of 64 pictures of 224 x 224, and nothing trains on
them.

* ours: `python -m trainer.records --resize 256` once, then the training pipeline with a random crop
  of at least 35 % of the area and flips. The variants:
  not resized (without --resize); whole picture (no crop); cut (a random square of 224 x 224, not
  resized, and flips; from JPEGs, and from pixels made by `--encoding uint8 --resize 256`); squares
  (`--resize 224 --square`) with flips; squares as they are, the same work as the usual TFRecords;
  uint8 (pixels as they are); kept (as the first, with `--cache memory`, after it has decoded all);
  twice and 4 times (as the first, with `--augment-repeats`: so many crops of each picture).
* Keras: image_dataset_from_directory on the folder of files, with a prefetch.
* usual TFRecords, as a well-known blog post shows them: JPEGs of 224 x 224, quality 95, augmented
  when they were written; parallel reads, a map for each record, a prefetch, uint8 out. The shuffle
  buffer is 10 batches instead of 100, which makes this pipeline a little faster.
* tf.data by hand: our records, the same work, as the ImageNet recipes of TensorFlow's model garden
  write it: sample_distorted_bounding_box, decode_and_crop_jpeg, resize, random_flip_left_right. The
  shuffle buffer has 10 batches.
* grain: the JPEGs of our records in memory, the same work by Pillow in one thread a core.
* libjpeg-turbo alone (in simplejpeg): decodes bytes in memory, in as many threads as there are
  cores; once the files, which Keras has to decode, and once what our records hold.

All take turns. The table has the median of the rounds: seconds for 1,000 images by the clock, and
the processor time of all threads, which other work on the machine disturbs less. Each turn makes a
new pipeline, warms it up before the clock starts, and closes it. A pipeline that waited would fill
and enlarge its buffers, and would then deliver from them instead of doing its work.
"""

from __future__ import annotations

import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench import Row, load, report

FILES, SIZE, BATCH, ROUNDS, SECONDS, WARM = 768, 224, 64, 7, 1.5, 20
CROP = 0.35
FASTER, OF_TURBO = 1.5, {"ours": 1.0, "ours, kept": 1.0}
"""Times as fast as another pipeline, and as libjpeg-turbo: 0.8 where nothing else is said."""
Pictures = Generator[int, None, None]
"""Yields the number of pictures in each batch."""
KERAS, USUAL, FILES_ALONE = "Keras", "usual TFRecords", "libjpeg-turbo for the files"
BY_HAND, GRAIN = "tf.data by hand", "grain"
SAME_WORK = (BY_HAND, GRAIN)
"""What does to our records what "ours" does."""
OURS = {
    "ours": (KERAS, USUAL, FILES_ALONE, "libjpeg-turbo for ours"),
    "ours, kept": (USUAL, "libjpeg-turbo for ours"),
    "ours, cut": (USUAL, "libjpeg-turbo for ours, cut"),
    "ours, squares": (USUAL, "libjpeg-turbo for ours, squares"),
    "ours, squares, as they are": (USUAL, "libjpeg-turbo for ours, squares"),
    "ours, uint8, cut": (KERAS, USUAL),
    "ours, twice": (),
    "ours, 4 times": (),
    "ours, not resized": (),
    "ours, whole picture": (),
    "ours, uint8": (),
}
"""Our variants, and those that each has a bar against."""


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    busy = load()
    with tempfile.TemporaryDirectory(prefix="input-", dir="/var/tmp") as folder:
        rates, used, spent = measure(Path(folder))
    rows = []
    for ours, barred in OURS.items():
        compared = dict.fromkeys([KERAS, USUAL, *barred, *(SAME_WORK if ours == "ours" else ())])
        for theirs in compared:
            decoder = theirs.startswith("libjpeg-turbo")
            faster = OF_TURBO.get(ours, 0.8) if decoder else FASTER
            rows.append(_row(ours, theirs, rates, 1 / faster if theirs in barred else None))
        for theirs in compared:
            how = f"median of {ROUNDS} rounds; processor time of all threads for one image"
            what = f"{ours}, processor time"
            rows.append(Row(what, 1000 * used[ours], 1000 * used[theirs], theirs, how, "ms"))
    facts = {
        "images a second": ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()),
        "us of processor time an image": ", ".join(
            f"{name} {1e6 * seconds:,.0f}" for name, seconds in used.items()
        ),
        "records made once, s": f"{spent:.1f} for {FILES} files",
        "cores": len(os.sched_getaffinity(0)),
        "load before": busy,
        "tensorflow": _version("tensorflow-cpu"),
        "simplejpeg": _version("simplejpeg"),
        "grain": _version("grain"),
    }
    report("input_pipeline", rows, facts, images_a_second=rates, processor_seconds=used)
    return 0


def _row(ours: str, theirs: str, rates: dict[str, float], bar: float | None) -> Row:
    how = f"median of {ROUNDS} rounds of {SECONDS} s each, in turn; seconds for 1,000 images"
    return Row(ours, 1000 / rates[ours], 1000 / rates[theirs], theirs, how, bar=bar)


def measure(folder: Path) -> tuple[dict[str, float], dict[str, float], float]:
    """Images a second and processor seconds an image of each; seconds to make the records."""
    files = folder / "files"
    photographs(files)
    began = time.perf_counter()
    pixels = ("--encoding", "uint8", "--resize")
    resized = records(files, folder / "resized", "--resize", "256")
    jpegs = records(files, folder / "squares", "--resize", str(SIZE), "--square")
    whole = records(files, folder / "whole")
    squares = records(files, folder / "uint8", *pixels, str(SIZE))
    larger = records(files, folder / "uint8-256", *pixels, "256")
    spent = time.perf_counter() - began
    write_usual(files, folder / "usual")

    crop: dict[str, Any] = {"crop": CROP, "flip": "horizontal"}
    cut: dict[str, Any] = {"cut": SIZE, "flip": "horizontal"}
    contestants: dict[str, Callable[[], Pictures]] = {
        "ours": lambda: ours(resized, **crop),
        "ours, kept": lambda: ours(resized, keep="memory", **crop),
        "ours, cut": lambda: ours(resized, **cut),
        "ours, squares": lambda: ours(jpegs, flip="horizontal"),
        "ours, squares, as they are": lambda: ours(jpegs),
        "ours, uint8, cut": lambda: ours(larger, **cut),
        "ours, twice": lambda: ours(resized, copies=2, **crop),
        "ours, 4 times": lambda: ours(resized, copies=4, **crop),
        "ours, not resized": lambda: ours(whole, **crop),
        "ours, whole picture": lambda: ours(whole),
        "ours, uint8": lambda: ours(squares),
        KERAS: lambda: keras(files),
        USUAL: lambda: usual(folder / "usual"),
        BY_HAND: lambda: by_hand(resized),
        GRAIN: lambda: grained(held(resized)),
    }
    alone = {
        FILES_ALONE: [path.read_bytes() for path in sorted(files.rglob("*.jpg"))],
        "libjpeg-turbo for ours": held(resized),
        "libjpeg-turbo for ours, cut": held(resized),
        "libjpeg-turbo for ours, squares": held(jpegs),
    }
    contestants |= {name: partial(turbo, encoded) for name, encoded in alone.items()}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, start in contestants.items():
            seen[name].append(one(start()))
    rates, used = (
        {name: statistics.median(turn[column] for turn in turns) for name, turns in seen.items()}
        for column in (0, 1)
    )
    return rates, used, spent


def one(images: Pictures) -> tuple[float, float]:
    """Images a second over SECONDS, and the processor seconds an image."""
    with closing(images):
        for _ in range(WARM):
            next(images)
        count, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < SECONDS:
            count += next(images)
        return count / (time.perf_counter() - began), (time.process_time() - used) / count


def ours(folder: Path, keep: str = "none", copies: int = 1, **how: Any) -> Pictures:
    """The trainer's own pipeline over records, augmented by `how`; `keep` is --cache, `copies`
    --augment-repeats."""
    import tensorflow as tf

    from trainer.input import data, splits
    from trainer.input.augment import Augmentation

    dataset = data.training(
        splits.find(str(folder), "train"),
        tf.distribute.InputContext(1, 0, 1),
        batch_size=BATCH,
        image_size=SIZE,
        classes=2,
        seed=0,
        consumed=0,
        augmentation=Augmentation(**how),
        copies=copies,
        keep=keep,
    )
    for images, _ in dataset:
        yield len(images)


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


def grained(encoded: list[bytes]) -> Pictures:
    """JPEGs in memory through grain, cropped, resized and flipped by Pillow."""
    import grain
    import numpy as np
    from PIL import Image

    def seen(content: bytes, chance: np.random.Generator) -> Any:
        with Image.open(io.BytesIO(content)) as image:
            area = image.width * image.height * chance.uniform(CROP, 1.0)
            ratio = np.exp(chance.uniform(-1, 1) * np.log(4 / 3))
            wide = min(round(np.sqrt(area * ratio)), image.width)
            tall = min(round(np.sqrt(area / ratio)), image.height)
            left = chance.integers(image.width - wide + 1)
            top = chance.integers(image.height - tall + 1)
            box = (left, top, left + wide, top + tall)
            piece = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(piece)
        return pixels[:, ::-1] if chance.random() < 0.5 else pixels

    dataset = grain.MapDataset.source(encoded).seed(0).shuffle().repeat().random_map(seen)
    threads = grain.ReadOptions(num_threads=len(os.sched_getaffinity(0)))
    for images in dataset.to_iter_dataset(threads).batch(BATCH):
        yield len(images)


def held(folder: Path) -> list[bytes]:
    """The JPEGs that records hold."""
    import tensorflow as tf

    from trainer.records.tfrecord import features

    paths = sorted(map(str, folder.glob("train-*.tfrecord")))
    contents = (
        features(record.numpy())["image/encoded"] for record in tf.data.TFRecordDataset(paths)
    )
    return [content for content in contents if isinstance(content, bytes)]


def turbo(encoded: list[bytes]) -> Pictures:
    """libjpeg-turbo alone, one thread a core."""
    import simplejpeg

    def decode(contents: list[bytes]) -> None:
        for content in contents:
            simplejpeg.decode_jpeg(content)

    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        while True:
            chosen = [random.sample(encoded, BATCH) for _ in range(cores)]
            list(pool.map(decode, chosen))
            yield BATCH * cores


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
