"""Waiting for a job's end at any place, with its lines or without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from builder.core.errors import OutsideError
from builder.jobs.places.protocol import JobStatus, LogLine, Place

POLL_SECONDS = 10.0


def follow(
    place: Place[Any],
    job: JobStatus,
    tell: Callable[[LogLine], None],
    *,
    replica: str | None = None,
    pause: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> JobStatus:
    """Tell every line until the job has ended; lines that come a little later are told, too.

    replica: only that one's lines. pause: waits between two looks. Returns the job as it ended.
    """
    log = place.log(job, replica)
    while True:
        job = place.get(job.name)
        for line in log.new():
            tell(line)
        pause()
        if not job.active:
            for line in log.new():
                tell(line)
            return job


def wait(
    place: Place[Any],
    job: JobStatus,
    *,
    poll: float = POLL_SECONDS,
    timeout: float | None = None,
    on_look: Callable[[JobStatus], None] | None = None,
) -> JobStatus:
    """Look at the job every `poll` seconds until it has ended.

    timeout: the most seconds to wait, None for no limit. on_look: gets the job each time. Raises
    OutsideError after the timeout.
    """
    began = time.monotonic()
    while True:
        job = place.get(job.name)
        if on_look is not None:
            on_look(job)
        if not job.active:
            return job
        if timeout is not None and time.monotonic() - began + poll > timeout:
            raise OutsideError(
                f"{job.display_name} is still {job.state} after {timeout:.0f} s",
                f"builder job wait {job.id} --on {place.on}",
            )
        time.sleep(poll)
