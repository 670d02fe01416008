"""Following a build to its end: its status and its log, every line once.

A log that cannot be read changes nothing about how the build went: its status alone counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import googleapi
from builder.cloudbuild import builds
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.outcome import ENDED, GOOD, Outcome, outcome, status
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, StepDone, StepStarted

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

PATIENCE = 900.0
"""Seconds without an answer about a build, after which it is no longer followed."""
PAUSE = 1.0
"""Seconds between two looks at a build."""
QUIET = 3
"""Reads without a new entry, after the end of the build, that end a log."""
LOGGING_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
"""gcloud's own variable for another endpoint of Cloud Logging."""


def watch(clients: Clients, build: Build, on_line: Callable[[str], object]) -> Outcome:
    """Follow a build to its end. on_line: gets every line of its log.

    How the build went comes from its status alone. A log that could not be read is a note. Raises
    OutsideError if there was no answer for a quarter of an hour; the build goes on then.
    """
    log = _Log(*_begun(clients, build))
    while True:
        build = _now(clients, build)
        ended = status(build) in ENDED
        for line in log.read(ended):
            on_line(line)
        if ended and (log.quiet >= QUIET or log.note):
            return outcome(build, log.note)
        builds.wait(PAUSE)


def watch_all(
    clients: Clients, started: Mapping[str, Build], on_event: OnEvent
) -> dict[str, Outcome]:
    """Follow several builds to their end, by their status. started: by what each one builds.

    on_event: gets a step for each build, and what it does at the moment. Raises as `watch`.
    """
    done: dict[str, Outcome] = {}
    doing_now: dict[str, str] = {}
    begun = {name: RunningStep(name, on_event) for name in started}
    for name in started:
        on_event(StepStarted(name))
    while len(done) < len(started):
        for name in [name for name in started if name not in done]:
            build = _now(clients, started[name])
            if status(build) in ENDED:
                done[name] = ended = outcome(build)
                error = None if ended.status == GOOD else ended.short
                on_event(StepDone(name, begun[name].seconds, detail=ended.short, error=error))
            elif doing_now.get(name) != (doing := _doing(build)):
                doing_now[name] = doing
                begun[name].log(doing)
            builds.wait(PAUSE)  # as many requests a second as for one build: they have a quota
    return {name: done[name] for name in started}


def _doing(build: Build) -> str:
    """Return the steps of a build that run, or its status where none does."""
    running = [step.id for step in build.steps if step.status.name == "WORKING"]
    return ", ".join(filter(None, running)) or status(build)


def _now(clients: Clients, build: Build) -> Build:
    try:
        return builds.get(clients, build.id, PATIENCE)
    except OutsideError as error:
        if not isinstance(error.__cause__, googleapi.transient_errors()):
            raise
        what = f"{error.message}; the build goes on"
        raise OutsideError(what, f"builder cloud logs {build.id}") from error


@dataclass
class _Log:
    entries: googleapi.LogEntries
    note: str
    """Why it is not read any more, "" where it is."""
    quiet: int = 0
    """Reads in a row without a new entry."""

    def read(self, ended: bool) -> list[str]:
        """Return the lines that are new. ended: the build has ended, so its log is complete."""
        from google.api_core.exceptions import ClientError

        lines: list[str] = []
        try:
            if not self.note:
                lines = [googleapi.entry_payload(entry)[0] for entry in self.entries.read()]
        except ClientError as error:
            self.note = f"Cloud Logging may not be read (HTTP {error.code})"
        except googleapi.transient_errors() as error:
            self.note = f"Cloud Logging could not be read ({error})" if ended else ""
        self.quiet = 0 if lines else self.quiet + ended
        return lines


def _begun(clients: Clients, build: Build) -> tuple[googleapi.LogEntries, str]:
    from google.cloud.devtools.cloudbuild_v1.types import BuildOptions

    conditions = (
        f'logName="projects/{clients.project}/logs/cloudbuild"',
        'resource.type="build"',
        f'resource.labels.build_id="{build.id}"',
    )
    host = os.environ.get(LOGGING_VARIABLE, "").rstrip("/")
    session = googleapi.session(clients.credentials)
    entries = googleapi.LogEntries(session, host, clients.project, conditions)
    mode = BuildOptions.LoggingMode(build.options.logging)
    elsewhere = mode in (BuildOptions.LoggingMode.NONE, BuildOptions.LoggingMode.GCS_ONLY)
    note = f"its log is not in Cloud Logging (logging: {mode.name}): {build.log_url}"
    return entries, note if elsewhere else ""
