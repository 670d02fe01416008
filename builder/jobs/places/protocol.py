"""What every place that runs jobs can do, and how it tells about a job.

A place answers all calls with the values below, or raises a FactoryError whose text names the job
and the way out. Where each pool goes, and which environment each replica gets, is what `render`
shows and `create` does: the places differ most in that, so it has no call of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from builder.core.errors import OutsideError
from builder.jobs.lease import Lease
from builder.jobs.pools import Pool

ACTIVE = ("queued", "pending", "running", "cancelling", "paused", "updating")
"""The states of a job that has not ended. Source: aiplatform v1, JobState."""
WAITING = ("queued", "pending")
SUCCEEDED = ("succeeded", "partially_succeeded")
EXIT_CANCELLED = 143
EXIT_TIMEOUT = 124

Entry = TypeVar("Entry", covariant=True)
Request = TypeVar("Request", contravariant=True)

SERVICE = "service"
"""The replica's name of a line that the place itself wrote."""


class LostAnswer(OutsideError):  # noqa: N818 - nothing is wrong yet
    """The connection broke during `create`: the job may exist, or not."""


class AlreadyThere(Exception):  # noqa: N818 - no error
    """`create` found that another command has created the job. job: as it is now."""

    def __init__(self, job: JobStatus) -> None:
        super().__init__(job.name)
        self.job = job


class NoRoom(OutsideError):  # noqa: N818 - another place may have it
    """There are no machines for the job now, or no quota: another place or machine may have it."""


# --- a job ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica now. exit_code: None before its end. seconds: how long it ran."""

    name: str
    state: str
    exit_code: int | None = None
    restarts: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class TrialStatus:
    """One trial of a study that the place runs. value: the metric's last, None before the first."""

    id: str
    state: str
    parameters: Mapping[str, str]
    value: float | None
    seconds: float | None


@dataclass(frozen=True)
class JobStatus:
    """A job now. Times are UTC; a time is None before it was reached.

    name: the place's whole name of the job. kind: custom, or tuning for a study that the place
    runs. run: counts the submissions of the same job, from 1. output: where the job writes. code:
    the exit code of the replica that failed, None where none is known. no_room: it ended because
    there were no machines for it, or no quota. console: the address of the job's page. replicas: ()
    for a place that tells nothing about a single replica.
    """

    name: str
    display_name: str
    kind: str
    state: str
    region: str
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    error: str
    labels: Mapping[str, str]
    image: str
    output: str
    strategy: str
    pools: tuple[Pool, ...]
    trials: tuple[TrialStatus, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    run: int = 1
    code: int | None = None
    no_room: bool = False
    console: str = ""

    @property
    def id(self) -> str:
        """The last part of its name: on Vertex AI the number that the service gave it."""
        return self.name.rsplit("/", 1)[-1]

    @property
    def active(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in ACTIVE

    @property
    def waits(self) -> bool:
        """Whether it waits for its machines."""
        return self.state in WAITING

    @property
    def stays(self) -> bool:
        """Whether it is active, and nobody has asked it to end."""
        return self.active and self.state != "cancelling"

    @property
    def counts(self) -> bool:
        """Whether it stays or has succeeded: then the same description makes no second one."""
        return self.stays or self.state in SUCCEEDED

    @property
    def seconds(self) -> float | None:
        """How long it ran, None while it has not ended."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()

    @property
    def exit_code(self) -> int:
        """The job's: 0, that of the replica that failed where the place tells it, else 1."""
        if self.state in SUCCEEDED:
            return 0
        if self.state == "cancelled":
            return self.code or EXIT_CANCELLED
        if self.state == "expired":
            return EXIT_TIMEOUT
        return self.code or 1


def age(job: JobStatus) -> tuple[float, str]:
    """A key to sort jobs by: the oldest first, in the same order for every command."""
    return (job.created.timestamp() if job.created else 0.0, job.name)


# --- what it prints and uses ----------------------------------------------------------------------


@dataclass(frozen=True)
class LogLine:
    """One line of a job. replica: `chief-0`, or SERVICE. fields: of a line that is a JSON object;
    its text is then the object's message."""

    time: datetime
    replica: str
    severity: str
    text: str
    trial: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """What a replica used at a time. cpu: cores; memory: bytes; gpu: the share of time busy."""

    time: datetime
    replica: str
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None


class Log(Protocol[Entry]):
    """Entries that grow while a job runs."""

    def new(self) -> tuple[Entry, ...]:
        """The entries since the last call, by time; the first call returns all. Raises
        OutsideError."""


# --- the place ------------------------------------------------------------------------------------


class Place(Protocol[Request]):
    """A place that runs jobs. Request: a job that the place's own checks have passed.

    All calls raise OutsideError where the place refuses or cannot be reached.
    """

    @property
    def title(self) -> str:
        """What people call it: Vertex AI."""

    @property
    def on(self) -> str:
        """What the option --on calls it."""

    @property
    def where(self) -> str:
        """Where it looks for jobs, in words: a region of a project."""

    @property
    def lag(self) -> float:
        """How many seconds a job that was just created may be missing from its lists."""

    def name_of(self, request: Request) -> str:
        """The job's name in its description."""

    def key(self, request: Request) -> str:
        """A hash of everything that the job asks for; the place stores it with the job."""

    def render(self, request: Request, run: int = 1) -> dict[str, Any]:
        """What `create` sends, as plain values. Changes nothing."""

    def create(self, request: Request, run: int = 1) -> JobStatus:
        """Start the job. Raises LostAnswer where the job may have been created, AlreadyThere where
        the place itself refuses a second one with this key."""

    def lease(self, request: Request, run: int = 1) -> Lease | None:
        """The file in the folder that the job writes to, which one submission holds at a time; None
        for a job without a folder, or one that this machine cannot write to."""

    def same(self, request: Request) -> list[JobStatus]:
        """The jobs with the request's key, newest first, ended ones too."""

    def newest(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """The newest jobs, newest first; with `name` those of one description."""

    def find(self, name: str) -> JobStatus:
        """The job that a person means: its whole name, its id, its display name, or the name of a
        description, which means the newest job of it."""

    def get(self, name: str) -> JobStatus:
        """One job by its whole name."""

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the job to end; a job that has ended is left alone. Returns the job afterwards."""

    def log(self, job: JobStatus, replica: str | None = None) -> Log[LogLine]:
        """What the job prints; with `replica` only that one's lines."""

    def usage(self, job: JobStatus) -> Log[Sample]:
        """What its replicas use; empty for a place that does not tell."""
