"""Calls that wait at once, in order, and the first error."""

from __future__ import annotations

import threading

import pytest

from builder.core import parallel, web


def test_as_many_wait_at_once_as_there_are_connections_and_answers_keep_their_order() -> None:
    all_here = threading.Barrier(web.THREADS, timeout=30)

    def work(number: int) -> int:
        all_here.wait()  # one after the other, they would never meet
        return number * number

    numbers = range(2 * web.THREADS)
    assert parallel.each(work, numbers) == tuple(number * number for number in numbers)
    assert parallel.each(work, ()) == ()


def test_both_wait_at_once() -> None:
    both_here = threading.Barrier(2, timeout=30)

    def first() -> str:
        both_here.wait()
        return "first"

    def other() -> int:
        both_here.wait()
        return 2

    assert parallel.both(first, other) == ("first", 2)


def test_the_first_error_is_raised() -> None:
    def work(number: int) -> int:
        if number:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        parallel.each(work, (0, 1, 2))
    with pytest.raises(ValueError, match="3"):
        parallel.both(lambda: work(3), lambda: work(4))
    with pytest.raises(ValueError, match="4"):
        parallel.both(lambda: work(0), lambda: work(4))
