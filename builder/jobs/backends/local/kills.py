"""Preemptions on purpose: which replica is killed, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.core.errors import InputError

_KILL = re.compile(r"(chief|worker|ps|evaluator):(\d+)@(\d+)(s?)")


@dataclass(frozen=True)
class Kill:
    """A preemption: the replica is killed when the job reaches `step`, or after `seconds`.

    soft: SIGTERM and the grace period come first, as on a spot machine.
    """

    role: str
    index: int
    step: int | None = None
    seconds: float | None = None
    soft: bool = False

    @property
    def replica(self) -> str:
        return f"{self.role}-{self.index}"


def parse_kill(text: str, soft: bool = False) -> Kill:
    """`worker:0@50` (at step 50) or `worker:0@12s` (12 s after the start). Raises InputError."""
    match = _KILL.fullmatch(text)
    option = "--preempt" if soft else "--kill"
    if match is None:
        raise InputError(f"{option} {text}: is not ROLE:INDEX@STEP", f"write {option} worker:0@50")
    value = int(match[3])
    at: dict[str, Any] = {"seconds": float(value)} if match[4] else {"step": value}
    return Kill(match[1], int(match[2]), soft=soft, **at)


def kills(killed: Sequence[str], preempted: Sequence[str]) -> tuple[Kill, ...]:
    """What --kill and --preempt ask for. Raises InputError."""
    return (
        *(parse_kill(text) for text in killed),
        *(parse_kill(text, soft=True) for text in preempted),
    )


def check(kills: Sequence[Kill], known: Sequence[str]) -> None:
    """Raises InputError for a replica that the job does not have."""
    for kill in kills:
        if kill.replica not in known:
            raise InputError(
                f"--kill {kill.role}:{kill.index}: the job has no such replica",
                f"it has {', '.join(sorted(known)).replace('-', ':')}",
            )
