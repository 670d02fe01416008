"""Following a build to its end: its status and its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from builder import googleapi
from builder.cloudbuild import builds, logs
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.outcome import ENDED, Outcome, outcome, status
from builder.core.errors import OutsideError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

PATIENCE = 900.0
"""Seconds without an answer about a build, after which it is no longer followed."""
PAUSE = 1.0
"""Seconds between two looks at a build."""


def watch(clients: Clients, build: Build, on_line: Callable[[str], object]) -> Outcome:
    """Follow a build to its end. on_line: gets every line of its log.

    How the build went comes from its status alone. A log that could not be read is a note. Raises
    OutsideError if there was no answer for a quarter of an hour; the build goes on then.
    """
    log = logs.begin(clients, build)
    while True:
        try:
            build = builds.get(clients, build.id, PATIENCE)
        except OutsideError as error:
            if not isinstance(error.__cause__, googleapi.transient_errors()):
                raise
            what = f"{error.message}; the build goes on"
            raise OutsideError(what, f"builder cloud logs {build.id}") from error
        ended = status(build) in ENDED
        for line in log.read(ended):
            on_line(line)
        if ended and log.complete:
            return outcome(build, log.note)
        builds.wait(PAUSE)
