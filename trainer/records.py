"""A folder of class folders into TFRecords: `python -m trainer.records FOLDER OUT`.

    FOLDER/cat/1.jpg               OUT/labels.txt                          cat, dog
    FOLDER/cat/2.png      --->     OUT/train-00000-of-00002.tfrecord
    FOLDER/dog/1.jpg               OUT/validation-00000-of-00001.tfrecord

Files are stored as they are: encoded pictures are small, and decode faster than larger tensors
read. The same folder gives the same bytes; adding a picture moves no other one between splits.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
Example = tuple[bytes, int]
"""Encoded image, label."""


class RecordsError(Exception):
    """What cannot be turned into records, in one line."""


def find(folder: Path) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """Class names, and each picture with its label, shuffled by the hash of its relative path."""
    names = tuple(sorted(path.name for path in folder.glob("*/")))
    if len(names) < 2:
        raise RecordsError(f"{folder}: needs two or more folders, one a class; has {len(names)}")
    pictures = []
    for label, name in enumerate(names):
        files = [path for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES]
        if not files:
            raise RecordsError(f"{folder / name}: no pictures ({', '.join(SUFFIXES)})")
        pictures += [(path, label) for path in files]
    return names, sorted(pictures, key=lambda picture: _hash(picture[0], folder))


def convert(
    folder: Path,
    out: Path,
    validation: float = 0.1,
    shard_size: int = 1000,
    skip_corrupt: bool = False,
) -> tuple[dict[str, int], list[str]]:
    """Write the records. Returns the number of examples of each split, and what was skipped.

    `validation` is the share held out, `shard_size` the most examples of a file. Raises
    RecordsError.
    """
    import tensorflow as tf

    from trainer.data import decode, first_line

    if out.exists():
        raise RecordsError(f"{out}: exists; records are written to a new folder")
    names, pictures = find(folder)
    splits: dict[str, list[Example]] = {"train": [], "validation": []}
    skipped = []
    for path, label in pictures:
        content = path.read_bytes()
        try:
            decode(tf.constant(content), 8)
        except tf.errors.InvalidArgumentError as error:
            problem = f"{path}: cannot be decoded: {first_line(error)}"
            if not skip_corrupt:
                raise RecordsError(problem) from error
            skipped.append(problem)
            continue
        held_out = _hash(path, folder)[0] < validation * 256
        splits["validation" if held_out else "train"].append((content, label))
    empty = [split for split, examples in splits.items() if not examples]
    if empty:
        raise RecordsError(f"{folder}: no picture fell to {empty[0]}: give more, or another share")
    write(out, names, splits, shard_size)
    return {split: len(examples) for split, examples in splits.items()}, skipped


def write(
    out: Path, names: Sequence[str], splits: dict[str, list[Example]], shard_size: int
) -> None:
    """Write a folder that trainer.task reads, in one move. The same input gives the same bytes."""
    import tensorflow as tf

    temporary = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    temporary.mkdir(parents=True)
    for split, examples in splits.items():
        count = -(-len(examples) // shard_size)
        for number in range(count):
            path = temporary / f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for example in examples[number::count]:
                    writer.write(serialise(*example))
    (temporary / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    temporary.rename(out)


def serialise(image: bytes, label: int) -> bytes:
    """A tf.train.Example of the two features that the trainer reads."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.records", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--validation", type=float, default=0.1, help="share held out (0.1)")
    parser.add_argument("--shard-size", type=int, default=1000, help="most examples a file (1000)")
    parser.add_argument("--skip-corrupt", action="store_true", help="name them and go on")
    given = parser.parse_args(None if arguments is None else list(arguments))
    if not 0 < given.validation < 1 or given.shard_size < 1:
        parser.error("--validation is between 0 and 1, --shard-size 1 or more")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        counts, skipped = convert(**vars(given))
    except (RecordsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in skipped:
        print(f"skipped: {problem}", file=sys.stderr)
    print(
        ", ".join(f"{count} {split}" for split, count in counts.items()), f"examples in {given.out}"
    )
    return 0


def _hash(path: Path, folder: Path) -> bytes:
    return hashlib.sha256(path.relative_to(folder).as_posix().encode()).digest()


if __name__ == "__main__":
    sys.exit(main())
