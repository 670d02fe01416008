"""Where the time of a run goes, over all its attempts, and what it costs.

Every second of the training thread is in exactly one part: entering a part stops the clock of the
part around it. Time in no part is `other`, and the report shows it. The account lies in the
checkpoints, so it goes on after a restart. What an attempt did after its last checkpoint is lost; a
small journal beside the checkpoints tells how much that was.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

PARTS = ("startup", "input", "compute", "checkpoint", "evaluation", "summaries")
"""startup: from the start of the process to the first step, tracing and compiling included."""
LOST = "lost"
"""Seconds of steps that had to be made again, after the last checkpoint of an attempt that died."""


def process_age() -> float:
    """Return seconds since this process was started, imports included; 0 if the system does not
    say.

    Field 22 of /proc/self/stat is the start in clock ticks after boot (proc_pid_stat(5)).
    """
    import os

    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


class Ledger:
    """Seconds of the training thread by part. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, age: float = 0.0) -> None:
        """`age`: seconds that this process has already spent on starting up."""
        self._clock = clock
        self._began = clock() - age
        self._since = self._began
        self._running = ["startup"]
        self._spent = dict.fromkeys((*PARTS, "other", LOST), 0.0)
        self._earlier: dict[str, float] = {}
        self._first_compute = True
        self.attempts = 1

    @contextlib.contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Book the time inside to one of PARTS.

        In the first "compute" of an attempt TensorFlow traces and compiles: it counts as startup,
        and ends the startup.
        """
        if part not in PARTS:
            raise ValueError(f"{part!r} is not one of {', '.join(PARTS)}")
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
        """Move up to `seconds` from `source` to `target`.

        This is for times that only a step itself can measure, such as its wait for input.
        """
        seconds = min(seconds, self._spent[source])
        self._spent[source] -= seconds
        self._spent[target] += seconds

    def seconds(self) -> dict[str, float]:
        """Return seconds of this attempt by part, with "other"; their sum is the wall clock."""
        self._switch()
        return dict(self._spent)

    def wall(self) -> float:
        """Return seconds of this attempt."""
        return self._clock() - self._began

    def state(self) -> dict[str, Any]:
        """Return the account of all attempts so far, for the checkpoint."""
        return {"attempts": self.attempts, "seconds": _sum(self._earlier, self.seconds())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the account of a checkpoint."""
        self.attempts = int(state["attempts"]) + 1
        self._earlier = dict(state["seconds"])

    def reconcile(self, journal: Mapping[str, Any], clean: bool) -> None:
        """Take over the journal of the last attempt, after `restore` or without a checkpoint.

        `journal` is a later state than the checkpoint's. If the attempt ended `clean`, with its
        last step in the checkpoint, nothing of it is lost; otherwise the difference is lost.
        """
        self.attempts = max(self.attempts, int(journal["attempts"]) + 1)
        if clean:
            self._earlier = dict(journal["seconds"])
        else:
            more = sum(journal["seconds"].values()) - sum(self._earlier.values())
            self._earlier = _sum(self._earlier, {LOST: max(0.0, more)})

    def report(self) -> dict[str, Any]:
        """Return all attempts: seconds and shares by part, useful and lost work.

        Useful work is input and compute: training that is kept. Lost work was made again after a
        restart. The rest is overhead. `unexplained_share` is "other" as a share of the wall clock.
        """
        seconds = _sum(self._earlier, self.seconds())
        wall = sum(seconds.values())
        useful = seconds["input"] + seconds["compute"]
        split = {"useful": useful, LOST: seconds[LOST]}
        split["overhead"] = wall - sum(split.values())
        return {
            "attempts": self.attempts,
            "wall_seconds": wall,
            "seconds": seconds,
            "shares": {part: value / wall for part, value in seconds.items()} if wall else {},
            "unexplained_share": seconds["other"] / wall if wall else 0.0,
            "work_seconds": split,
        }

    def _switch(self) -> None:
        now = self._clock()
        self._spent[self._running[-1]] += now - self._since
        self._since = now


def _sum(before: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {part: before.get(part, 0.0) + other.get(part, 0.0) for part in {**before, **other}}
