"""Each record once an epoch, for any files, workers and restarts: the arithmetic."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.input.parts import Piece, Shard, part, position, size

FILES = st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 400)), max_size=70)
"""Numbers of records in files: some have none, and there may be fewer files than workers."""
WORKERS = st.integers(1, 64)


def named(sizes: list[int]) -> list[Shard]:
    return [Shard(str(number), records) for number, records in enumerate(sizes)]


def records(pieces: tuple[Piece, ...]) -> list[tuple[str, int]]:
    """(file, number in the file) of each record."""
    return [(piece.path, piece.start + n) for piece in pieces for n in range(piece.count)]


@settings(max_examples=150, deadline=None)
@given(FILES, WORKERS)
def test_every_record_is_in_the_part_of_one_worker(sizes: list[int], workers: int) -> None:
    files = named(sizes)
    parts = [part(files, worker, workers) for worker in range(workers)]
    seen = [record for pieces in parts for record in records(pieces)]
    # The order is the files', too, so the parts are contiguous.
    assert seen == [(file.path, n) for file in files for n in range(file.records)]
    counts = [size(pieces) for pieces in parts]
    assert max(counts) - min(counts) <= 1
    assert all(piece.count > 0 for pieces in parts for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 2000), WORKERS, st.integers(0, 10**9))
def test_a_position_is_where_as_many_steps_from_the_start_lead(
    own: int, workers: int, steps: int
) -> None:
    """One example a step and worker. The numbers are too large for single steps."""
    epoch, place = position(steps * workers, workers, own)
    assert 0 <= place < own
    assert epoch * own + place == steps
    following = position((steps + 1) * workers, workers, own)
    assert following == ((epoch, place + 1) if place + 1 < own else (epoch + 1, 0))
