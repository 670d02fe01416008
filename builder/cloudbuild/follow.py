"""Following a build to its end: its status, its steps and its log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.cloudbuild import builds, logs
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.outcome import ENDED, GOOD, Outcome, outcome, status
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, begin, ignore

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

WAITING = "waiting for a worker"
PATIENCE = 900.0
"""Seconds without an answer about a build, after which it is no longer followed."""
PAUSE = 1.0
"""Seconds between two looks at a build."""


def watch(
    clients: Clients, build: Build, on_line: Callable[[str], object], on_event: OnEvent = ignore
) -> Outcome:
    """Follow a build to its end.

    on_line: gets every line of its log. on_event: gets its steps.

    How the build went comes from its status alone. A log that could not be read is a note. Raises
    OutsideError if there was no answer for a quarter of an hour; the build goes on then.
    """
    log, steps = logs.begin(clients, build), _Steps(on_event)
    while True:
        try:
            build = builds.get(clients, build.id, PATIENCE)
        except OutsideError as error:
            if not isinstance(error.__cause__, googleapi.transient_errors()):
                raise
            what = f"{error.message}; the build goes on"
            raise OutsideError(what, f"builder cloud logs {build.id}") from error
        steps.update(build)
        ended = status(build) in ENDED
        for line in log.read(ended):
            on_line(line)
        if ended and log.complete:
            return outcome(build, log.note)
        builds.wait(PAUSE)


@dataclass
class _Steps:
    """Emits the start and the end of each step, by the messages about the build."""

    on_event: OnEvent
    states: dict[int, str] = field(default_factory=dict)
    running: dict[int, RunningStep] = field(default_factory=dict)
    waiting: RunningStep | None = None

    def update(self, build: Any) -> None:
        queued = status(build) in ("PENDING", "QUEUED")
        if queued and not self.waiting:
            self.waiting = begin(WAITING, self.on_event)
        elif self.waiting and not queued:
            self.waiting.done()
            self.waiting = None
        for number, step in enumerate(build.steps):
            state = step.status.name
            if self.states.get(number) == state:
                continue
            self.states[number] = state
            if state == "WORKING" or (state in ENDED and number not in self.running):
                self.running[number] = begin(step.id or f"#{number}", self.on_event)
            if state in ENDED:
                self._end(self.running[number], step, state)

    def _end(self, running: RunningStep, step: Any, state: str) -> None:
        seconds = None
        if step.timing.start_time and step.timing.end_time:
            seconds = (step.timing.end_time - step.timing.start_time).total_seconds()
        running.error = None if state == GOOD else state.lower()
        running.done(seconds)
