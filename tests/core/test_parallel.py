"""Calls that wait at once, in order, and the first error."""

from __future__ import annotations

import threading

import pytest

from builder.core import parallel, web


def test_as_many_wait_at_once_as_there_are_connections_and_answers_keep_their_order() -> None:
    all_here = threading.Barrier(web.THREADS, timeout=30)
    both_here = threading.Barrier(2, timeout=30)

    def work(number: int) -> int:
        all_here.wait()  # one after the other, they would never meet
        return number * number

    numbers = range(2 * web.THREADS)
    assert parallel.each(work, numbers) == tuple(number * number for number in numbers)
    assert set(parallel.both(both_here.wait, both_here.wait)) == {0, 1}


@pytest.mark.parametrize(("first", "second", "error"), [(3, 4, "3"), (0, 4, "4")])
def test_the_first_error_is_raised(first: int, second: int, error: str) -> None:
    def work(number: int) -> int:
        if number:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        parallel.each(work, (0, 1, 2))
    with pytest.raises(ValueError, match=error):
        parallel.both(lambda number=first: work(number), lambda number=second: work(number))
