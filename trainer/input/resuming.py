"""The rest of an epoch that was begun, in its order, without reading what was trained on.

What is still to come lies anywhere in the files, since they are shuffled. So the epoch is made
again, of empty examples in place of those that were trained on; only the others are read.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import tensorflow as tf

from trainer.input.parts import Layout, Piece
from trainer.job import storage
from trainer.records import tfrecord

BUFFER = 256 << 10
"""Most bytes that are read at once, as TFRecordDataset does."""


def runs(pieces: Iterable[Piece], needed: np.ndarray, labels: np.ndarray) -> tf.RaggedTensor:
    """Return the records of each piece as runs, int64 [pieces, None, 4]: the byte where they begin,
    -1 of empty ones; their number, label and bytes. `needed` and `labels` are of each record."""
    rows, first = [], 0
    for piece in pieces:
        own = slice(first, first + piece.count)
        rows.append(_runs(piece, needed[own], labels[own]))
        first += piece.count
    return cast(
        tf.RaggedTensor, tf.ragged.constant(rows, tf.int64, ragged_rank=1, inner_shape=(4,))
    )


def _runs(piece: Piece, needed: np.ndarray, labels: np.ndarray) -> list[tuple[int, ...]]:
    if needed.all() and not piece.start:
        return [(0, piece.count, 0, BUFFER)]
    changes = (needed[1:] != needed[:-1]) | (~needed[1:] & (labels[1:] != labels[:-1]))
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    places = _places(piece) if needed.any() else np.zeros(piece.count + 1, np.int64)
    return [
        (places[start] if needed[start] else -1, stop - start, labels[start],
         places[stop] - places[start])
        for start, stop in zip(starts, [*starts[1:], piece.count], strict=True)
    ]  # fmt: skip


def _places(piece: Piece) -> np.ndarray:
    """Return the byte where each record of a piece begins, and where the last one ends."""
    places = []
    with storage.opened(piece.path) as file:
        size = storage.gfile.stat(piece.path).length
        for number, (place, length) in enumerate(tfrecord.lengths(file, size)):
            places.append(place)
            if number == piece.start + piece.count - 1:
                places.append(place + tfrecord.HEADER + length + tfrecord.FOOTER)
                break
    return np.array(places[piece.start :], np.int64)


def records(path: tf.Tensor, its: tf.RaggedTensor, empty: tf.Tensor) -> tf.data.Dataset:
    """Return the serialised records of a piece by its runs, int64 [n, 4]. empty: an example of each
    label, in place of those that are not read."""

    def run(row: tf.Tensor) -> tf.data.Dataset:
        at, count, label, size = tf.unstack(row)
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=tf.minimum(size, BUFFER),
            byte_offsets=tf.maximum(at, 0)[None],
        )  # fmt: skip
        read = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        skipped = count * tf.cast(at < 0, tf.int64)
        others = tf.data.Dataset.from_tensors(empty[label]).repeat(skipped)
        return read.take(count - skipped).concatenate(others)

    return tf.data.Dataset.from_tensor_slices(its).flat_map(run)


def empties(layout: Layout, outputs: int, labels: Iterable[int]) -> tf.Tensor:
    """Return a serialised example without a picture for each of `labels`."""
    targets: dict[str, Any] = {"values": (0.0,) * outputs, "labels": ()}

    def empty(label: int) -> bytes:
        target = targets.get(layout.target, label + layout.first)
        return tfrecord.example({layout.image: b"", layout.label: target})

    return tf.constant([empty(label) for label in labels])
