"""Preemptions on purpose: which replica is killed, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from builder.core.errors import InputError


@dataclass(frozen=True)
class Kill:
    """A preemption: the replica is killed when the job reaches `step`, or after `seconds`.

    soft: SIGTERM and the grace period come first, as on a spot machine.
    """

    replica: str
    step: int | None = None
    seconds: float | None = None
    soft: bool = False

    def is_due(self, step: int | None, seconds: float) -> bool:
        """Tell whether a job at this step, so many seconds after its start, has reached it."""
        if self.seconds is not None:
            return seconds >= self.seconds
        return step is not None and self.step is not None and step >= self.step


def parse_kill(text: str, soft: bool = False) -> Kill:
    """Return what `worker:0@50` (at step 50) or `worker:0@12s` (12 s after the start) asks for.

    Raises InputError.
    """
    match = re.fullmatch(r"(chief|worker|ps|evaluator):(\d+)@(\d+)(s?)", text)
    if match is None:
        option = "--preempt" if soft else "--kill"
        raise InputError(f"{option} {text}: is not ROLE:INDEX@STEP", f"write {option} worker:0@50")
    replica, value = f"{match[1]}-{match[2]}", int(match[3])
    if match[4]:
        return Kill(replica, seconds=float(value), soft=soft)
    return Kill(replica, step=value, soft=soft)


def check(kills: Sequence[Kill], replicas: Sequence[str]) -> None:
    """Raise InputError for a replica that the job does not have."""
    for kill in kills:
        if kill.replica not in replicas:
            raise InputError(
                f"--kill {kill.replica.replace('-', ':')}: the job has no such replica",
                f"it has {', '.join(sorted(replicas)).replace('-', ':')}",
            )
