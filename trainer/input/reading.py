"""What is read of records: their files, and the features of each example."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.input import augment, decoding, targets
from trainer.input.augment import Augmentation
from trainer.input.parts import Piece

FEATURES = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
SIZES = {
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
}
"""Features of JPEGs with their size noted beside them (Shard.jpeg)."""


@dataclass(frozen=True)
class Files:
    """The examples of some files, as they are stored there."""

    pieces: tuple[Piece, ...]
    classes: int
    target: str = targets.CLASS
    """What is to be said of each: see trainer.input.targets."""
    sized: bool = False
    """Read the pictures' noted sizes, too."""
    most: int = 0
    """All are JPEGs, and their shorter sides have at most so many pixels; 0: not known."""

    @property
    def reading(self) -> Mapping[str, Any]:
        """How several pieces are read at once, for Dataset.interleave."""
        return {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

    @property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """What `read` takes of each piece: all of the first, all of the second and so on."""
        return tuple(zip(*((p.path, p.start, p.count) for p in self.pieces), strict=True))

    @staticmethod
    def read(path: Any, start: Any, count: Any) -> tf.data.Dataset:
        """Return the serialised records of a piece."""
        return records(path, start, count)

    def examples(self, several: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Return contents, checked targets and, if `sized`, sizes [n, 2] of what `read` gives."""
        return examples(several, self.classes, self.target, self.sized)

    def label(self, example: tf.Tensor) -> tf.Tensor:
        """Return the class of one of those that `read` gives."""
        [label] = tf.io.parse_single_example(
            example, targets.wanted(targets.CLASS, self.classes)
        ).values()
        return label

    def picture(self, content: tf.Tensor) -> tf.Tensor:
        """Return uint8 [rows, width, 3], whose first rows are the picture."""
        return tf.io.decode_jpeg(content, channels=3)

    def seen(
        self, content: tf.Tensor, view: augment.View, image_size: int, how: Augmentation
    ) -> tf.Tensor:
        """Return what is seen of a picture in `view`, at the scale that `image_size` needs."""
        if self.most:
            most = min(self.most, how.cut or self.most)
            return decoding.jpeg(content, view.get("seen"), image_size, most, how.whole)
        window = None if how.whole else (lambda size: augment.window(size, view["draws"], how))
        return decoding.view(content, window, image_size)


def under_way() -> int:
    """Return examples that are made at once: eight a core.

    AUTOTUNE has about one a core, which then waits whenever the next example in order is not
    ready.
    """
    return 8 * len(os.sched_getaffinity(0))


def records(path: Any, start: Any, count: Any) -> tf.data.Dataset:
    """Return the serialised records [start, start + count) of a file."""
    start, count = tf.cast(start, tf.int64), tf.cast(count, tf.int64)
    return tf.data.TFRecordDataset(path).skip(start).take(count)


def examples(
    several: tf.Tensor, classes: int, target: str, sized: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Return contents, checked targets and, if `sized`, sizes [n, 2] of serialised examples."""
    features = FEATURES | (SIZES if sized else {}) | targets.wanted(target, classes)
    parsed = tf.io.parse_example(several, features)
    labels = targets.read(parsed, target, classes)
    sizes = tf.stack([parsed["image/height"], parsed["image/width"]], 1) if sized else None
    return parsed["image/encoded"], labels, sizes
