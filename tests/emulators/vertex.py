"""Loopback Vertex AI: the job service (REST and gRPC), Cloud Logging, and buckets' locations.

The messages are the product's own (google.cloud.aiplatform_v1). A submitted job is really carried
out, by an `Executor`: a scripted one, or `builder.jobs.backends.local` on the engine, which is what
`local_executor` makes. As the service does, answers name the project by its number, lists come in
pages, and log entries may come late. Faults come on demand.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.cloud import aiplatform_v1 as api
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from tests.emulators import access
from tests.emulators.web import LoopbackServer

PROJECT = "loopback-project"
NUMBER = "123456789012"
REGION = "us-central1"
PACKAGE = "google.cloud.aiplatform.v1"
State = api.JobState
ENDED = (
    State.JOB_STATE_SUCCEEDED,
    State.JOB_STATE_FAILED,
    State.JOB_STATE_CANCELLED,
    State.JOB_STATE_EXPIRED,
)
EXPIRED = (
    "Getting metadata from plugin failed with error: ('invalid_grant: Token has been expired or "
    "revoked.', {'error': 'invalid_grant'})"
)
NO_QUOTA = (  # the words of GoogleCloudPlatform/vertex-ai-samples#3479
    "The following quota metrics exceed quota limits: "
    "aiplatform.googleapis.com/custom_model_training_nvidia_v100_gpus"
)
NO_MACHINES = (  # the words of GoogleCloudPlatform/vertex-ai-samples#700
    "Resources are insufficient in region: {}. Please try a different region or use a different "
    "accelerator."
)
HYPERDISK_ONLY = ("a3-ultragpu-8g", "a4-highgpu-8g")
DWS = (
    "NVIDIA_L4",
    "NVIDIA_TESLA_A100",
    "NVIDIA_A100_80GB",
    "NVIDIA_H100_80GB",
    "NVIDIA_H100_MEGA_80GB",
    "NVIDIA_H200_141GB",
    "NVIDIA_B200",
)
AnyJob = api.CustomJob | api.HyperparameterTuningJob


class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, the API's own name for it, a message.

    reason: of the ErrorInfo among the details of the error, such as SERVICE_DISABLED.
    """

    def __init__(self, code: int, status: str, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.status, self.message, self.reason = code, status, message, reason

    @property
    def details(self) -> list[error_details_pb2.ErrorInfo]:
        told = error_details_pb2.ErrorInfo(reason=self.reason, domain="googleapis.com")
        return [told] if self.reason else []


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    bursts: (pattern of `METHOD path` or `grpc Method`, HTTP status, how often). cut_create: a job
    is made, and the connection breaks before the answer, so many times. stay_queued: for ever.
    refusal: an answer to every create. end_as: how a job ends, whatever it did. late_entries: so
    many of the newest log entries are not seen yet. double_entries: each is delivered twice.
    list_lag: so many lists do not show a job that is new.
    no_quota: regions in which every create is refused; no_machines: in which a job fails before it
    starts; full: in which it waits until it is cancelled.
    bad_credentials: every call ends as gRPC ends it where the credentials have expired.
    age: what a replica prints was said so long ago. reads_a_minute: more reads of the log are
    refused; `clock` tells the seconds.
    """

    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut_create: int = 0
    list_lag: int = 0
    no_quota: set[str] = field(default_factory=set)
    no_machines: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    stay_queued: bool = False
    refusal: Refused | None = None
    end_as: State | None = None
    late_entries: int = 0
    double_entries: bool = False
    bad_credentials: bool = False
    age: timedelta = timedelta()
    reads_a_minute: int | None = None
    clock: Callable[[], float] = time.monotonic


# --- carrying jobs out ----------------------------------------------------------------------------


@dataclass
class Work:
    """A job that is carried out: what the executor gets, and what it reports through.

    `tell(replica, text)`: a line of a replica in the service's names, `workerpool0-0`.
    """

    id: str
    spec: api.CustomJobSpec
    tell: Callable[[str, str], None]
    cancelled: threading.Event
    trial: int | None = None
    arguments: tuple[str, ...] = ()
    metric: str = ""


@dataclass
class Done:
    """How an executor's job went; `code`: of the replica that failed. metric: of a trial."""

    code: int = 0
    replica: str = "workerpool0-0"
    message: str = ""
    metric: float | None = None


Executor = Callable[[Work], Done]


@dataclass
class Script:
    """An executor that says what it is told to."""

    lines: tuple[tuple[str, str], ...] = (("workerpool0-0", "step 1"), ("workerpool0-0", "done"))
    code: int = 0
    wait: threading.Event | None = None
    metric: Callable[[Mapping[str, str]], float] | None = None
    works: list[Work] = field(default_factory=list)

    def __call__(self, work: Work) -> Done:
        self.works.append(work)
        for replica, text in self.lines:
            work.tell(replica, text)
        while self.wait and not self.wait.wait(0.005) and not work.cancelled.is_set():
            pass
        if work.cancelled.is_set():
            return Done(143)
        given = dict(one.removeprefix("--").split("=", 1) for one in work.arguments)
        return Done(self.code, metric=self.metric(given) if self.metric else None)


def local_executor(engine: Any, folder: Path, images: Mapping[str, str]) -> Executor:
    """An executor that runs a job's containers on the engine, through the local backend.

    `images`: the reference that a job names -> what the engine calls that image; any other one is
    pulled from its registry, by the digest that the job names.
    """
    from builder.jobs.backends.local import run as local
    from builder.jobs.backends.local.replicas import LocalJob, Trial
    from builder.jobs.backends.local.trials import measurements
    from builder.jobs.pools import ROLES, Pool
    from builder.jobs.running import Stop

    def image_of(reference: str) -> str:
        if reference in images:
            return images[reference]
        assert "@sha256:" in reference, f"not by digest: {reference}"
        engine.client.images.pull(reference)
        return reference

    def execute(work: Work) -> Done:
        pools = [
            (index, pool)
            for index, pool in enumerate(work.spec.worker_pool_specs)
            if pool.replica_count
        ]
        container = pools[0][1].container_spec
        plan = work.spec.scheduling
        restarts = "job" if plan.restart_job_on_worker_restart else "worker"
        place = folder / work.id / str(work.trial or "")
        metrics = place / "metrics"
        trial = None
        if work.trial is not None:
            metrics.mkdir(parents=True)
            trial = Trial(work.trial, work.arguments, metrics)
        job = LocalJob(
            name=f"loopback-{work.id}",
            image=image_of(container.image_uri),
            folder=place,
            pools=tuple(Pool(ROLES[index], pool.replica_count) for index, pool in pools),
            command=tuple(container.command) or None,
            arguments=tuple(container.args),
            environment={one.name: one.value for one in container.env},
            base=work.spec.base_output_directory.output_uri_prefix,
            restarts="never" if plan.disable_retries else restarts,  # type: ignore[arg-type]
            timeout=plan.timeout.total_seconds() or 3600.0,
            buckets=folder / "buckets",
            trial=trial,
        )
        (folder / "buckets").mkdir(parents=True, exist_ok=True)
        stop = Stop()

        def watch() -> None:
            while not finished.wait(0.05):
                if work.cancelled.is_set():
                    stop.request()
                    return

        def tell(event: Any) -> None:
            role, _, index = event.replica.rpartition("-")
            known = role in ROLES
            work.tell(f"workerpool{ROLES.index(role)}-{index}" if known else "service", event.text)

        finished = threading.Event()
        threading.Thread(target=watch, daemon=True).start()
        try:
            outcome = local.run(engine, job, stop=stop, on_event=tell)
        finally:
            finished.set()
        curve = measurements(metrics / "output.metrics", work.metric)
        value = curve[-1][1] if curve else None
        return Done(outcome.exit_code, message=outcome.message, metric=value)

    return execute


# --- the service ----------------------------------------------------------------------------------


class JobService:
    """Jobs of one project, shared by REST and gRPC."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.faults = Faults()
        self.access = access.Access(number=NUMBER)
        self.lock = threading.RLock()
        self.jobs: dict[str, AnyJob] = {}
        self.entries: list[dict[str, Any]] = []
        self.buckets: dict[str, tuple[str, str]] = {}
        self.cancels: dict[str, threading.Event] = {}
        self.unseen: dict[str, int] = {}
        self.calls: list[str] = []
        self.reads: list[float] = []
        self.workers = ThreadPoolExecutor(4)
        self.page = 2
        self.at_once = 0
        self.entries_page = 50
        self._numbers = random.Random(7)

    # The service's methods, by their names in the API ---------------------------------------------

    def create_custom_job(self, request: api.CreateCustomJobRequest) -> api.CustomJob:
        job = api.CustomJob(request.custom_job)
        self._check(request.parent, job, job.job_spec)
        self._accept(request.parent, job, "customJobs")
        return job

    def create_hyperparameter_tuning_job(
        self, request: api.CreateHyperparameterTuningJobRequest
    ) -> api.HyperparameterTuningJob:
        job = api.HyperparameterTuningJob(request.hyperparameter_tuning_job)
        self._check(request.parent, job, job.trial_job_spec)
        study = job.study_spec
        if not study.metrics or not study.parameters or not job.max_trial_count:
            raise Refused(400, "INVALID_ARGUMENT", "study_spec: metrics and parameters are needed")
        if study.algorithm == api.StudySpec.Algorithm.GRID_SEARCH and any(
            "double_value_spec" in one for one in study.parameters
        ):
            raise Refused(400, "INVALID_ARGUMENT", "GRID_SEARCH does not take DOUBLE parameters")
        self._accept(request.parent, job, "hyperparameterTuningJobs")
        return job

    def get_custom_job(self, request: api.GetCustomJobRequest) -> api.CustomJob:
        return self._find(request.name)

    def get_hyperparameter_tuning_job(
        self, request: api.GetHyperparameterTuningJobRequest
    ) -> api.HyperparameterTuningJob:
        return self._find(request.name)

    def list_custom_jobs(self, request: api.ListCustomJobsRequest) -> api.ListCustomJobsResponse:
        found, token = self._page(request, api.CustomJob)
        return api.ListCustomJobsResponse(custom_jobs=found, next_page_token=token)

    def list_hyperparameter_tuning_jobs(
        self, request: api.ListHyperparameterTuningJobsRequest
    ) -> api.ListHyperparameterTuningJobsResponse:
        found, token = self._page(request, api.HyperparameterTuningJob)
        return api.ListHyperparameterTuningJobsResponse(
            hyperparameter_tuning_jobs=found, next_page_token=token
        )

    def cancel_custom_job(self, request: api.CancelCustomJobRequest) -> None:
        self._cancel(request.name)

    def cancel_hyperparameter_tuning_job(
        self, request: api.CancelHyperparameterTuningJobRequest
    ) -> None:
        self._cancel(request.name)

    # How it works ---------------------------------------------------------------------------------

    def _check(self, parent: str, job: AnyJob, spec: api.CustomJobSpec) -> None:
        """What the service itself refuses; its words, as far as they are known, are shorter."""
        if self.faults.refusal:
            raise self.faults.refusal
        match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)", parent)
        if not match or match[1] not in (PROJECT, NUMBER):
            raise Refused(403, "PERMISSION_DENIED", f"Permission denied on resource {parent}")
        bad: str | None = None
        if match[2] in self.faults.no_quota:
            raise Refused(429, "RESOURCE_EXHAUSTED", NO_QUOTA)
        if not 0 < len(job.display_name) <= 128:
            bad = "display_name: 1 to 128 characters"
        pools = list(spec.worker_pool_specs)
        if not pools:
            bad = "worker_pool_specs: empty"
        elif pools[0].replica_count != 1:
            bad = "worker_pool_specs[0].replica_count: must be 1"
        for index, pool in enumerate(pools):
            container = pool.container_spec
            if not pool.replica_count:
                continue
            if not container.image_uri:
                bad = f"worker_pool_specs[{index}]: container_spec.image_uri is needed"
            if len(container.env) > 100:
                bad = f"worker_pool_specs[{index}]: too many environment variables"
            if sum(len(one) for one in container.args) > 100_000:
                bad = f"worker_pool_specs[{index}]: args are too long"
            if bool(pool.machine_spec.accelerator_type) != bool(
                pool.machine_spec.accelerator_count
            ):
                bad = f"worker_pool_specs[{index}]: accelerator type without its count"
            if (
                pool.machine_spec.machine_type in HYPERDISK_ONLY
                and pool.disk_spec.boot_disk_type.startswith("pd-")
            ):
                bad = f"worker_pool_specs[{index}]: disk type is not supported by the machine"
        strategies = api.Scheduling.Strategy
        used = [one.machine_spec for one in pools if one.replica_count]
        if spec.scheduling.strategy == strategies.FLEX_START:
            if any(one.accelerator_type.name not in DWS for one in used):
                bad = "scheduling.strategy: FLEX_START is not supported for the accelerator"
            if spec.scheduling.timeout > timedelta(days=7):
                bad = "scheduling.timeout: at most 7 days with FLEX_START"
            if any(one != used[0] for one in used):
                bad = "worker_pool_specs: FLEX_START needs one machine configuration"
        bad = bad or _own_rules(spec)
        if spec.tensorboard and not spec.service_account:
            bad = "service_account is needed with tensorboard"
        if spec.network and not re.match(r"projects/\d+/global/networks/", spec.network):
            bad = "network: the project's number is needed"
        if bad:
            raise Refused(400, "INVALID_ARGUMENT", bad)

    def _accept(self, parent: str, job: Any, collection: str) -> None:
        region = parent.split("/")[3]
        with self.lock:
            number = str(self._numbers.randrange(10**17, 10**18))
            job.name = f"projects/{NUMBER}/locations/{region}/{collection}/{number}"
            job.state = State.JOB_STATE_QUEUED
            job.create_time = datetime.now(UTC)
            self.jobs[number] = job
            self.unseen[number] = self.faults.list_lag
            self.cancels[number] = threading.Event()
            alike = [
                one
                for one in self.jobs.values()
                if one.labels.get("builder-key") == job.labels.get("builder-key")
                and one.state not in ENDED
            ]
            self.at_once = max(self.at_once, len(alike))
        if region in self.faults.no_machines:
            with self.lock:
                job.state, job.error.code = State.JOB_STATE_FAILED, 8
                job.error.message = NO_MACHINES.format(region)
                job.end_time = datetime.now(UTC)
        elif not (self.faults.stay_queued or region in self.faults.full):
            self.workers.submit(self._carry_out, number)

    def _carry_out(self, number: str) -> None:
        job, cancelled = self.jobs[number], self.cancels[number]
        for state in (State.JOB_STATE_PENDING, State.JOB_STATE_RUNNING):
            with self.lock:
                if job.state in ENDED:
                    return
                job.state = state
        with self.lock:
            job.start_time = datetime.now(UTC)
        try:
            if isinstance(job, api.CustomJob):
                done = self.executor(Work(number, job.job_spec, self._teller(number), cancelled))
            else:
                done = self._trials(number, job, cancelled)
        except Exception as error:
            done = Done(1, message=f"{type(error).__name__}: {error}")
        with self.lock:
            job.end_time = datetime.now(UTC)
            if cancelled.is_set():
                job.state = State.JOB_STATE_CANCELLED
            elif done.code:
                job.state = State.JOB_STATE_FAILED
                job.error.code = 3
                job.error.message = (
                    f"The replica {done.replica} exited with a non-zero status of {done.code}. "
                    f"To find out more about why your job exited please check the logs. "
                    f"{done.message}"
                ).strip()
            else:
                job.state = State.JOB_STATE_SUCCEEDED
            job.state = self.faults.end_as or job.state

    def _trials(
        self, number: str, job: api.HyperparameterTuningJob, cancelled: threading.Event
    ) -> Done:
        chance = random.Random(number)
        failed = 0
        for index in range(1, job.max_trial_count + 1):
            if cancelled.is_set():
                break
            trial = api.Trial(id=str(index), state=api.Trial.State.ACTIVE)
            trial.start_time = datetime.now(UTC)
            chosen = {one.parameter_id: _suggest(one, chance) for one in job.study_spec.parameters}
            trial.parameters = [
                api.Trial.Parameter(parameter_id=name, value=value)
                for name, value in chosen.items()
            ]
            given = tuple(f"--{name}={value}" for name, value in chosen.items())
            done = self.executor(
                Work(
                    number,
                    job.trial_job_spec,
                    self._teller(number, str(index)),
                    cancelled,
                    index,
                    given,
                    job.study_spec.metrics[0].metric_id,
                )
            )
            trial.end_time = datetime.now(UTC)
            trial.state = api.Trial.State.SUCCEEDED if not done.code else api.Trial.State.INFEASIBLE
            failed += bool(done.code)
            if done.metric is not None:
                metric = api.Measurement.Metric(
                    metric_id=job.study_spec.metrics[0].metric_id, value=done.metric
                )
                trial.final_measurement = api.Measurement(metrics=[metric])
            with self.lock:
                job.trials.append(trial)
        return Done(1 if failed > (job.max_failed_trial_count or job.max_trial_count - 1) else 0)

    def _teller(self, number: str, trial: str | None = None) -> Callable[[str, str], None]:
        def tell(replica: str, text: str) -> None:
            labels = {"ml.googleapis.com/trial_id": trial} if trial else {}
            payload: dict[str, Any] = {"message": text}
            with contextlib.suppress(ValueError):  # a line of JSON is taken apart
                told = json.loads(text)
                payload = told if isinstance(told, dict) and "message" in told else payload
            severity = payload.pop("severity", "INFO")
            now = datetime.now(UTC)
            with self.lock:
                self.entries.append(
                    {
                        "logName": f"projects/{PROJECT}/logs/{replica}",
                        "resource": {
                            "type": "ml_job",
                            "labels": {
                                "job_id": number,
                                "task_name": replica,
                                "project_id": PROJECT,
                            },
                        },
                        "labels": labels,
                        "severity": severity,
                        "insertId": f"{number}-{len(self.entries)}",
                        "timestamp": _written(now - self.faults.age),
                        "receiveTimestamp": _written(now),
                        "jsonPayload": payload,
                    }
                )

        return tell

    def _find(self, name: str) -> Any:
        kind = "customJobs" if "/customJobs/" in name else "hyperparameterTuningJobs"
        with self.lock:
            job = self.jobs.get(name.rsplit("/", 1)[-1])
            if job is None or kind not in job.name:
                raise Refused(404, "NOT_FOUND", f"The {kind[:-1]} does not exist: {name}")
            return job

    def _cancel(self, name: str) -> None:
        job = self._find(name)
        with self.lock:
            if job.state in ENDED:
                raise Refused(400, "FAILED_PRECONDITION", "The job has ended")
            number = job.name.rsplit("/", 1)[-1]
            queued = job.state == State.JOB_STATE_QUEUED
            job.state = State.JOB_STATE_CANCELLED if queued else State.JOB_STATE_CANCELLING
            self.cancels[number].set()

    def _page(self, request: Any, kind: Any) -> tuple[list[Any], str]:
        wanted = [_condition(part) for part in re.split(r"\s+AND\s+", request.filter) if part]
        region = request.parent.split("/")[3]
        with self.lock:
            late = {number for number, left in self.unseen.items() if left > 0}
            if not request.page_token:
                self.unseen = {number: left - 1 for number, left in self.unseen.items()}
            found = [
                one
                for number, one in self.jobs.items()
                if isinstance(one, kind)
                and number not in late
                and f"/locations/{region}/" in one.name
                and all(test(one) for test in wanted)
            ]
            found.sort(key=lambda one: one.create_time, reverse=True)
            start = int(request.page_token or 0)
            end = start + self.page
            return found[start:end], str(end) if end < len(found) else ""

    # What the outside does ------------------------------------------------------------------------

    def tell(self, number: str, replica: str, text: str) -> None:
        """Another line of a job's replica arrives."""
        self._teller(number)(replica, text)

    def burst(self, call: str) -> None:
        self.calls.append(call)
        if self.faults.bad_credentials:
            raise Refused(503, "UNAVAILABLE", EXPIRED)
        with self.lock:
            for number, (pattern, status, count) in enumerate(self.faults.bursts):
                if count and re.search(pattern, call):
                    self.faults.bursts[number] = (pattern, status, count - 1)
                    raise Refused(status, "UNAVAILABLE", "The service is currently unavailable.")

    def count_read(self) -> None:
        """Refuse a read of the log beyond what the service allows in a minute."""
        with self.lock:
            now = self.faults.clock()
            self.reads = [one for one in self.reads if one > now - 60]
            most = self.faults.reads_a_minute
            if most is not None and len(self.reads) >= most:
                raise Refused(429, "RESOURCE_EXHAUSTED", "Quota exceeded for 'Read requests'")
            self.reads.append(now)

    def cut(self) -> bool:
        with self.lock:
            self.faults.cut_create -= 1
            return self.faults.cut_create >= 0


def _own_rules(spec: api.CustomJobSpec) -> str | None:
    """What the reference says of reservations, mounts, TPUs and persistent resources."""
    used = [pool for pool in spec.worker_pool_specs if pool.replica_count]
    specific = api.ReservationAffinity.Type.SPECIFIC_RESERVATION
    for pool in used:
        affinity = pool.machine_spec.reservation_affinity
        if affinity.reservation_affinity_type == specific and not (
            affinity.key and affinity.values
        ):
            return "reservation_affinity: SPECIFIC_RESERVATION needs key and values"
        if any(not one.path.startswith("/") or not one.mount_point for one in pool.nfs_mounts):
            return "nfs_mounts: path has to start with '/', mount_point is needed"
        if pool.nfs_mounts and not spec.network:
            return "nfs_mounts: a network is needed"
    if any(pool.machine_spec.machine_type == "cloud-tpu" for pool in used) and len(used) > 1:
        return "worker_pool_specs: a TPU is the only pool"
    spot = api.Scheduling.Strategy.SPOT
    if spec.persistent_resource_id and spec.scheduling.strategy == spot:
        return "scheduling.strategy: SPOT is not supported on a persistent resource"
    if spec.experiment and not re.match(
        r"projects/[^/]+/locations/[^/]+/metadataStores/[^/]+/contexts/[^/]+$", spec.experiment
    ):
        return "experiment: not the name of a context"
    return None


def _written(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")


def _read(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _condition(text: str) -> Callable[[Any], bool]:
    match = re.fullmatch(r'\s*([\w.-]+)\s*=\s*"([^"]*)"\s*', text)
    if not match:
        raise Refused(400, "INVALID_ARGUMENT", f"Invalid filter: {text}")
    field_name, value = match.groups()
    if field_name.startswith("labels."):
        label = field_name.removeprefix("labels.")
        return lambda job: job.labels.get(label) == value
    if field_name == "state":
        return lambda job: job.state.name == value
    if field_name == "display_name":
        return lambda job: job.display_name == value
    raise Refused(400, "INVALID_ARGUMENT", f"Invalid filter field: {field_name}")


def _suggest(one: Any, chance: random.Random) -> Any:
    if "double_value_spec" in one:
        spec = one.double_value_spec
        return round(chance.uniform(spec.min_value, spec.max_value), 6)
    if "integer_value_spec" in one:
        return chance.randint(one.integer_value_spec.min_value, one.integer_value_spec.max_value)
    if "discrete_value_spec" in one:
        return chance.choice(list(one.discrete_value_spec.values))
    return chance.choice(list(one.categorical_value_spec.values))


# --- REST -----------------------------------------------------------------------------------------

_KINDS = {
    "customJobs": (api.CustomJob, "custom_job", "custom_jobs"),
    "hyperparameterTuningJobs": (
        api.HyperparameterTuningJob,
        "hyperparameter_tuning_job",
        "hyperparameter_tuning_jobs",
    ),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer in two writes takes 40 ms
    service: JobService

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            self.service.burst(f"{self.command} {path}")
            if path == "/v2/entries:list":
                self._entries()
            elif bucket := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
                self._bucket(bucket[1])
            elif self.service.access.answers(path):
                query, body = parse_qs(parts.query), json.loads(self.body or b"{}")
                self._json(self.service.access.answer(path, query, body))
            else:
                self._jobs(path)
        except (Refused, access.Refused) as refused:
            error: dict[str, Any] = {"code": refused.code, "message": refused.message}
            error["status"] = refused.status
            error["details"] = [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo"}
                | json_format.MessageToDict(one)
                for one in getattr(refused, "details", ())
            ]
            self._json({"error": error}, refused.code)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _jobs(self, path: str) -> None:
        match = re.fullmatch(
            r"/v1/(projects/[^/]+/locations/[^/]+)/(customJobs|hyperparameterTuningJobs)"
            r"(/[0-9]+)?(:cancel)?",
            path,
        )
        if not match:
            raise Refused(404, "NOT_FOUND", f"no method at {path}")
        parent, collection, number, cancel = match.groups()
        kind, one, many = _KINDS[collection]
        name = f"{parent}/{collection}{number or ''}"
        if cancel:
            getattr(self.service, f"cancel_{one}")(_Named(name))
            self._json({})
        elif self.command == "POST":
            request = _Named(name, parent=parent)
            setattr(request, one, self._read(kind))
            job = getattr(self.service, f"create_{one}")(request)
            if self.service.cut():
                self._cut()
            else:
                self._message(job)
        elif number:
            self._message(getattr(self.service, f"get_{one}")(_Named(name)))
        else:
            request = _Named(name, parent=parent)
            request.filter = self.query.get("filter", "")
            request.page_token = self.query.get("pageToken", "")
            self._message(getattr(self.service, f"list_{many}")(request))

    def _read(self, kind: Any) -> Any:
        message = kind.pb(kind())
        try:
            json_format.Parse(self.body.decode(), message)
        except json_format.ParseError as error:
            raise Refused(
                400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}"
            ) from None
        return kind.wrap(message)

    def _message(self, message: Any) -> None:
        with self.service.lock:
            text = type(message).to_json(message, use_integers_for_enums=False)
        self._send(text.encode(), 200)

    def _entries(self) -> None:
        """Entries of one job, in pages."""
        wanted = json.loads(self.body)
        text = wanted.get("filter", "")
        job = re.search(r'resource\.labels\.job_id="([^"]+)"', text)
        task = re.search(r'resource\.labels\.task_name="([^"]+)"', text)
        since = re.findall(r'\b(timestamp|receiveTimestamp)>="([^"]+)"', text)
        faults = self.service.faults
        self.service.count_read()
        with self.service.lock:
            seen = self.service.entries[: len(self.service.entries) - faults.late_entries]
            faults.late_entries = max(0, faults.late_entries - 1)
        found = [
            one
            for one in seen
            if job and one["resource"]["labels"]["job_id"] == job[1]
            if task is None or one["resource"]["labels"]["task_name"] == task[1]
            if all(_read(one[field]) >= _read(begin) for field, begin in since)
        ]
        if faults.double_entries:
            found = [one for one in found for _ in range(2)]
        found.sort(key=lambda one: _read(one["timestamp"]))
        start = int(wanted.get("pageToken") or 0)
        end = start + min(int(wanted.get("pageSize") or 50), self.service.entries_page)
        more = {"nextPageToken": str(end)} if end < len(found) else {}
        self._json({"entries": found[start:end], **more})

    def _bucket(self, name: str) -> None:
        if name not in self.service.buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        location, kind = self.service.buckets[name]
        self._json(
            {
                "kind": "storage#bucket",
                "id": name,
                "name": name,
                "location": location.upper(),
                "locationType": kind,
            }
        )

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _cut(self) -> None:
        """End the connection as a broken line would: with a reset."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()


class _Named:
    """A request with the fields that a method reads."""

    def __init__(self, name: str, **more: str) -> None:
        self.name = name
        self.__dict__.update(more)


# --- gRPC -----------------------------------------------------------------------------------------

_METHODS = {
    "CreateCustomJob": (api.CreateCustomJobRequest, api.CustomJob),
    "GetCustomJob": (api.GetCustomJobRequest, api.CustomJob),
    "ListCustomJobs": (api.ListCustomJobsRequest, api.ListCustomJobsResponse),
    "CancelCustomJob": (api.CancelCustomJobRequest, None),
    "CreateHyperparameterTuningJob": (
        api.CreateHyperparameterTuningJobRequest,
        api.HyperparameterTuningJob,
    ),
    "GetHyperparameterTuningJob": (
        api.GetHyperparameterTuningJobRequest,
        api.HyperparameterTuningJob,
    ),
    "ListHyperparameterTuningJobs": (
        api.ListHyperparameterTuningJobsRequest,
        api.ListHyperparameterTuningJobsResponse,
    ),
    "CancelHyperparameterTuningJob": (api.CancelHyperparameterTuningJobRequest, None),
}


def _grpc_server(service: JobService) -> tuple[Any, int]:
    import grpc
    from google.protobuf import empty_pb2
    from grpc_status import rpc_status

    names = {code.name: code for code in grpc.StatusCode}
    codes = {
        400: grpc.StatusCode.INVALID_ARGUMENT,
        403: grpc.StatusCode.PERMISSION_DENIED,
        404: grpc.StatusCode.NOT_FOUND,
        409: grpc.StatusCode.ALREADY_EXISTS,
        429: grpc.StatusCode.RESOURCE_EXHAUSTED,
        503: grpc.StatusCode.UNAVAILABLE,
    }

    def handler(name: str, request_type: Any, response_type: Any) -> Any:
        method = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())

        def call(request: Any, context: Any) -> Any:
            try:
                service.burst(f"grpc {name}")
                answer = method(request)
            except Refused as refused:
                code = names.get(refused.status, codes[refused.code])
                told = status_pb2.Status(code=code.value[0], message=refused.message)
                for one in refused.details:
                    told.details.add().Pack(one)
                context.abort_with_status(rpc_status.to_status(told))
            if name.startswith("Create") and service.cut():
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            return answer

        def serialize(message: Any) -> bytes:
            with service.lock:
                if response_type:
                    return bytes(response_type.serialize(message))
                return bytes(empty_pb2.Empty().SerializeToString())

        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=request_type.deserialize, response_serializer=serialize
        )

    server = grpc.server(ThreadPoolExecutor(8))
    handlers = {name: handler(name, *types) for name, types in _METHODS.items()}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"{PACKAGE}.JobService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


@dataclass
class Loopback:
    """The running service: its state, and where it listens."""

    service: JobService
    rest: str
    grpc: str

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until every job has ended."""
        until = time.monotonic() + seconds
        while any(job.state not in ENDED for job in self.service.jobs.values()):
            assert time.monotonic() < until, "a job did not end"
            time.sleep(0.01)

    def settle_all_but(self, full: set[str], seconds: float = 30.0) -> None:
        """Wait until every job has ended, but those that wait in these regions."""
        until = time.monotonic() + seconds
        while any(
            job.state not in ENDED and job.name.split("/")[3] not in full
            for job in list(self.service.jobs.values())
        ):
            assert time.monotonic() < until, "a job did not end"
            time.sleep(0.001)


@contextlib.contextmanager
def running(executor: Executor | None = None) -> Iterator[Loopback]:
    """The service on free ports of this machine, until the block ends."""
    service = JobService(executor or Script())
    handler = type("Handler", (_Handler,), {"service": service})
    http = LoopbackServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    server, port = _grpc_server(service)
    try:
        yield Loopback(
            service, f"http://127.0.0.1:{http.server_address[1]}", f"http://127.0.0.1:{port}"
        )
    finally:
        for event in service.cancels.values():
            event.set()
        service.workers.shutdown(wait=True)
        server.stop(None)
        http.shutdown()
        http.server_close()
