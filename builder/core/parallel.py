"""Requests and transfers of which none needs another's answer, made at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from builder.core import web
from builder.core.errors import OutsideError

A = TypeVar("A")
T = TypeVar("T")


def each(work: Callable[[A], T], items: Iterable[A]) -> tuple[T, ...]:
    """Return `work` of each item, in the items' order; as many run at once as there are
    connections.

    Raises the first error in that order. What has not begun by then is not begun.
    """
    with ThreadPoolExecutor(web.THREADS) as threads:
        return tuple(threads.map(work, items))


def both(first: Callable[[], A], second: Callable[[], T]) -> tuple[A, T]:
    """Return what the two calls return. Raises the error of the first one, else of the second."""
    with ThreadPoolExecutor(1) as thread:
        later = thread.submit(second)
        return first(), later.result()


def transfer(
    items: Sequence[tuple[A, int]],
    work: Callable[[A, Callable[[int], None]], object],
    at_once: int,
    progress: Callable[[int, int], object],
) -> int:
    """Transfer several items, `at_once` at the same time; return how many bytes it were.

    items: each with its bytes. work: transfers an item, and calls its second argument with the
    bytes of the item so far. progress: called with the bytes of all items so far, and in total.
    The first error ends the transfers that still run, and is raised.
    """
    counts, ended = [0] * len(items), threading.Event()
    total = sum(size for _, size in items)

    def transfer_item(number: int) -> None:
        def advance(count: int) -> None:
            if ended.is_set():
                raise OutsideError("another transfer failed", "run this again")
            counts[number] = count
            progress(sum(counts), total)

        work(items[number][0], advance)

    with ThreadPoolExecutor(at_once) as threads:
        try:
            for task in as_completed(threads.submit(transfer_item, n) for n in range(len(items))):
                task.result()
        except BaseException:
            ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return sum(counts)
