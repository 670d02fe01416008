"""What a backend does with jobs, and the values in which it answers.

A backend is where jobs run: this machine, Vertex AI, a cluster of Kubernetes. What has to be known
before one is connected is a `BackendKind` (builder/core/backends.py), whose `open` returns one of
these. `Backend` is what a command that asks about a job needs; `RemoteBackend` is one that jobs are
submitted to.

All calls raise OutsideError where the backend refuses or cannot be reached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from builder import contract
from builder.core.errors import OutsideError
from builder.jobs.description.job import Job
from builder.jobs.machines import Pool
from builder.jobs.ready import JobImage, Ready

ACTIVE = ("queued", "pending", "running", "cancelling", "paused", "updating")
"""The states of a job that has not ended. Source: aiplatform v1, JobState."""
SUCCEEDED = ("succeeded", "partially_succeeded")
EXIT_CANCELLED = 143
EXIT_TIMEOUT = 124
SERVICE = "service"
"""The replica's name of a line that the backend itself wrote."""


class UnansweredError(OutsideError):
    """The service does not answer now: it cannot be reached, or is too busy. It may later."""


class LostAnswer(UnansweredError):
    """The connection broke during `submit`: the job may exist, or not."""


class GoneError(OutsideError):
    """The job that is asked for is not there, or not any more."""


class AlreadySubmitted(Exception):
    """`submit` met the same job, which another command has created. job: as it is now."""

    def __init__(self, job: JobStatus) -> None:
        super().__init__(job.name)
        self.job = job


# --- a job ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplicaStatus:
    name: str
    state: str
    exit_code: int | None = None
    """None before its end."""
    restarts: int = 0
    seconds: float = 0.0
    """How long it ran."""
    cpu: float | None = None
    """The processors that it uses; None where that is not known."""
    memory: int | None = None
    """The bytes that it uses; None where that is not known."""

    gpus: int = 0
    """How many GPUs it has, as far as the backend tells."""
    gpu_percent: float | None = None
    """The share of time in which its GPUs computed, 0 to 100; None where nobody told it."""
    gpu_memory: int | None = None
    """The bytes that it uses on all of its GPUs; None where nobody told it."""

    @property
    def uses(self) -> str:
        words = []
        if self.cpu is not None and self.memory is not None:
            words.append(f"{self.cpu:.1f} CPUs, {self.memory / 2**30:.1f} GiB")
        if self.gpu_percent is not None:
            words.append(f"GPU {self.gpu_percent:.0f} %")
        if self.gpu_memory is not None:
            words.append(f"{self.gpu_memory / 2**30:.1f} GiB of GPU memory")
        if self.gpus and self.state == "running" and self.gpu_percent is None:
            words.append("GPU: not told")
        return ", ".join(words)


@dataclass(frozen=True)
class TrialStatus:
    id: str
    state: str
    parameters: Mapping[str, str]
    value: float | None
    """The metric's last, None before the first."""
    seconds: float | None
    """How long it ran, None before its end."""


@dataclass(frozen=True)
class JobStatus:
    """A job now. Times are UTC; a time is None before it was reached."""

    name: str
    """The backend's whole name of the job."""
    display_name: str
    state: str
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    error: str
    """One line about what went wrong, or what the job waits for."""
    image: str
    output: str
    """Where the job writes."""
    pools: tuple[Pool, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    trials: tuple[TrialStatus, ...] = ()
    """Of a study that the service runs."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """() for a backend that does not report single replicas."""
    run: int = 1
    """Counts the runs of one description, from 1."""
    attempt: int = 1
    """The submissions of one run, where the backend counts them."""
    failed_code: int | None = None
    """The exit code of the replica that failed, None where it is not known."""
    console: str = ""
    """The address of the job's page."""

    @property
    def id(self) -> str:
        """Return the last part of its name: on Vertex AI the number that the service gave it."""
        return self.name.rsplit("/", 1)[-1]

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def reusable(self) -> bool:
        """Tell whether the same description needs no second job: this one is on its way and nobody
        has cancelled it, or it has succeeded."""
        return self.state in SUCCEEDED or (self.active and self.state != "cancelling")

    @property
    def seconds(self) -> float | None:
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()

    @property
    def exit_code(self) -> int:
        """Return the job's exit code: 0, that of the replica that failed where it is known, 143
        for a cancelled job, 124 for one that exceeded its timeout, else 1."""
        if self.state in SUCCEEDED:
            return 0
        if self.state == "cancelled":
            return self.failed_code or EXIT_CANCELLED
        if self.state == "expired":
            return EXIT_TIMEOUT
        return self.failed_code or 1


def by_age(job: JobStatus) -> tuple[float, str]:
    """Return a key that sorts jobs, the oldest first, in the same order for every command."""
    return (job.created.timestamp() if job.created else 0.0, job.name)


# --- what it prints -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogLine:
    time: datetime
    replica: str
    """`chief-0`, or SERVICE."""
    severity: str
    text: str
    trial: str | None = None
    """Of a study that the service runs."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of a line that is a JSON object; its text is then the object's message."""

    @classmethod
    def printed(cls, when: datetime, replica: str, text: str) -> LogLine:
        """Return a line that a program printed; one with a JSON object has its fields."""
        fields = contract.fields(text)
        severity = str(fields.get("severity", "DEFAULT"))
        return cls(when, replica, severity, contract.words(text), fields=fields)

    @classmethod
    def stamped(cls, lines: Iterable[str], replica: str) -> Iterator[LogLine]:
        """Yield lines that begin with their time; another line is passed over."""
        for line in lines:
            stamp, _, text = line.partition(" ")
            with contextlib.suppress(ValueError):
                yield cls.printed(datetime.fromisoformat(stamp), replica, text)


OnLine = Callable[[LogLine], object]
"""A callback that gets each line of a job."""


class LogReader(Protocol):
    """The lines of a job, which grow while it runs."""

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time; the first call returns all."""

    def hold(self) -> None:
        """Lose no line from now on where the backend deletes what a replica printed."""
        return

    def latest(self) -> tuple[LogLine, ...]:
        """Return the last lines of what runs now, without those before: the newest steps are among
        them. () where a backend cannot do that cheaply."""
        return ()

    def rest(self) -> tuple[LogLine, ...]:
        """Return what is left of an ended job, also what its replicas print while they end."""
        return self.read()


# --- the backend ----------------------------------------------------------------------------------


class Backend(Protocol):
    """Where jobs run, for a command that asks about them."""

    @property
    def title(self) -> str:
        """Return what people call it: Vertex AI."""

    @property
    def name(self) -> str:
        """Return what the option --on calls it: vertex."""

    @property
    def location(self) -> str:
        """Return where it looks for jobs, in words: a region of a project, a namespace."""

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """Return the newest jobs, the newest first; with `name` those of one description."""

    def find(self, name: str) -> JobStatus:
        """Return the job that a person means: by its whole name, its id, its display name, or the
        name of a description, which means its newest job. Raises OutsideError where there is
        none."""

    def get(self, name: str) -> JobStatus:
        """Return one job by its whole name."""

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the job to end, and return it as it is then; one that has ended is left alone."""

    def logs(self, job: JobStatus) -> LogReader:
        """Return a reader of what the job prints."""


class RemoteBackend(Backend, Protocol):
    """A backend that jobs are submitted to.

    A submission is idempotent: the job's key, a hash of everything that the job asks for, stands in
    its labels or in its name, so that the same description finds the job that it has made
    (builder/jobs/submission.py). Capacity is not ours to look for: a queue or the service waits for
    it, and a refusal for want of machines or quota is an error that names the fix.
    """

    def check(self, job: Job, image: JobImage, targets: Mapping[str, str]) -> Ready:
        """Return the job with its machines, checked without asking anybody.

        targets: the accelerator of each target of the project, so that a refusal names one. Raises
        InputError with every problem, each at its line of the job's file.
        """

    def preflight(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:
        """Ask the service itself whether it would take this submission; nothing is created.

        Returns what `submit` would send. Raises InputError, OutsideError where it would not.
        """

    def key(self, ready: Ready) -> str:
        """Return a hash of everything that the job asks for: 12 hexadecimal digits."""

    def render(self, ready: Ready) -> dict[str, Any]:
        """Return what a first `submit` sends, as plain values; nobody is asked."""

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:
        """Create the job once; a call that creates something is never repeated here.

        run: from 2 on, the job is run again in a folder of its own. attempt: of this run. Raises
        LostAnswer where the job may have been created, AlreadySubmitted where the backend itself
        refuses a second one.
        """

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        """Return the jobs with this key, the newest first, ended ones too."""


def refreshed(backend: Backend, job: JobStatus) -> JobStatus:
    """Return the job as it is now. One that was there, and is gone, somebody has cancelled."""
    try:
        return backend.get(job.name)
    except GoneError:
        error = job.error if job.state == "cancelling" else "somebody deleted it"
        return replace(job, state="cancelled", error=error)
    except OutsideError:
        if job.state not in ("cancelling", "cancelled"):
            raise
    return replace(job, state="cancelled")
