"""Submitting a job to a place: once, whatever breaks on the way.

The place stores a hash of all that the job asks for, its key. A command that finds a job with that
key, active or done, creates no second one. That holds where the connection broke before the answer
came, and for two commands at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from builder.core import files
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import Passing, Retry
from builder.jobs.places.protocol import SUCCEEDED, JobStatus, LostAnswer, Place, age

Request = TypeVar("Request")
CREATE = Retry(attempts=3, first=0.5)


@dataclass(frozen=True)
class Submitted:
    """The job, and whether this command created it; `why`: what it found where it did not."""

    job: JobStatus
    created: bool
    why: str = ""


def submit(
    place: Place[Request],
    request: Request,
    *,
    locks: Path,
    again: bool = False,
    on_event: OnEvent = ignore,
) -> Submitted:
    """Send a job, unless the place has it already.

    A job that is active or has succeeded is found. One that failed, expired or was cancelled is
    created anew with the same job directory, where the trainer finds its checkpoints. again: run it
    a second time, with a directory of its own. locks: a folder that this machine's commands share;
    it also remembers what they sent, because a place's list may lag. Raises OutsideError.
    """
    lock = locks / f"submit-{place.key(request)}.lock"
    with step(f"submit {place.name_of(request)}", on_event) as running, files.locked(lock):
        sent = lock.with_suffix(".sent")
        names = sent.read_text(encoding="utf-8").split("\n") if sent.is_file() else []
        result = _submit(place, request, again, _remembered(place, names), running.log)
        if result.job.name not in names:
            files.write(sent, "\n".join([*names, result.job.name]))
        running.cached = not result.created
    return result


def _remembered(place: Place[Request], names: list[str]) -> list[JobStatus]:
    """The jobs of these names that the place still has."""
    found = []
    for name in names:
        with contextlib.suppress(OutsideError):
            found.append(place.get(name))
    return found


def _submit(
    place: Place[Request],
    request: Request,
    again: bool,
    sent: list[JobStatus],
    say: Callable[[str], None],
) -> Submitted:
    """sent: jobs with the same key that this machine has sent before."""
    listed = place.same(request)
    before = [*listed, *(one for one in sent if one.name not in {two.name for two in listed})]
    run = max((one.run for one in before), default=1)
    if again and before:
        run += 1
    same = [one for one in before if one.run == run]
    if running := [one for one in same if one.stays]:
        oldest = min(running, key=age)  # of two created at once, the one that is kept
        return Submitted(oldest, False, f"it is {oldest.state} already")
    for one in same:
        if one.state in SUCCEEDED:
            return Submitted(one, False, f"it {one.state.replace('_', ' ')} before")
    made = _create(place, request, run, {one.name for one in before}, say)
    rivals = [
        one
        for one in place.same(request)
        if one.run == run and (one.stays or one.name == made.name)
    ]
    winner = min(rivals, key=age, default=made)
    if winner.name != made.name:  # another machine sent the same job at the same moment
        say(f"{winner.id} was made at the same moment: {made.id} is cancelled")
        place.cancel(made)
        return Submitted(winner, False, "another command made it at the same moment")
    return Submitted(made, True)


def _create(
    place: Place[Request],
    request: Request,
    run: int,
    known: set[str],
    say: Callable[[str], None],
) -> JobStatus:
    """Create the job. Where the answer got lost, look for the job before trying again: as long as
    a new job may be missing from the place's list. known: the names of the jobs before."""

    def attempt() -> JobStatus:
        try:
            return place.create(request, run)
        except LostAnswer as error:
            cause = type(error.__cause__ or error).__name__
            say(f"the answer got lost ({cause}): looking whether the job was made")
            for pause in (0.0, *_looks(place.lag)):
                time.sleep(pause)
                new = [one for one in place.same(request) if one.name not in known]
                if new:
                    return min(new, key=age)
            raise Passing("the job was not made", final=error) from error

    return CREATE.run(attempt, say)


def _looks(lag: float) -> Iterator[float]:
    """Pauses between looks, each twice as long as the one before, for `lag` seconds in all."""
    pause, rest = 0.5, lag
    while rest > 0:
        yield min(pause, rest)
        rest, pause = rest - pause, 2 * pause
