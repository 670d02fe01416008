"""Does transfer learning help? Pre-train on the digits 0 to 4, fine-tune on a few of 5 to 9.

    python -m bench.transfer [--examples 25] [--steps 100] [--seeds 3]

Every run is a run of `trainer.task`, as a user would start it. The first job trains on 0 to 4. The
other jobs train on the same few examples of 5 to 9 for the same number of steps, from the first
job's checkpoint or from scratch. Accuracy is measured on digits 5 to 9 that no job trained on.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import held_out_accuracy

Images = NDArray[np.float64]
"""Grey values 0 to 16, of shape [examples, 8, 8]."""

HELD_OUT = 300
"""Examples of each half that are for evaluation only."""

WAYS: dict[str, tuple[str, ...]] = {
    "from scratch": (),
    "pre-trained, only the head": ("--fine-tune-layers", "0"),
    "pre-trained, last layer and head": ("--fine-tune-layers", "1"),
    "pre-trained, all layers": ("--fine-tune-layers", "all"),
}


def write(folder: Path, images: Images, labels: NDArray[np.int64], names: Sequence[str]) -> None:
    """Write records of grey images; the last HELD_OUT of them are for evaluation."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    for split, chosen in {
        "train": slice(None, -HELD_OUT),
        "validation": slice(-HELD_OUT, None),
    }.items():
        with tf.io.TFRecordWriter(str(folder / f"{split}-00000-of-00001.tfrecord")) as file:
            for image, label in zip(images[chosen], labels[chosen], strict=True):
                pixels = (image * 15.9).astype(np.uint8)[..., None]
                feature = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_png(pixels).numpy()])
                    ),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[int(label)])
                    ),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                file.write(example.SerializeToString())


def train(records: Path, job: Path, *options: str) -> float:
    """Held-out accuracy of a run of `trainer.task`."""
    common = ("--batch", "16", "--export", "none")
    return held_out_accuracy(records, job, *common, *options)


def compare(folder: Path, examples: int, steps: int, seeds: int) -> dict[str, list[float]]:
    """Accuracy of each way, a number for each seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images[order], digits.target[order]
    low = labels < 5
    write(folder / "low", images[low], labels[low], "01234")
    pre = train(folder / "low", folder / "pre", "--steps", "400")
    found: dict[str, list[float]] = {"(pre-training, on 0-4)": [pre]}
    high = np.flatnonzero(~low)
    for seed in range(seeds):
        few = np.random.default_rng(seed).choice(high[:-HELD_OUT], examples, replace=False)
        chosen = np.concatenate([few, high[-HELD_OUT:]])
        records = folder / f"high-{seed}"
        write(records, images[chosen], labels[chosen] - 5, "56789")
        for number, (way, options) in enumerate(WAYS.items()):
            weights = ("--weights", str(folder / "pre/checkpoints")) if options else ()
            given = (*weights, *options, "--steps", str(steps), "--seed", str(seed))
            accuracy = train(records, folder / f"job-{seed}-{number}", *given)
            found.setdefault(way, []).append(accuracy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=25)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), asked.examples, asked.steps, asked.seeds)
    print(f"{asked.examples} training examples of 5-9, {asked.steps} steps, {asked.seeds} seeds")
    print("| | held-out accuracy | by seed |\n|---|---|---|")
    for way, values in found.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        print(f"| {way} | {statistics.mean(values):.3f} | {each} |")


if __name__ == "__main__":
    main()
