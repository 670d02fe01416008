"""What one container of a smoke run did: its exit code, its events, its last lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder import contract
from builder.contract import TrainerEvent


@dataclass(frozen=True)
class Run:
    """What one container did.

    events: those that its program reported on stdout. tail: the last lines that hold no event.
    answer: the last JSON object that it printed. stopped: we stopped it on purpose. timed_out: we
    killed it because it took too long. out_of_memory: the kernel killed it.
    """

    exit_code: int
    seconds: float
    events: tuple[TrainerEvent, ...] = ()
    tail: tuple[str, ...] = ()
    answer: Mapping[str, Any] | None = None
    stopped: bool = False
    timed_out: bool = False
    out_of_memory: bool = False

    def of(self, name: str) -> tuple[TrainerEvent, ...]:
        """Return the events of this name that have a step."""
        return tuple(e for e in self.events if e.name == name and e.step is not None)

    def summary(self) -> dict[str, Any]:
        """Return what a receipt says of it."""
        return {
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 1),
            "last_step": self.last_step,
            "last_checkpoint": self.last_checkpoint,
            "resumed_at": self.resumed_at,
        }

    @property
    def losses(self) -> tuple[float, ...]:
        """The training losses, in order."""
        return tuple(e.loss for e in self.of(contract.STEP) if e.loss is not None)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation on held-out examples, None without one."""
        values = [e.accuracy for e in self.of(contract.EVALUATED) if e.accuracy is not None]
        return values[-1] if values else None

    @property
    def last_step(self) -> int:
        """The last step that it reported, 0 for none."""
        return max((e.step or 0 for e in self.of(contract.STEP)), default=0)

    @property
    def last_checkpoint(self) -> int | None:
        """The step of the last checkpoint that it reported."""
        return max((e.step or 0 for e in self.of(contract.CHECKPOINT)), default=None)

    @property
    def resumed_at(self) -> int | None:
        """The step of the checkpoint that it said it resumed from, None where it said nothing."""
        events = self.of(contract.RESUMED)
        return events[0].step if events else None
