"""Examples as records: how a picture is serialised, and what its file is called."""

import os
from collections.abc import Sequence
from pathlib import Path

from trainer.records import tfrecord

Target = int | tuple[int, ...] | tuple[float, ...]
"""The number of a class, those of several labels, or values; values are never empty."""
Example = tuple[bytes, Target]
"""Encoded image, target."""


def file_name(split: str, number: int, count: int) -> str:
    """Return the name of file `number` of the `count` files of a split."""
    return f"{split}-{number:05d}-of-{count:05d}.tfrecord"


def write(
    out: Path, names: Sequence[str], splits: dict[str, list[Example]], shard_size: int
) -> None:
    """Write images that are encoded already, in one move. The same input gives the same bytes."""
    temporary = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    temporary.mkdir(parents=True)
    for split, examples in splits.items():
        count = -(-len(examples) // shard_size)
        for number in range(count):
            content = (serialise(*example) for example in examples[number::count])
            path = temporary / file_name(split, number, count)
            path.write_bytes(b"".join(map(tfrecord.frame, content)))
    (temporary / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    temporary.rename(out)


def serialise(image: bytes, label: Target, **more: tfrecord.Value) -> bytes:
    """Return a tf.train.Example of an encoded image; the names in `more` are put below image/."""
    target = "class/label" if isinstance(label, int) else "class/labels"
    if isinstance(label, tuple) and label and isinstance(label[0], float):
        target = "values"
    features = {"encoded": image, target: label, **more}
    return tfrecord.example({f"image/{name}": value for name, value in features.items()})
