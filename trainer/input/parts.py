"""Which records a worker reads, and where in them it stands: arithmetic, without TensorFlow.

Every epoch, each record is in the part of exactly one worker. A worker goes through its part again
and again, and how many examples it has consumed says in which epoch it is, and where.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sound:
    """How the sounds of records are heard."""

    rate: int
    """Samples a second."""
    seconds: float
    """What the model hears of a clip."""

    @property
    def samples(self) -> int:
        return max(1, round(self.rate * self.seconds))


@dataclass(frozen=True)
class Shard:
    """A TFRecord file."""

    path: str
    records: int
    bytes: int = 0
    side: int = 0
    """Pixels of the squares in it; 0: encoded pictures of any size."""
    jpeg: tuple[int, int, int] = (0, 0, 0)
    """All are JPEGs with their size noted beside them, and these are the least and the most pixels
    that the shorter side of one has, and the most that any side has. Zeros: that is not known."""
    sound: Sound | None = None
    """None: these are pictures."""


@dataclass(frozen=True)
class Piece:
    """Records [start, start + count) of a file."""

    path: str
    start: int
    count: int


def part(shards: Iterable[Shard], worker: int, workers: int) -> tuple[Piece, ...]:
    """The records of one of `workers`: contiguous, disjoint, together all, equal to within one."""
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
    """Records in them."""
    return sum(piece.count for piece in pieces)


def position(consumed: int, workers: int, own: int) -> tuple[int, int]:
    """(epoch, place in its order) of a worker with `own` records, after all `workers` together
    consumed so many examples, each as many."""
    return divmod(consumed // workers, own)
