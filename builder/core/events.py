"""What long work tells whoever watches: frozen events, passed to an `on_event` callback.

Every stage speaks the same four words, so that one reporter (builder/cli/console.py) shows builds,
downloads, smoke runs and pushes alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    """A line that a step printed."""

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


def ignore(event: Event) -> None:
    """The callback of someone who does not watch."""


def prefixed(prefix: str, on_event: OnEvent) -> OnEvent:
    """A callback that says whose step it is: several builds at once stay apart."""

    def tell(event: Event) -> None:
        on_event(replace(event, name=f"{prefix}: {event.name}"))

    return tell
