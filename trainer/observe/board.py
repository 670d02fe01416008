"""The event files of a job, and the time budget for expensive summaries."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from trainer.observe import events
from trainer.observe.observer import Run
from trainer.report import say

BUDGET = 0.05
"""Share of the time that histograms, activations and mistakes may cost before they are skipped."""


class Board:
    """The event files of a job, and the time spent on them."""

    def __init__(self) -> None:
        self._runs: dict[str, events.Events] = {}
        self._folder = ""
        self._write = False
        self._shared = False
        self._run: Any = None
        self._step = 0
        self._latest: dict[str, float] = {}
        self.costs: dict[str, dict[str, float]] = {}
        """By kind: times, seconds, skipped."""

    def begin(self, run: Run) -> None:
        self._folder, self._write = run.config.log_dir, run.writes
        self._step = run.position.step
        self._run = run
        # A dedicated evaluator writes there, too: neither may make readers forget the other's
        # events.
        self._shared = run.place.evaluator

    @property
    def writes(self) -> bool:
        return self._write

    @property
    def folder(self) -> str:
        return self._folder

    def of(self, name: str) -> events.Events:
        """The events of "train", "validation" or "" (the job itself)."""
        if name not in self._runs:
            folder = f"{self._folder}/{name}".rstrip("/")
            shared = self._shared and name == "validation"
            first = self._run.position.step if shared else self._step + 1
            self._runs[name] = events.Events(folder, first)
        return self._runs[name]

    def restart(self, step: int) -> None:
        """Make readers forget what was written for `step` and later steps: they are made again."""
        for name, opened in self._runs.items():
            if not (self._shared and name == "validation"):
                opened.restart(step)

    @contextlib.contextmanager
    def spend(self, kind: str) -> Iterator[None]:
        """Add the time inside to the cost of `kind`."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        cost = self._cost(kind)
        cost["times"] += 1
        cost["seconds"] += seconds
        self._latest[kind] = seconds

    def affordable(self, run: Run, kind: str) -> bool:
        """Would all summaries stay within the budget with one more of `kind`?

        The first two are always affordable: the first is also traced, and the second shows the
        cost.
        """
        if self._cost(kind)["times"] < 2:
            return True
        spent = run.ledger.seconds()["summaries"] + self._latest[kind]
        if spent <= BUDGET * run.ledger.wall():
            return True
        cost = self._cost(kind)
        cost["skipped"] += 1
        if cost["skipped"] == 1:
            text = (
                f"{kind} take {self._latest[kind]:.2f} s each: skipped where they would cost more "
                f"than {BUDGET:.0%} of the run (--histograms-every)"
            )
            say("summaries", text, step=run.position.step)
        return False

    def close(self) -> None:
        for opened in self._runs.values():
            opened.close()
        self._runs.clear()

    def _cost(self, kind: str) -> dict[str, float]:
        return self.costs.setdefault(kind, {"times": 0, "seconds": 0.0, "skipped": 0})
