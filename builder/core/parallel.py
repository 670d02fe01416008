"""Requests of which none needs another's answer, made at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from builder.core import web

A = TypeVar("A")
T = TypeVar("T")


def each(work: Callable[[A], T], items: Iterable[A]) -> tuple[T, ...]:
    """`work` of each item, of as many at once as there are connections; in the items' order.

    Raises the first error in that order. What has not begun by then is not begun.
    """
    with ThreadPoolExecutor(web.THREADS) as threads:
        return tuple(threads.map(work, items))


def both(one: Callable[[], A], other: Callable[[], T]) -> tuple[A, T]:
    """What the two calls return. Raises the error of the first one, else of the other."""
    with ThreadPoolExecutor(1) as beside:
        later = beside.submit(other)
        return one(), later.result()
