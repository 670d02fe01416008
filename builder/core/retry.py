"""Attempts that are repeated after a transient error: a busy registry, a broken connection."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from builder.core.errors import OutsideError
from builder.core.events import ignore

T = TypeVar("T")
OnRetry = Callable[[str], None]
"""Receives one line for each attempt that failed and is repeated."""


class TransientError(Exception):
    """An attempt failed, and a later one may succeed.

    after: seconds that the other side asked to wait. final: the error that is raised if this was
    the last attempt; by default an OutsideError of `why` and `fix`.
    """

    def __init__(
        self,
        why: str,
        fix: str = "look whether the registry is up, and run this again",
        after: float | None = None,
        final: Exception | None = None,
    ) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.after = after
        self.final = final


@dataclass(frozen=True)
class Retry:
    """How often an attempt is made, and how many seconds lie between two attempts."""

    attempts: int = 6
    first: float = 0.5
    """The first pause; each later one is twice as long."""
    longest: float = 60.0
    """No pause is longer."""

    def run(
        self,
        attempt: Callable[[], T],
        on_retry: OnRetry = ignore,
        sleep: Callable[[float], object] | None = None,
    ) -> T:
        """Return the result of `attempt()`, which is called again after each TransientError.

        A pause varies by a fifth, so that many clients do not come back at the same moment. A pause
        that the other side names (Retry-After) is kept, up to `longest`. After the last attempt the
        error's `final` is raised, by default OutsideError.
        """
        for number in range(1, self.attempts + 1):
            try:
                return attempt()
            except TransientError as error:
                if number == self.attempts:
                    tries = f" (tried {number} times)" if number > 1 else ""
                    last = error.final or OutsideError(error.why + tries, error.fix)
                    raise last from error.__cause__
                pause = self.first * 2 ** (number - 1) * random.uniform(0.8, 1.2)
                pause = min(self.longest, pause if error.after is None else error.after)
                on_retry(f"{error.why}; trying again in {pause:.1f} s")
                (sleep or time.sleep)(pause)
        raise AssertionError("unreachable")
