"""Submitting a job to a place: once, whatever breaks on the way.

The place stores a hash of all that the job asks for, its key. A command that finds a job with that
key, active or done, creates no second one. That holds where the connection broke before the answer
came, and for two commands at once: they hold a lease in the job's folder (builder/jobs/lease.py).

A job that names alternatives has one key for all ways to run it. They are tried one after the
other: the next one only when the one before was refused, or has ended, for want of machines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from builder.core import files
from builder.core.errors import FactoryError, OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import Passing, Retry
from builder.jobs.lease import EXPIRY, Claim, Held, Lease
from builder.jobs.places.protocol import (
    SUCCEEDED,
    AlreadyThere,
    JobStatus,
    LostAnswer,
    NoRoom,
    Place,
    age,
)

Request = TypeVar("Request")
CREATE = Retry(attempts=3, first=0.5)
LOOK = 5.0
"""Seconds between two looks at a job that waits for its machines, or at another's lease."""
CANCELLED_WITHIN = 600.0
"""Seconds in which a job that is cancelled has to end before the next one is tried."""

Say = Callable[[str], None]
_Job = tuple[JobStatus, Place[Any]]
"""A job with its place."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a job. told: in words, with its place. patience: seconds that it may wait for
    its machines where there is another way. usd: its price an hour, None where it is not known."""

    place: Place[Any]
    request: Any
    told: str = ""
    patience: float = 0.0
    usd: float | None = None


@dataclass(frozen=True)
class Tried:
    """A way to run a job that had no room. why: the place's words."""

    told: str
    why: str


@dataclass(frozen=True)
class Submitted:
    """The job, and whether this command created it; `why`: what it found where it did not. place:
    where it is; tried: what had no room before."""

    job: JobStatus
    created: bool
    why: str = ""
    place: Place[Any] | None = None
    tried: tuple[Tried, ...] = ()


OnTried = Callable[[tuple[Tried, ...]], None]


def untold(tried: tuple[Tried, ...]) -> None:
    """The callback of a caller that tells nobody."""


def submit(
    place: Place[Request],
    request: Request,
    *,
    locks: Path,
    again: bool = False,
    on_event: OnEvent = ignore,
) -> Submitted:
    """Send a job to one place, unless it has the job already: `submit_first` of one."""
    return submit_first([Candidate(place, request)], locks=locks, again=again, on_event=on_event)


def submit_first(
    candidates: Sequence[Candidate],
    *,
    locks: Path,
    again: bool = False,
    on_tried: OnTried = untold,
    on_event: OnEvent = ignore,
) -> Submitted:
    """Send a job to the first candidate that has room, unless one of the places has it already.

    A job that is active or has succeeded is found. One that failed, expired or was cancelled is
    created anew with the same job directory, where the trainer finds its checkpoints. again: run it
    a second time, with a directory of its own. locks: a folder that this machine's commands share;
    it also remembers what they sent, because a place's list may lag. on_tried: gets what had no
    room, each time that it grows.

    Raises NoRoom where no candidate has room, OutsideError.
    """
    first = candidates[0]
    key = first.place.key(first.request)
    lock = locks / f"submit-{key}.lock"
    with step(f"submit {first.place.name_of(first.request)}", on_event) as running:
        with files.locked(lock):
            names = _Sent(lock.with_suffix(".sent"))
            found = _Submission(candidates, key, names, running.log, on_tried).run(again)
        running.cached = not found.created
    return found


@dataclass(frozen=True)
class _Sent:
    """The names of the jobs with one key that this machine has sent, a line each."""

    file: Path

    def names(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").split("\n") if self.file.is_file() else []

    def add(self, job: JobStatus) -> None:
        if job.name not in (names := self.names()):
            files.write(self.file, "\n".join([*names, job.name]))


@dataclass(frozen=True)
class _Submission:
    """One submission of a job. sent: what this machine sent before."""

    candidates: Sequence[Candidate]
    key: str
    sent: _Sent
    say: Say
    on_tried: OnTried

    # --- what is there already ---

    def run(self, again: bool) -> Submitted:
        before = self._before()
        run = max((one.run for one, _ in before), default=1)
        if again and before:
            run += 1
        same = [one for one in before if one[0].run == run]
        if staying := [one for one in same if one[0].stays]:
            oldest = min(staying, key=lambda one: age(one[0]))  # of two at once, the one kept
            return self._found(*oldest, run)
        for job, place in same:
            if job.state in SUCCEEDED:
                return self._done(job, place, f"it {job.state.replace('_', ' ')} before")
        known = {one.name for one, _ in before}
        return self._try(list(self.candidates), run, known, ())

    def _before(self) -> list[_Job]:
        """The jobs with this key, each with its place: those that are listed, and those that this
        machine remembers."""
        listed = self._listed()
        names = {one.name for one, _ in listed}
        for name in self.sent.names():
            for place in self._places if name not in names else ():
                with contextlib.suppress(OutsideError):
                    listed.append((place.get(name), place))
                    break
        return listed

    def _listed(self) -> list[_Job]:
        return [(job, one.place) for one in self._once for job in one.place.same(one.request)]

    @property
    def _places(self) -> list[Place[Any]]:
        return [one.place for one in self._once]

    @property
    def _once(self) -> list[Candidate]:
        """A candidate for each place."""
        return list({one.place.where: one for one in self.candidates}.values())

    def _found(self, job: JobStatus, place: Place[Any], run: int) -> Submitted:
        """A job that is active. Where it may wait in vain, the ways after its own are tried."""
        why = f"it is {job.state} already"
        rest = self._after(job, place)
        if not (job.waits and rest):
            return self._done(job, place, why)
        mine, *others = rest
        ended = self._settled(mine, job)
        if ended is None:
            tried = self._tell((), mine, job.error or f"it waited {mine.patience / 60:g} min")
            return self._try(others, run, {job.name}, tried)
        return self._done(ended, place, why)

    def _after(self, job: JobStatus, place: Place[Any]) -> list[Candidate]:
        """The way in which a job runs and those after it; [] where it is none of them, or the
        last."""
        for index, one in enumerate(self.candidates[:-1]):
            choice = getattr(one.request, "choice", "")
            if choice and choice in job.labels.values() and one.place.where == place.where:
                return list(self.candidates[index:])
        return []

    def _done(
        self, job: JobStatus, place: Place[Any], why: str, tried: tuple[Tried, ...] = ()
    ) -> Submitted:
        self.sent.add(job)
        return Submitted(job, False, why, place, tried)

    # --- trying ---

    def _try(
        self, left: list[Candidate], run: int, known: set[str], tried: tuple[Tried, ...]
    ) -> Submitted:
        """Create the job in the first way that has room."""
        for index, one in enumerate(left):
            try:
                found = self._create(one, run, known)
            except NoRoom as error:
                if len(self.candidates) == 1:
                    raise
                tried = self._tell(tried, one, error.message)
                continue
            if not found.created or index == len(left) - 1:
                return replace(found, tried=tried)
            known = known | {found.job.name}
            settled = self._settled(one, found.job)
            if settled is not None:
                return replace(found, job=settled, tried=tried)
            now = one.place.get(found.job.name)
            waited = f"it waited {one.patience / 60:g} min for its machines"
            tried = self._tell(tried, one, now.error or waited)
        raise NoRoom(
            f"none of {len(self.candidates)} ways to run it has room: {tried[-1].why}",
            "builder job why tells what was tried; run the same command later",
        )

    def _tell(self, tried: tuple[Tried, ...], one: Candidate, why: str) -> tuple[Tried, ...]:
        found = (*tried, Tried(one.told, " ".join(why.split())))
        self.say(f"{one.told}: no room: {found[-1].why}")
        self.on_tried(found)
        return found

    def _settled(self, one: Candidate, job: JobStatus) -> JobStatus | None:
        """The job once it has its machines, or has ended otherwise than for want of them. None
        where it has no room: then it has ended, so that no two are there at once."""
        waited, now = 0.0, one.place.get(job.name)
        while now.waits and waited < one.patience:
            time.sleep(LOOK)
            waited += LOOK
            now = one.place.get(job.name)
        if not now.waits:
            return None if now.no_room else now
        self.say(f"{one.told}: it has waited {one.patience / 60:g} min: it is cancelled")
        one.place.cancel(now)
        waited = 0.0
        while (now := one.place.get(job.name)).active:
            if waited >= CANCELLED_WITHIN:
                raise OutsideError(
                    f"{now.display_name} was cancelled and is still {now.state}: no other one is "
                    "tried while it may run",
                    "run the same command later",
                )
            time.sleep(LOOK)
            waited += LOOK
        return None if now.state == "cancelled" or now.no_room else now

    # --- creating ---

    def _create(self, one: Candidate, run: int, known: set[str]) -> Submitted:
        """Create one job; where another command was faster, its job is the one."""
        lease, held = one.place.lease(one.request, run), None
        if lease is not None:
            try:
                held, other = self._claimed(lease, run, known)
            except OutsideError as error:
                self.say(f"without a lease in the job's folder: {error.message}")
                other = None
            if other is not None:
                return self._done(*other, "another command made it at the same moment")
        try:
            made = _create(one.place, one.request, run, known, self.say)
        except AlreadyThere as found:
            return self._done(found.job, one.place, "another command made it at the same moment")
        except FactoryError as error:
            if lease and held and not isinstance(error, LostAnswer):  # there is surely no job
                _quietly(lambda: lease.drop(held))
            raise
        self.sent.add(made)
        if lease and held:  # the list tells it, too, a little later
            _quietly(lambda: lease.take(held, Claim(self.key, run, made.name)))
        return self._kept(made, one, run)

    def _claimed(self, lease: Lease, run: int, known: set[str]) -> tuple[Held | None, _Job | None]:
        """The lease, or the job that another command created meanwhile."""
        mine, unchanged, waited = Claim(self.key, run), 0.0, 0.0
        found = lease.read()
        while waited < CANCELLED_WITHIN:
            claim = found.claim if found else None
            if claim is None or (claim.key, claim.run) != (self.key, run):
                claim = None  # another job's, long gone: one folder for two jobs is no mistake here
            elif claim.job and claim.job not in known and (other := self._named(claim.job)):
                return None, other
            free = claim is None or claim.job or unchanged >= EXPIRY
            if free and (held := lease.take(found, mine)):
                return held, None if claim is None or claim.job else self._unseen(run, known)
            self.say("another command is about to create it: waiting")
            time.sleep(LOOK)
            waited += LOOK
            before, found = found, lease.read()
            unchanged = unchanged + LOOK if found == before else 0.0
        raise OutsideError("others take it again and again", "run the same command later")

    def _unseen(self, run: int, known: set[str]) -> _Job | None:
        """A job that another command created before it could name it in the lease."""
        found = [(job, place) for job, place in self._listed() if job.run == run]
        new = [one for one in found if one[0].name not in known and one[0].stays]
        return min(new, key=lambda one: age(one[0]), default=None)

    def _named(self, name: str) -> _Job | None:
        """A job that is active or has succeeded, by its whole name."""
        for place in self._places:
            with contextlib.suppress(OutsideError):
                job = place.get(name)
                return (job, place) if job.counts else None
        return None

    def _kept(self, made: JobStatus, one: Candidate, run: int) -> Submitted:
        """The job, or the oldest of those that were created at the same moment without a lease."""
        rivals = [
            (job, place)
            for job, place in self._listed()
            if job.run == run and (job.stays or job.name == made.name)
        ]
        winner = min(rivals, key=lambda two: age(two[0]), default=(made, one.place))
        if winner[0].name == made.name:
            return Submitted(made, True, "", one.place)
        self.say(f"{winner[0].id} was made at the same moment: {made.id} is cancelled")
        one.place.cancel(made)
        return self._done(*winner, "another command made it at the same moment")


def _quietly(call: Callable[[], object]) -> None:
    """Call what may fail: a lease that is not dropped expires."""
    with contextlib.suppress(OutsideError):
        call()


def _create(
    place: Place[Request],
    request: Request,
    run: int,
    known: set[str],
    say: Say,
) -> JobStatus:
    """Create the job. Where the answer got lost, look for the job before trying again: as long as
    a new job may be missing from the place's list. known: the names of the jobs before.

    Raises AlreadyThere for the job of another command, OutsideError.
    """
    lost = False

    def attempt() -> JobStatus:
        nonlocal lost
        try:
            return place.create(request, run)
        except AlreadyThere as found:
            if lost:  # ours, whose answer got lost
                return found.job
            raise
        except LostAnswer as error:
            lost = True
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
