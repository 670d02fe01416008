"""Files on a disk or in a bucket, whole or not at all."""

import os

import tensorflow as tf

gfile = tf.io.gfile


def write(path: str, content: bytes) -> None:
    """Put `content` at `path` in one move, so that no reader ever sees a part of it.

    A bucket has no rename, but there an object appears only when it is complete.
    """
    gfile.makedirs(path.rpartition("/")[0])
    temporary = f"{path}.tmp-{os.getpid()}"
    with gfile.GFile(temporary, "wb") as file:
        file.write(content)
    gfile.rename(temporary, path, overwrite=True)


def read(path: str) -> bytes:
    """All of a file; tf.errors.NotFoundError where there is none."""
    with gfile.GFile(path, "rb") as file:
        return file.read()


def replace_folder(temporary: str, path: str) -> None:
    """Make the finished folder `temporary` the folder `path`."""
    if gfile.exists(path):
        gfile.rmtree(path)
    gfile.rename(temporary, path)
