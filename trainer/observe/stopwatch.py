"""Where the time of a run goes, over all its attempts.

Every second of the training thread is in exactly one part: entering a part stops the clock of the
part around it. Time in no part is `other`, and the report shows it. The times lie in the
checkpoints, so they go on after a restart; what an attempt did after its last checkpoint is not in
them.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

PARTS = ("startup", "input", "compute", "checkpoint", "evaluation", "summaries")
"""startup: from the start of the process to the first step, tracing and compiling included."""


def process_age() -> float:
    """Return seconds since this process was started, imports included."""
    return max(0.0, time.time() - psutil.Process().create_time())


class Stopwatch:
    """Measures the seconds of the training thread by part. It is not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, age: float = 0.0) -> None:
        """`age`: seconds that this process has already spent on starting up."""
        self._clock = clock
        self._since = clock() - age
        self._running = ["startup"]
        self._seconds = dict.fromkeys((*PARTS, "other"), 0.0)
        self._earlier: dict[str, float] = {}
        self._first_compute = True
        self.attempts = 1

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time inside to one of PARTS.

        In the first "compute" of an attempt TensorFlow traces and compiles: it counts as startup,
        and ends the startup.
        """
        first = part == "compute" and self._first_compute
        self._switch()
        self._running.append("startup" if first else part)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()
            if first:
                self._first_compute = False
                self._running[0] = "other"

    def move(self, seconds: float, source: str, target: str) -> None:
        """Move up to `seconds` from `source` to `target`: only a step itself can measure some
        times, such as its wait for input.
        """
        seconds = min(seconds, self._seconds[source])
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def seconds(self) -> dict[str, float]:
        """Return seconds of this attempt by part, with "other"; their sum is the wall clock."""
        self._switch()
        return dict(self._seconds)

    def state(self) -> dict[str, Any]:
        """Return attempts, and seconds of all attempts so far: by part, and their sum."""
        seconds = {part: n + self._earlier.get(part, 0.0) for part, n in self.seconds().items()}
        wall = sum(seconds.values())
        return {"attempts": self.attempts, "seconds": seconds, "wall_seconds": wall}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state in a checkpoint."""
        self.attempts = int(state["attempts"]) + 1
        self._earlier = dict(state["seconds"])

    def _switch(self) -> None:
        now = self._clock()
        self._seconds[self._running[-1]] += now - self._since
        self._since = now
