"""Waiting for a job's end, with its lines or without."""

from __future__ import annotations

import time
from collections.abc import Callable

from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import Backend, JobStatus, LogLine

POLL_SECONDS = 10.0


def follow(
    backend: Backend,
    job: JobStatus,
    write: Callable[[LogLine], None],
    *,
    replica: str | None = None,
    pause: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> JobStatus:
    """Write every line until the job has ended; lines that come a little later are written, too.

    write: gets each line. replica: only that one's lines. pause: waits between two looks.
    """
    log = backend.logs(job, replica)
    while True:
        job = backend.get(job.name)
        for line in log.read():
            write(line)
        pause()
        if not job.active:
            for line in log.read():
                write(line)
            return job


def wait(
    backend: Backend,
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
        job = backend.get(job.name)
        if on_look is not None:
            on_look(job)
        if not job.active:
            return job
        if timeout is not None and time.monotonic() - began + poll > timeout:
            raise OutsideError(
                f"{job.display_name} is still {job.state} after {timeout:.0f} s",
                f"builder job wait {job.id} --on {backend.name}",
            )
        time.sleep(poll)
