"""How a person ends what a command runs: requests from signals, and one run at a time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from builder.core import files
from builder.core.errors import InputError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Requests to end a job, from another thread or from a signal. The first request ends the
    containers with SIGTERM and their grace, the second one with SIGKILL. requests: how many there
    were; code: the exit code that the last one means.
    """

    def __init__(self) -> None:
        self.requests, self.code = 0, 0

    def request(self, number: int = signal.SIGTERM) -> None:
        self.requests += 1
        self.code = 128 + number


@contextlib.contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """Within the block, Ctrl-C, SIGTERM and SIGHUP only make a request to `stop`, so that no signal
    interrupts the making of a container. The fourth one raises KeyboardInterrupt. A SIGHUP that is
    ignored (nohup) stays ignored. Outside of the main thread the block changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.request(number)
        if stop.requests > 3:
            raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    caught = [number for number in _ENDING if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def only_run(folder: Path, fix: str) -> Iterator[None]:
    """Hold a lock file in a folder. Raises InputError where another run holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(folder / ".lock", wait=False))
        except BlockingIOError:
            what = f"{folder}: another run of this job is at work there"
            raise InputError(what, fix) from None
        yield
