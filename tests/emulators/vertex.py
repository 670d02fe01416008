"""Loopback Vertex AI: the job service. Cloud Logging and buckets are beside it.

The messages are the product's own (google.cloud.aiplatform_v1). A `Script` says what jobs do. As
the service does, answers name the project by its number, lists come in pages, and log entries may
come late. Faults come on demand.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.rpc import status_pb2

from tests.emulators import access
from tests.emulators.cloud_logging import Handler, Refused, written
from tests.emulators.web import LoopbackServer
from tests.lazy import Lazy

if TYPE_CHECKING:
    from google.cloud import aiplatform_v1 as api
else:  # 1,200 modules
    api = Lazy("google.cloud.aiplatform_v1")

PROJECT = "loopback-project"
NUMBER = "123456789012"
PACKAGE = "google.cloud.aiplatform.v1"
ENDED = frozenset(f"JOB_STATE_{state}" for state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))
EXPIRED = (
    "Getting metadata from plugin failed with error: ('invalid_grant: Token has been expired or "
    "revoked.', {'error': 'invalid_grant'})"
)
AnyJob = "api.CustomJob | api.HyperparameterTuningJob"


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    bursts: (pattern of `METHOD path` or `grpc Method`, HTTP status, how often). cut_create: a job
    is made, and the connection breaks before the answer, so many times. stay_queued: for ever.
    refusal: an answer to every create. late_entries: so many of the newest log entries are not seen
    yet. double_entries: each is delivered twice. list_lag: so many lists do not show a job that is
    new. bad_credentials: every call ends as gRPC ends it where the credentials have expired. age:
    what a replica prints was said so long ago.
    """

    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut_create: int = 0
    list_lag: int = 0
    stay_queued: bool = False
    refusal: Refused | None = None
    late_entries: int = 0
    double_entries: bool = False
    bad_credentials: bool = False
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


class JobService:
    """Jobs of one project, shared by REST and gRPC."""

    def __init__(self, executor: Script) -> None:
        self.executor = executor
        self.faults = Faults()
        self.access = access.Access()
        self.lock = threading.RLock()
        self.jobs: dict[str, AnyJob] = {}
        self.entries: list[dict[str, Any]] = []
        self.buckets: dict[str, tuple[str, str]] = {}
        self.cancels: dict[str, threading.Event] = {}
        self.unseen: dict[str, int] = {}
        self.calls: list[str] = []
        self.workers = ThreadPoolExecutor(4)
        self.page = 2
        self.entries_page = 50
        self._numbers = random.Random(7)

    # The service's methods, by what stands before the kind in their names ------------------------

    def create(self, request: Any) -> AnyJob:
        if isinstance(request, api.CreateCustomJobRequest):
            job, collection = api.CustomJob(request.custom_job), "customJobs"
            self._check(request.parent, job, job.job_spec)
        else:
            job = api.HyperparameterTuningJob(request.hyperparameter_tuning_job)
            collection = "hyperparameterTuningJobs"
            self._check(request.parent, job, job.trial_job_spec)
        self._accept(request.parent, job, collection)
        return job

    def get(self, request: Any) -> AnyJob:
        return self._find(request.name)

    def list(self, request: Any) -> Any:
        if isinstance(request, api.ListCustomJobsRequest):
            jobs, token = self._page(request, api.CustomJob)
            return api.ListCustomJobsResponse(custom_jobs=jobs, next_page_token=token)
        jobs, token = self._page(request, api.HyperparameterTuningJob)
        return api.ListHyperparameterTuningJobsResponse(
            hyperparameter_tuning_jobs=jobs, next_page_token=token
        )

    def cancel(self, request: Any) -> None:
        self._cancel(request.name)

    # How it works ---------------------------------------------------------------------------------

    def _check(self, parent: str, job: AnyJob, spec: api.CustomJobSpec) -> None:
        """What the service itself refuses; its words, as far as they are known, are shorter."""
        if self.faults.refusal:
            raise self.faults.refusal
        match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)", parent)
        if not match or match[1] not in (PROJECT, NUMBER):
            raise Refused(403, "PERMISSION_DENIED", f"Permission denied on resource {parent}")
        bad = "" if 0 < len(job.display_name) <= 128 else "display_name: 1 to 128 characters"
        pools = list(spec.worker_pool_specs)
        if not pools or pools[0].replica_count != 1:
            bad = "worker_pool_specs[0].replica_count: must be 1"
        for pool in pools:
            machine = pool.machine_spec
            if pool.replica_count and not pool.container_spec.image_uri:
                bad = "container_spec.image_uri is needed"
            if bool(machine.accelerator_type) != bool(machine.accelerator_count):
                bad = "accelerator type without its count"
        if bad:
            raise Refused(400, "INVALID_ARGUMENT", bad)

    def _accept(self, parent: str, job: Any, collection: str) -> None:
        region = parent.split("/")[3]
        with self.lock:
            number = str(self._numbers.randrange(10**17, 10**18))
            job.name = f"projects/{NUMBER}/locations/{region}/{collection}/{number}"
            job.state = api.JobState.JOB_STATE_QUEUED
            job.create_time = datetime.now(UTC)
            self.jobs[number] = job
            self.unseen[number] = self.faults.list_lag
            self.cancels[number] = threading.Event()
        if not self.faults.stay_queued:
            self.workers.submit(self._carry_out, number)

    def _carry_out(self, number: str) -> None:
        job, cancelled = self.jobs[number], self.cancels[number]
        for state in (api.JobState.JOB_STATE_PENDING, api.JobState.JOB_STATE_RUNNING):
            with self.lock:
                if job.state.name in ENDED:
                    return
                job.state = state
        with self.lock:
            job.start_time = datetime.now(UTC)
        if isinstance(job, api.CustomJob):
            code = self.executor.run(self._teller(number), cancelled)
        else:
            code = self._trials(number, job, cancelled)
        with self.lock:
            job.end_time = datetime.now(UTC)
            if cancelled.is_set():
                job.state = api.JobState.JOB_STATE_CANCELLED
            elif code:
                job.state = api.JobState.JOB_STATE_FAILED
                job.error.code = 3
                job.error.message = (
                    f"The replica workerpool0-0 exited with a non-zero status of {code}. "
                    f"To find out more about why your job exited please check the logs. "
                )
            else:
                job.state = api.JobState.JOB_STATE_SUCCEEDED

    def _trials(
        self, number: str, job: api.HyperparameterTuningJob, cancelled: threading.Event
    ) -> int:
        chance, metric = random.Random(number), job.study_spec.metrics[0].metric_id
        failed = 0
        for index in range(1, job.max_trial_count + 1):
            if cancelled.is_set():
                break
            trial = api.Trial(id=str(index), state=api.Trial.State.ACTIVE)
            trial.start_time = datetime.now(UTC)
            chosen = {
                each.parameter_id: _suggest(each, chance) for each in job.study_spec.parameters
            }
            trial.parameters = [
                api.Trial.Parameter(parameter_id=name, value=value)
                for name, value in chosen.items()
            ]
            code = self.executor.run(self._teller(number, str(index)), cancelled)
            trial.end_time = datetime.now(UTC)
            trial.state = api.Trial.State.SUCCEEDED if not code else api.Trial.State.INFEASIBLE
            failed += bool(code)
            if self.executor.metric and not code:
                value = self.executor.metric(chosen)
                measured = api.Measurement.Metric(metric_id=metric, value=value)
                trial.final_measurement = api.Measurement(metrics=[measured])
            with self.lock:
                job.trials.append(trial)
        return int(failed > (job.max_failed_trial_count or job.max_trial_count - 1))

    def _teller(self, number: str, trial: str | None = None) -> Tell:
        def tell(replica: str, text: str) -> None:
            labels = {"ml.googleapis.com/trial_id": trial} if trial else {}
            payload: dict[str, Any] = {"message": text}
            with contextlib.suppress(ValueError):  # a line of JSON is taken apart
                document = json.loads(text)
                payload = (
                    document if isinstance(document, dict) and "message" in document else payload
                )
            severity = payload.pop("severity", "INFO")
            now = datetime.now(UTC)
            with self.lock:
                who = {"job_id": number, "task_name": replica, "project_id": PROJECT}
                entry = {
                    "logName": f"projects/{PROJECT}/logs/{replica}", "labels": labels,
                    "resource": {"type": "ml_job", "labels": who},
                    "severity": severity, "jsonPayload": payload,
                    "insertId": f"{number}-{len(self.entries)}",
                    "timestamp": written(now - self.faults.age),
                    "receiveTimestamp": written(now),
                }  # fmt: skip
                self.entries.append(entry)

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
            if job.state.name in ENDED:
                raise Refused(400, "FAILED_PRECONDITION", "The job has ended")
            number = job.name.rsplit("/", 1)[-1]
            queued = job.state == api.JobState.JOB_STATE_QUEUED
            job.state = "JOB_STATE_CANCELLED" if queued else "JOB_STATE_CANCELLING"
            self.cancels[number].set()

    def _page(self, request: Any, kind: Any) -> tuple[list[Any], str]:
        wanted = [_condition(part) for part in re.split(r"\s+AND\s+", request.filter) if part]
        region = request.parent.split("/")[3]
        with self.lock:
            late = {number for number, left in self.unseen.items() if left > 0}
            if not request.page_token:
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
            start = int(request.page_token or 0)
            end = start + self.page
            return matching[start:end], str(end) if end < len(matching) else ""

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

    def cut(self) -> bool:
        with self.lock:
            self.faults.cut_create -= 1
            return self.faults.cut_create >= 0


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


def _suggest(each: Any, chance: random.Random) -> Any:
    if "double_value_spec" in each:
        spec = each.double_value_spec
        return round(chance.uniform(spec.min_value, spec.max_value), 6)
    if "integer_value_spec" in each:
        return chance.randint(each.integer_value_spec.min_value, each.integer_value_spec.max_value)
    if "discrete_value_spec" in each:
        return chance.choice(list(each.discrete_value_spec.values))
    return chance.choice(list(each.categorical_value_spec.values))


# --- gRPC -----------------------------------------------------------------------------------------


def _methods() -> dict[str, tuple[Any, Any]]:
    """Return the methods of the service: the message of a request, and of its answer."""
    return {
        f"{method}{kind}{'s' if method == 'List' else ''}": (
            getattr(api, f"{method}{kind}{'s' if method == 'List' else ''}Request"),
            {"Cancel": None, "List": getattr(api, f"List{kind}sResponse")}.get(method, answer),
        )
        for kind, answer in {
            "CustomJob": api.CustomJob,
            "HyperparameterTuningJob": api.HyperparameterTuningJob,
        }.items()
        for method in ("Create", "Get", "List", "Cancel")
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
        method = getattr(service, re.findall("^[A-Z][a-z]+", name)[0].lower())

        def call(request: Any, context: Any) -> Any:
            try:
                service.burst(f"grpc {name}")
                answer = method(request)
            except Refused as refused:
                code = names.get(refused.status, codes[refused.code])
                status = status_pb2.Status(code=code.value[0], message=refused.message)
                for detail in refused.details:
                    status.details.add().Pack(detail)
                context.abort_with_status(rpc_status.to_status(status))
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
    handlers = {name: handler(name, *types) for name, types in _methods().items()}
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
        while any(job.state.name not in ENDED for job in self.service.jobs.values()):
            assert time.monotonic() < until, "a job did not end"
            time.sleep(0.01)


@contextlib.contextmanager
def running(executor: Script | None = None) -> Iterator[Loopback]:
    """The service on free ports of this machine, until the block ends."""
    service = JobService(executor or Script())
    handler = type("Handler", (Handler,), {"service": service})
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
