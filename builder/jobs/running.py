"""A job that this command itself runs to its end: what it tells, how it stops, how it ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from builder.core import files
from builder.core.errors import InputError

State = Literal["running", "succeeded", "failed", "cancelled"]
ReplicaState = Literal["waiting", "running", "succeeded", "failed", "stopped"]

_TERM: int = signal.SIGTERM
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class ReplicaLine:
    """One line that a replica printed."""

    replica: str
    text: str


@dataclass(frozen=True)
class Note:
    """One line that the runner itself writes; `replica` is "" where it is about the job."""

    replica: str
    text: str


JobEvent = ReplicaLine | Note
OnJobEvent = Callable[[JobEvent], None]


def ignore(event: JobEvent) -> None:
    """Do nothing: the callback of a caller that shows nothing."""


@dataclass(frozen=True)
class ReplicaResult:
    """How a replica ended. seconds: how long its containers ran, over all restarts."""

    name: str
    state: ReplicaState
    exit_code: int | None
    restarts: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `exit_code`: 0, the chief's, 130 or 143 where it was stopped."""

    job: str
    state: State
    exit_code: int
    message: str
    seconds: float
    folder: str
    replicas: tuple[ReplicaResult, ...]
    step: int | None = None


class Stop:
    """Requests to end a job, from another thread or from a signal. The first request ends the
    containers with SIGTERM and their grace, the second one with SIGKILL.

    of: another Stop; its requests count here, too, but requests made here do not count there.
    """

    def __init__(self, of: Stop | None = None) -> None:
        self._of = of
        self._requests = 0
        self._signal = 0

    def request(self, number: int = _TERM) -> None:
        self._requests += 1
        self._signal = number

    @property
    def requests(self) -> int:
        """Return how many requests there were."""
        return self._requests + (self._of.requests if self._of else 0)

    @property
    def signal(self) -> int:
        """Return the signal of the last request, 0 before the first."""
        return self._signal or (self._of.signal if self._of else 0)


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
def only_run(folder: Path, lock: str) -> Iterator[None]:
    """Hold a lock file of a job's folder. Raises InputError where another run holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(folder / lock, wait=False))
        except BlockingIOError:
            raise InputError(
                f"{folder}: another run of this job is at work there",
                "wait for it, or give --job-dir another folder",
            ) from None
        yield
