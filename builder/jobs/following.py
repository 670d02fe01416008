"""Following a job's lines to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

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
