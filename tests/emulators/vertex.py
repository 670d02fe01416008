"""Loopback Vertex AI over REST: the job service, with Cloud Logging and buckets.

The messages are the product's own (google.cloud.aiplatform_v1). A `Script` says what jobs do. As
the service does, answers name the project by its number, and lists come in pages.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.jobs.backends.vertex.settings import JobSettings
from tests.clock import until
from tests.emulators import google
from tests.emulators.google import Refused
from tests.emulators.web import LoopbackServer, answering
from tests.lazy import Lazy

if TYPE_CHECKING:
    from google.cloud import aiplatform_v1 as api
else:  # 1,200 modules
    api = Lazy("google.cloud.aiplatform_v1")

PROJECT = "loopback-project"
NUMBER = "123456789012"
ENDED = frozenset(f"JOB_STATE_{state}" for state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))
AnyJob = "api.CustomJob | api.HyperparameterTuningJob"


@dataclass
class Faults(google.Faults):
    """What goes wrong, set by a test at any time.

    refusal: an answer to every create. list_lag: so many lists do not show a job that is new. age:
    what a replica prints was said so long ago.
    """

    list_lag: int = 0
    refusal: Refused | None = None
    age: timedelta = timedelta()


# --- carrying jobs out ----------------------------------------------------------------------------

Tell = Callable[[str, str], None]
"""What a replica prints is told by: its name in the service's words (workerpool0-0), the text."""


@dataclass
class Script:
    """What each job does: the lines of its replicas, its exit code, and of a trial its result."""

    lines: tuple[tuple[str, str], ...] = (("workerpool0-0", "step 1"), ("workerpool0-0", "done"))
    code: int = 0
    wait: threading.Event | None = None
    metric: Callable[[Mapping[str, Any]], float] | None = None

    def run(self, tell: Tell, cancelled: threading.Event) -> int:
        for replica, text in self.lines:
            tell(replica, text)
        while self.wait and not self.wait.wait(0.005) and not cancelled.is_set():
            pass
        return 143 if cancelled.is_set() else self.code


# --- the service ----------------------------------------------------------------------------------


def kind_of(collection: str) -> Any:
    """Return the message of a collection of jobs."""
    return api.CustomJob if collection == "customJobs" else api.HyperparameterTuningJob


class JobService(google.Service):
    """Jobs of one project. page: how many of them a list shows at once."""

    page = 2
    entries_page = 50

    def __init__(self, executor: Script) -> None:
        super().__init__(Faults())
        self.executor = executor
        self.jobs: dict[str, AnyJob] = {}
        self.buckets: dict[str, tuple[str, str]] = {}
        self.cancels: dict[str, threading.Event] = {}
        self.unseen: dict[str, int] = {}
        self.workers = ThreadPoolExecutor(4)
        self._numbers = random.Random(7)

    def create(self, parent: str, collection: str, job: Any) -> AnyJob:
        """Accept a job; what the service refuses is refused with fewer words."""
        if self.faults.refusal:
            raise self.faults.refusal
        match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)", parent)
        if not match or match[1] not in (PROJECT, NUMBER):
            raise Refused(403, "PERMISSION_DENIED", f"Permission denied on resource {parent}")
        spec = job.job_spec if collection == "customJobs" else job.trial_job_spec
        pools = [pool for pool in spec.worker_pool_specs if pool.replica_count]
        machines = [pool.machine_spec for pool in pools]
        if (
            not 0 < len(job.display_name) <= 128
            or not pools
            or not all(pool.container_spec.image_uri for pool in pools)
            or any(bool(item.accelerator_type) != bool(item.accelerator_count) for item in machines)
        ):
            raise Refused(400, "INVALID_ARGUMENT", "a field of the job is not valid")
        with self.lock:
            number = str(self._numbers.randrange(10**17, 10**18))
            job.name = f"projects/{NUMBER}/locations/{match[2]}/{collection}/{number}"
            job.state = api.JobState.JOB_STATE_QUEUED
            job.create_time = datetime.now(UTC)
            self.jobs[number] = job
            self.unseen[number] = self.faults.list_lag
            self.cancels[number] = threading.Event()
        if not self.faults.stay_queued:
            self.workers.submit(self._carry_out, number)
        return job

    def _carry_out(self, number: str) -> None:
        job, cancelled = self.jobs[number], self.cancels[number]
        with self.lock:
            if job.state.name in ENDED:
                return
            job.state, job.start_time = api.JobState.JOB_STATE_RUNNING, datetime.now(UTC)
        if isinstance(job, api.CustomJob):
            code = self.executor.run(self._teller(number), cancelled)
        else:
            code = self._trials(number, job, cancelled)
        with self.lock:
            job.end_time = datetime.now(UTC)
            end = "CANCELLED" if cancelled.is_set() else "FAILED" if code else "SUCCEEDED"
            job.state = f"JOB_STATE_{end}"
            if end == "FAILED":
                job.error.message = (
                    f"The replica workerpool0-0 exited with a non-zero status of {code}. "
                    "To find out more about why your job exited please check the logs. "
                )

    def _trials(
        self, number: str, job: api.HyperparameterTuningJob, cancelled: threading.Event
    ) -> int:
        chance, failed = random.Random(number), 0
        for index in map(str, range(1, job.max_trial_count + 1)):
            if cancelled.is_set():
                break
            began = datetime.now(UTC)
            chosen = {
                spec.parameter_id: _suggest(spec, chance) for spec in job.study_spec.parameters
            }
            code = self.executor.run(self._teller(number, index), cancelled)
            failed += bool(code)
            trial = api.Trial(id=index, start_time=began, end_time=datetime.now(UTC))
            trial.state = "INFEASIBLE" if code else "SUCCEEDED"
            trial.parameters = [{"parameter_id": name, "value": chosen[name]} for name in chosen]
            if self.executor.metric and not code:
                trial.final_measurement = {"metrics": [{"value": self.executor.metric(chosen)}]}
            with self.lock:
                job.trials.append(trial)
        return int(failed > (job.max_failed_trial_count or job.max_trial_count - 1))

    def _teller(self, number: str, trial: str | None = None) -> Tell:
        def tell(replica: str, text: str) -> None:
            labels = {"ml.googleapis.com/trial_id": trial} if trial else {}
            payload = contract.fields(text) or {"message": text}  # a line of JSON is taken apart
            severity = payload.pop("severity", "INFO")
            now = datetime.now(UTC)
            with self.lock:
                who = {"job_id": number, "task_name": replica, "project_id": PROJECT}
                entry = {
                    "logName": f"projects/{PROJECT}/logs/{replica}", "labels": labels,
                    "resource": {"type": "ml_job", "labels": who},
                    "severity": severity, "jsonPayload": payload,
                    "insertId": f"{number}-{len(self.entries)}",
                    "timestamp": (now - self.faults.age).isoformat(),
                    "receiveTimestamp": now.isoformat(),
                }  # fmt: skip
                self.entries.append(entry)

        return tell

    def find(self, name: str) -> Any:
        kind = "customJobs" if "/customJobs/" in name else "hyperparameterTuningJobs"
        with self.lock:
            job = self.jobs.get(name.rsplit("/", 1)[-1])
            if job is None or kind not in job.name:
                raise Refused(404, "NOT_FOUND", f"The {kind[:-1]} does not exist: {name}")
            return job

    def cancel(self, name: str) -> None:
        job = self.find(name)
        with self.lock:
            if job.state.name in ENDED:
                raise Refused(400, "FAILED_PRECONDITION", "The job has ended")
            number = job.name.rsplit("/", 1)[-1]
            queued = job.state == api.JobState.JOB_STATE_QUEUED
            job.state = "JOB_STATE_CANCELLED" if queued else "JOB_STATE_CANCELLING"
            self.cancels[number].set()

    def listed(self, parent: str, kind: Any, query: dict[str, str]) -> tuple[list[Any], str]:
        """Return a page of jobs, and the token of the next."""
        text, token = query.get("filter", ""), query.get("pageToken")
        wanted = [_condition(part) for part in re.split(r"\s+AND\s+", text) if part]
        region = parent.split("/")[3]
        with self.lock:
            late = {number for number, left in self.unseen.items() if left > 0}
            if not token:
                self.unseen = {number: left - 1 for number, left in self.unseen.items()}
            matching = [
                each
                for number, each in self.jobs.items()
                if isinstance(each, kind)
                and number not in late
                and f"/locations/{region}/" in each.name
                and all(test(each) for test in wanted)
            ]
            matching.sort(key=lambda each: each.create_time, reverse=True)
            start = int(token or 0)
            end = start + self.page
            return matching[start:end], str(end) if end < len(matching) else ""

    def tell(self, number: str, replica: str, text: str) -> None:
        """Another line of a job's replica arrives."""
        self._teller(number)(replica, text)


def _condition(text: str) -> Callable[[Any], bool]:
    match = re.fullmatch(r'\s*(?:labels\.([\w-]+)|display_name)\s*=\s*"([^"]*)"\s*', text)
    if not match:
        raise Refused(400, "INVALID_ARGUMENT", f"Invalid filter: {text}")
    label, value = match.groups()
    if label:
        return lambda job: job.labels.get(label) == value
    return lambda job: job.display_name == value


def _suggest(each: Any, chance: random.Random) -> Any:
    if "double_value_spec" in each:
        spec = each.double_value_spec
        return round(chance.uniform(spec.min_value, spec.max_value), 6)
    if "integer_value_spec" in each:
        return chance.randint(each.integer_value_spec.min_value, each.integer_value_spec.max_value)
    if "discrete_value_spec" in each:
        return chance.choice(list(each.discrete_value_spec.values))
    return chance.choice(list(each.categorical_value_spec.values))


# --- REST -----------------------------------------------------------------------------------------

_PATH = re.compile(
    r"/v1/((projects/[^/]+/locations/[^/]+)/(customJobs|hyperparameterTuningJobs)(?:/\d+)?)(:cancel)?"
)


class _Handler(google.Handler):
    service: JobService

    def route(self, path: str) -> None:
        if bucket := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            self._bucket(bucket[1])
        elif match := _PATH.fullmatch(path):
            name, parent, collection, cancel = match.groups()
            self._jobs(name, parent, collection, cancel is not None)
        else:
            super().route(path)

    def _jobs(self, name: str, parent: str, collection: str, cancel: bool) -> None:
        service, kind = self.service, kind_of(collection)
        if cancel:
            service.cancel(name)
            self.json({})
        elif name[-1].isdigit():
            self.message(service.find(name))
        elif self.command == "GET":
            jobs, token = service.listed(parent, kind, self.query)
            with service.lock:
                rows = [json.loads(kind.to_json(job, use_integers_for_enums=False)) for job in jobs]
            self.json({collection: rows, "nextPageToken": token})
        else:
            job = service.create(parent, collection, self.read(kind))
            if self.created():
                self.message(job)

    def _bucket(self, name: str) -> None:
        if name not in self.service.buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        location, kind = self.service.buckets[name]
        known = {"kind": "storage#bucket", "id": name, "name": name}
        self.json({**known, "location": location.upper(), "locationType": kind})


@dataclass
class Loopback:
    """The running service: its state, and where it listens."""

    service: JobService
    url: str

    @property
    def where(self) -> JobSettings:
        """The settings that lead the factory here."""
        return JobSettings(
            project=PROJECT, region="us-central1", endpoint=self.url, logging_endpoint=self.url
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables that do the same."""
        where = self.where.model_dump()
        return {f"BUILDER_JOB_{name.upper()}": value for name, value in where.items()}

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until every job has ended."""
        until(lambda: all(job.state.name in ENDED for job in self.service.jobs.values()), seconds)


@contextlib.contextmanager
def running(executor: Script | None = None) -> Iterator[Loopback]:
    """The service on a free port of this machine, until the block ends."""
    service = JobService(executor or Script())
    handler = type("Handler", (_Handler,), {"service": service})
    try:
        with answering(LoopbackServer(("127.0.0.1", 0), handler)) as server:
            yield Loopback(service, f"http://127.0.0.1:{server.server_port}")
    finally:
        for event in service.cancels.values():
            event.set()
        service.workers.shutdown(wait=True)
