"""Progress of long work: frozen events, passed to an `on_event` callback.

All stages use the same four events, so that one reporter (builder/cli/console.py) shows builds,
downloads, smoke runs and pushes alike. `step` makes the events of a block of code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True)
class StepStarted:
    """A step begins. `name` identifies it until its StepDone."""

    name: str


@dataclass(frozen=True)
class StepProgress:
    """How far a step is; `total` is None where it is not known."""

    name: str
    current: int
    total: int | None = None
    unit: Literal["bytes", "steps"] = "bytes"


@dataclass(frozen=True)
class StepLog:
    name: str
    line: str


@dataclass(frozen=True)
class StepDone:
    """A step ended. `detail` says in a few words what came out; `error` is set where it failed."""

    name: str
    seconds: float
    cached: bool = False
    detail: str = ""
    error: str | None = None


Event = StepStarted | StepProgress | StepLog | StepDone
OnEvent = Callable[[Event], None]


def ignore(_: object) -> None:
    """Do nothing: the callback of a caller that shows nothing."""


def prefixed(prefix: str, on_event: OnEvent) -> OnEvent:
    """Return a callback that puts `prefix` before the steps' names, for builds at once."""
    return lambda event: on_event(replace(event, name=f"{prefix}: {event.name}"))


@dataclass
class RunningStep:
    """A step that runs. Its StepDone takes `detail`, `cached` and `error` from here."""

    name: str
    on_event: OnEvent
    detail: str = ""
    cached: bool = False
    error: str | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def log(self, line: str) -> None:
        self.on_event(StepLog(self.name, line))

    def progress(
        self, current: int, total: int | None = None, unit: Literal["bytes", "steps"] = "bytes"
    ) -> None:
        self.on_event(StepProgress(self.name, current, total, unit))


@contextlib.contextmanager
def step(name: str, on_event: OnEvent) -> Iterator[RunningStep]:
    """Emit StepStarted before a block and StepDone after it.

    An exception ends the step with its message as the error, and goes on.
    """
    on_event(StepStarted(name))
    running = RunningStep(name, on_event)
    try:
        yield running
    except BaseException as error:
        kind = "stopped" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        running.error = running.error or str(error) or kind
        raise
    finally:
        done = StepDone(name, running.seconds, running.cached, running.detail, running.error)
        on_event(done)
