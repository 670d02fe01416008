"""Decoded pictures, kept for a run: each JPEG is decoded once, and every epoch reads its pixels.

The order, the random numbers and the pictures are those of decoding again each time, but for the
colours at the edge of a crop (docs/data.md). All pictures of a worker lie one after the other in
one block, in memory or in a file on a local disk that is mapped into memory. The file has no name,
so it goes with the process; a restarted run decodes again, into the same bytes.
"""

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import UsageError
from trainer.input import augment, decoding, reading
from trainer.input.augment import Augmentation
from trainer.input.parts import Piece
from trainer.job import memory, storage
from trainer.report import say

NONE, MEMORY = "none", "memory"
"""Values of --cache; any other is a folder."""
SHARE = 0.8
"""Most of the free memory or disk that the pictures may take."""
_ALIGNED = 64
"""TensorFlow takes a part of a tensor without a copy if its start and its length are multiples of
so many bytes (IsDim0SliceAligned in tensorflow/core/kernels/ops_util.h)."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The examples of some files, decoded; it is read as reading.Files is."""

    pieces: tuple[Piece, ...]
    pixels: tf.Tensor
    """uint8 [bytes]: all pictures."""
    contents: tf.Tensor
    """int64 [n, 5]: first byte, bytes, rows, columns and channels of each."""
    sizes: tf.Tensor
    """int64 [n, 2]: height and width; there may be more rows below the picture."""
    labels: tf.Tensor
    """The targets [n, ...], as targets.read has them."""

    @property
    def reading(self) -> Mapping[str, Any]:
        """Numbers are counted, which needs no threads."""
        return {}

    @property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        counts = tuple(piece.count for piece in self.pieces)
        starts = tuple(sum(counts[:place]) for place in range(len(counts)))
        return tuple(piece.path for piece in self.pieces), starts, counts

    @staticmethod
    def read(_: Any, start: Any, count: Any) -> tf.data.Dataset:
        """Return the numbers of a piece's examples."""
        start, count = tf.cast(start, tf.int64), tf.cast(count, tf.int64)
        return tf.data.Dataset.range(start, start + count)

    def examples(self, several: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return contents, for `picture`, labels and sizes [n, 2]."""
        columns = (self.contents, self.labels, self.sizes)
        contents, labels, sizes = (tf.gather(column, several) for column in columns)
        return contents, labels, sizes

    def label(self, number: tf.Tensor) -> tf.Tensor:
        return self.labels[number]

    def picture(self, content: tf.Tensor) -> tf.Tensor:
        """Return uint8 [rows, width, 3], whose first rows are the picture; nothing is copied."""
        return tf.reshape(tf.slice(self.pixels, content[:1], content[1:2]), content[2:])

    def seen(
        self, content: tf.Tensor, view: augment.View, image_size: int, how: Augmentation
    ) -> tf.Tensor:
        """Return what is seen of a picture in `view`, at full size."""
        return decoding.part(self.picture(content), view["seen"])


@lru_cache(maxsize=1)
def decoded(pieces: tuple[Piece, ...], classes: int, target: str, where: str) -> Decoded:
    """Decode the JPEGs of `pieces`, whose sizes are noted beside them, into memory or a folder.

    A process keeps those that it asked for last. Raises UsageError, before anything is decoded, if
    there is no room for them, and tf.errors.OpError if one cannot be decoded.
    """
    labels, sizes = _noted(pieces, classes, target)
    contents = _layout(sizes)
    needed = int(contents[-1, 0] + contents[-1, 1])
    free, place = _free(where)
    text = f"--cache {where}: {len(labels):,} decoded pictures take {needed / 1e6:,.1f} MB"
    if needed > SHARE * free:
        raise UsageError(
            f"{text}, at most {SHARE:.0%} of the {free / 1e6:,.1f} MB that are free {place}: make "
            "smaller records (trainer.records --resize) or leave --cache out"
        )
    say("cache", f"{text} of {free / 1e6:,.1f} MB free {place}", bytes=needed, free=free)
    began, block = time.monotonic(), _block(where, needed)
    for (start, _, _, _, _), image in zip(contents, _images(pieces), strict=True):
        block[start : start + image.size] = image.reshape(-1)
    seconds = time.monotonic() - began
    say("cache", f"--cache {where}: decoded in {seconds:,.1f} s", seconds=round(seconds, 3))
    with tf.device("CPU:0"):
        pixels = tf.experimental.dlpack.from_dlpack(block.__dlpack__())
        return Decoded(pieces, pixels, *map(tf.constant, (contents, sizes, labels)))


def _noted(pieces: tuple[Piece, ...], classes: int, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return targets [n, ...] and int64 sizes [n, 2] of all examples, ordered as the pieces."""
    source = reading.Files(pieces, classes, target, sized=True)
    batches = _records(pieces).batch(256).map(lambda several: source.examples(several)[1:])
    labels, sizes = zip(*batches.as_numpy_iterator(), strict=True)
    return np.concatenate(labels), np.concatenate(sizes)


def _layout(sizes: np.ndarray) -> np.ndarray:
    """Decoded.contents: each picture's number of rows is such that the next one is aligned."""
    height, width = sizes.T
    step = _ALIGNED // np.gcd(_ALIGNED, 3 * width)
    rows = -(-height // step) * step
    length = rows * width * 3
    start = np.cumsum(length) - length
    return np.stack([start, length, rows, width, np.full_like(rows, 3)], 1)


def _free(where: str) -> tuple[int, str]:
    """Return bytes that are free, and where, in words. Raises UsageError."""
    if where == MEMORY:
        return memory.free(), "in memory"
    if storage.remote(where):
        raise UsageError(f"--cache {where}: is not a folder on a local disk")
    try:
        return shutil.disk_usage(where).free, f"in {where}"
    except OSError as error:
        raise UsageError(f"--cache {where}: {error.strerror}") from None


def _block(where: str, size: int) -> np.ndarray:
    """Return uint8 [size], which begins at a page. Raises UsageError."""
    if where == MEMORY:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
    try:
        with tempfile.TemporaryFile(dir=where) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # or a disk that fills up ends the process
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        raise UsageError(f"--cache {where}: {error.strerror}") from None


def _images(pieces: tuple[Piece, ...]) -> Any:
    """Return the pictures, uint8 [height, width, 3], in the order of the pieces."""

    def image(record: tf.Tensor) -> tf.Tensor:
        parsed = tf.io.parse_single_example(record, reading.FEATURES | reading.SIZES)
        size = tf.stack([parsed["image/height"], parsed["image/width"]])
        decoded = tf.io.decode_jpeg(parsed["image/encoded"], channels=3)
        shape = tf.shape(decoded, tf.int64)[:2]
        tf.debugging.assert_equal(shape, size, "a picture has another size than its record notes")
        return decoded

    images = _records(pieces).map(image, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return images.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _records(pieces: tuple[Piece, ...]) -> tf.data.Dataset:
    columns = tuple(map(tf.constant, reading.Files(pieces, 0).columns))
    return tf.data.Dataset.from_tensor_slices(columns).flat_map(reading.records)
