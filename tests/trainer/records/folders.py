"""The command in this process, what is read back from its folders."""

import re
from pathlib import Path

from trainer.records import command


def run(*arguments: object) -> int:
    return command.main([*map(str, arguments), "--workers", "1"])


def read(folder: Path, split: str) -> list[dict]:
    """The first value of each feature of each record, as TensorFlow reads them."""
    import tensorflow as tf

    paths = sorted(str(path) for path in folder.glob(f"{split}-*.tfrecord"))
    return [
        {
            name: [*value.bytes_list.value, *value.int64_list.value][0]
            for name, value in tf.train.Example.FromString(record).features.feature.items()
        }
        for record in tf.data.TFRecordDataset(paths).as_numpy_iterator()
    ]


def names(folder: Path, split: str) -> list[str]:
    """The names of the pictures, without TensorFlow: each stands behind its length, which is one
    byte, in a Feature's first list."""
    content = b"".join(path.read_bytes() for path in sorted(folder.glob(f"{split}-*.tfrecord")))
    found = re.finditer(rb"image/filename\x12.\n.\n(.)", content, re.DOTALL)
    return [content[at.end() : at.end() + at[1][0]].decode() for at in found]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
