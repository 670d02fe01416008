"""Pauses that take no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


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
