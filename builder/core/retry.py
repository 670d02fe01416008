"""Trying again what may pass: a registry that is busy, a connection that broke."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from builder.core.errors import OutsideError

T = TypeVar("T")
Said = Callable[[str], None]
"""Gets one line for each attempt that fails and is made again."""


def silent(line: str) -> None:
    """The callback of a caller that does not show failed attempts."""


class Passing(Exception):  # noqa: N818 - one attempt, not the end
    """An attempt failed in a way that may pass.

    after: seconds that the other side asked to wait. final: what is raised where this was the last
    attempt; by default an OutsideError of `why` and `fix`.
    """

    def __init__(
        self,
        why: str,
        fix: str = "",
        after: float | None = None,
        final: Exception | None = None,
    ) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix or "look whether the registry is up, and run this again"
        self.after = after
        self.final = final


@dataclass(frozen=True)
class Retry:
    """How often an attempt is made, and how long the pauses between attempts are, in seconds.

    first: the first pause; each one after it is twice as long. longest: no pause is longer.
    """

    attempts: int = 6
    first: float = 0.5
    longest: float = 60.0

    def run(
        self,
        attempt: Callable[[], T],
        said: Said = silent,
        sleep: Callable[[float], object] | None = None,
    ) -> T:
        """The result of `attempt()`, which is called again after each `Passing`.

        Pauses vary by a fifth, so that many clients do not come back at the same moment. Where the
        other side names a pause (Retry-After), that one is kept, up to `longest`. The last failure
        raises its `final` error, by default OutsideError. sleep: waits for a pause.
        """
        for number in range(1, self.attempts + 1):
            try:
                return attempt()
            except Passing as error:
                if number == self.attempts:
                    raise self._last(error, number) from error.__cause__
                pause = self.first * 2 ** (number - 1) * random.uniform(0.8, 1.2)
                pause = min(self.longest, pause if error.after is None else error.after)
                said(f"{error.why}; trying again in {pause:.1f} s")
                (sleep or time.sleep)(pause)
        raise AssertionError("unreachable")

    def _last(self, error: Passing, number: int) -> Exception:
        tries = f" (tried {number} times)" if number > 1 else ""
        return error.final or OutsideError(error.why + tries, error.fix)
