"""Pauses that take no time, a clock that a test sets, and waiting for what comes true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def until(true: Callable[[], T], seconds: float = 60.0) -> T:
    """What `true` returns as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"it did not come true within {seconds:.0f} s"
        time.sleep(0.01)
    return found


def replace_pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> None:
    """Call `pause` in the place of time.sleep for the rest of a test.

    Threads that other tests have left go on sleeping: they would be counted, and never rest.
    """
    others = {one.ident for one in threading.enumerate()} - {threading.get_ident()}
    sleep = time.sleep

    def instead(seconds: float) -> None:
        if threading.get_ident() in others:
            sleep(seconds)
        else:
            pause(seconds)

    monkeypatch.setattr(time, "sleep", instead)
