"""Which records a worker reads, and its position in them: arithmetic, without TensorFlow.

In every epoch, each record is in the part of exactly one worker. A worker goes through its part
again and again; the number of examples that it has consumed gives its epoch and its place in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shard:
    """A TFRecord file."""

    path: str
    records: int
    bytes: int = 0
    jpeg: tuple[int, int, int] = (0, 0, 0)
    """If all are JPEGs with their size noted beside them: the least and the most pixels of their
    shorter sides, and the most of any side. Zeros: not known."""
    target: Literal["class", "labels", "values"] = "class"
    """What is to be said of each example: see trainer.input.targets."""


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
