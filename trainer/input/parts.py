"""Which records a worker reads, how often, and its position in them: without TensorFlow.

In every epoch, each record is in the part of exactly one worker. A worker goes through its part
again and again; the number of examples that it has consumed gives its epoch and its place in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Says where an example has its picture, and what is to be said of it."""

    image: str = "image/encoded"
    label: str = ""
    """The feature of the target; "": not known yet."""
    first: int = 0
    """The label that stands in the first line of labels.txt."""
    compression: str = "none"
    """Of the files: none or gzip."""
    target: Literal["class", "labels", "values"] = "class"
    """What is to be said of each example: see trainer.input.targets."""


OURS = Layout()
"""As trainer.records writes them."""


@dataclass(frozen=True)
class Shard:
    """A TFRecord file."""

    path: str
    records: int
    bytes: int = 0
    jpeg: tuple[int, int, int] = (0, 0, 0)
    """If all are JPEGs with their size noted beside them: the least and the most pixels of their
    shorter sides, and the most of any side. Zeros: not known."""
    sha256: str = ""
    """As dataset.json has it; "": it does not know the file."""
    layout: Layout = OURS
    """Of its examples."""


@dataclass(frozen=True)
class Piece:
    """Records [start, start + count) of a file."""

    path: str
    start: int
    count: int


def part(shards: Iterable[Shard], worker: int, workers: int) -> tuple[Piece, ...]:
    """Return the records of one of `workers`.

    The parts are contiguous and disjoint, cover all records, and are equal to within one
    record.
    """
    shards = tuple(shards)
    total = sum(shard.records for shard in shards)
    first, end = total * worker // workers, total * (worker + 1) // workers
    pieces, offset = [], 0
    for shard in shards:
        start, stop = max(first - offset, 0), min(end - offset, shard.records)
        if start < stop:
            pieces.append(Piece(shard.path, start, stop - start))
        offset += shard.records
    return tuple(pieces)


def size(pieces: Iterable[Piece]) -> int:
    """Number of records in `pieces`."""
    return sum(piece.count for piece in pieces)


def position(consumed: int, workers: int, own: int) -> tuple[int, int]:
    """Return (epoch, place in its order) of a worker with `own` records, after `workers` workers
    together consumed `consumed` examples, each the same number.
    """
    return divmod(consumed // workers, own)


def counts(labels: Mapping[str, np.ndarray], classes: int) -> np.ndarray:
    """Return examples of each class."""
    every = [np.zeros(0, np.int64), *labels.values()]
    return np.bincount(np.concatenate(every), minlength=classes)


def weights(counted: np.ndarray) -> np.ndarray:
    """Return what an example of each class counts in the loss: examples / (classes x examples of
    the class), as scikit-learn's class_weight="balanced"; the mean over the examples is 1. A
    class without examples has 0.
    """
    present = counted > 0
    share = counted.sum() / (present.sum() * np.maximum(counted, 1))
    return np.where(present, share, 0.0).astype(np.float32)


@dataclass(frozen=True)
class Repeats:
    """How often an epoch has each example: its class's size goes into that of the largest so many
    times, rounded."""

    of: tuple[int, ...]
    """By class."""
    labels: Mapping[str, np.ndarray]
    """The label of each record, by file."""

    @classmethod
    def balanced(cls, labels: Mapping[str, np.ndarray], classes: int) -> "Repeats":
        counted = counts(labels, classes)
        times = np.maximum(np.rint(counted.max() / np.maximum(counted, 1)), 1).astype(int)
        return cls(tuple(np.where(counted > 0, times, 1).tolist()), labels)

    def size(self, pieces: Iterable[Piece]) -> int:
        """Return examples that an epoch has of these records."""
        times = np.array(self.of)
        own = (self.labels[p.path][p.start : p.start + p.count] for p in pieces)
        return int(sum(times[some].sum() for some in own))
