"""Following a build to its end: its status, its steps and its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.cloudbuild.clients import Clients, explaining
from builder.cloudbuild.submission import builds, logs
from builder.cloudbuild.submission.builds import Sleep
from builder.cloudbuild.submission.outcome import ENDED, GOOD, Finished, finished, status
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, begin, ignore
from builder.core.googleapi import passing

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

WAITING = "waiting for a worker"
OUT_OF_TOUCH = 900.0
"""Seconds without an answer about a build. After that, the build is no longer followed."""

OnLine = Callable[[str], None]


def unheard(line: str) -> None:
    """The callback of a caller that does not show the log."""


def watch(
    clients: Clients,
    build: Build,
    on_line: OnLine = unheard,
    on_event: OnEvent = ignore,
    sleep: Sleep | None = None,
) -> Finished:
    """Follow a build to its end.

    on_line: gets every line of its log. on_event: gets its steps. sleep: waits for a pause.

    How the build went comes from its status alone. A log that could not be read is a note. Raises
    OutsideError if there was no answer for a quarter of an hour; the build goes on then.
    """
    follower = logs.begin(build)
    steps = _Steps(on_event)
    heard, failures = time.monotonic(), 0
    while True:
        try:
            with explaining(f"build {build.id}", but=passing()):
                build = builds.ask(clients, build.id)
            heard, failures = time.monotonic(), 0
        except passing() as error:
            failures += 1
            if time.monotonic() - heard > OUT_OF_TOUCH:
                raise OutsideError(
                    f"build {build.id}: there was no answer about it for {OUT_OF_TOUCH / 60:.0f} "
                    f"minutes ({error}); it goes on",
                    f"builder cloud logs {build.id}",
                ) from error
        steps.tell(build)
        ended = status(build) in ENDED and not failures
        if ended and not follower.ended:
            follower = follower.end()  # the log is complete now
        while ask := follower.ask:
            follower, lines = follower.told(logs.read(clients, build, ask))
            for line in lines:
                on_line(line)
            if follower.idle:
                break
        if ended and follower.done:
            return finished(build, follower.note)
        (sleep or builds.wait)(max(follower.pause, min(30.0, 2.0**failures) if failures else 0.0))


@dataclass
class _Steps:
    """Emits the start and the end of each step, by the messages about the build."""

    on_event: OnEvent
    told: dict[int, str] = field(default_factory=dict)
    running: dict[int, RunningStep] = field(default_factory=dict)
    waiting: RunningStep | None = None

    def tell(self, build: Any) -> None:
        queued = status(build) in ("PENDING", "QUEUED")
        if queued and not self.waiting:
            self.waiting = begin(WAITING, self.on_event)
        elif self.waiting and not queued:
            self.waiting.done()
            self.waiting = None
        for number, step in enumerate(build.steps):
            name, now = step.id or f"#{number}", step.status.name
            if self.told.get(number) == now:
                continue
            if now == "WORKING" or (now in ENDED and number not in self.running):
                self.running[number] = begin(name, self.on_event)
            if now in ENDED:
                running, seconds = self.running[number], None
                if step.timing.start_time and step.timing.end_time:
                    seconds = (step.timing.end_time - step.timing.start_time).total_seconds()
                running.error = None if now == GOOD else now.lower()
                running.done(seconds)
            self.told[number] = now
