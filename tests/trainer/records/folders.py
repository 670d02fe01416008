"""The command in this process, what is read back from its folders."""

from pathlib import Path

import tensorflow as tf

from trainer.records import command


def run(*arguments: object) -> int:
    return command.main([*map(str, arguments), "--workers", "1"])


def read(folder: Path, split: str) -> list[dict]:
    """The first value of each feature of each record, as TensorFlow reads them."""
    paths = sorted(str(path) for path in folder.glob(f"{split}-*.tfrecord"))
    return [
        {
            name: [*value.bytes_list.value, *value.int64_list.value][0]
            for name, value in tf.train.Example.FromString(record).features.feature.items()
        }
        for record in tf.data.TFRecordDataset(paths).as_numpy_iterator()
    ]


def names(folder: Path, split: str) -> list[str]:
    return [record["image/filename"].decode() for record in read(folder, split)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
