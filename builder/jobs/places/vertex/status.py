"""A job as the service tells it, and the service's refusals in the factory's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from builder.core.errors import OutsideError
from builder.jobs.places.vertex import messages as vertex

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.aiplatform_v1 import CustomJob, HyperparameterTuningJob

Kind = Literal["custom", "tuning"]
COLLECTIONS: Mapping[str, Kind] = {
    "customJobs": "custom",
    "hyperparameterTuningJobs": "tuning",
}
ACTIVE = ("queued", "pending", "running", "cancelling", "paused", "updating")
"""States that a job leaves again. Source: aiplatform v1, JobState."""
EXIT_CANCELLED = 143
EXIT_TIMEOUT = 124


@dataclass(frozen=True)
class RemotePool:
    """Replicas of one role: how many, on what. `accelerator` is the API's name."""

    role: str
    count: int
    machine: str
    accelerator: str | None = None
    accelerators: int = 0
    topology: str | None = None
    disk_type: str = "pd-ssd"
    disk_gb: int = 100


@dataclass(frozen=True)
class RemoteTrial:
    """One trial of a study. `value` is the metric's last, None before there is one."""

    id: str
    state: str
    parameters: Mapping[str, str]
    value: float | None
    seconds: float | None


@dataclass(frozen=True)
class RemoteJob:
    """A job on the service; times are UTC, None for what has not happened."""

    name: str
    display_name: str
    kind: Kind
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
    pools: tuple[RemotePool, ...]
    trials: tuple[RemoteTrial, ...] = ()

    @property
    def id(self) -> str:
        """The number that the service gave it."""
        return self.name.rsplit("/", 1)[-1]

    @property
    def active(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in ACTIVE

    @property
    def seconds(self) -> float | None:
        """How long it ran, None while it has not ended."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()

    @property
    def exit_code(self) -> int:
        """The job's: 0, that of the replica that failed where the service tells it, else 1."""
        if self.state in ("succeeded", "partially_succeeded"):
            return 0
        if self.state == "cancelled":
            return EXIT_CANCELLED
        if self.state == "expired":
            return EXIT_TIMEOUT
        code = re.search(r"non-zero status of (\d+)", self.error)
        return int(code[1]) or 1 if code else 1

    @property
    def console(self) -> str:
        """Its page in Google's console."""
        _, project, _, region, _, number = self.name.split("/")
        where = "training" if self.kind == "custom" else "hyperparameter-tuning-jobs"
        return (
            f"https://console.cloud.google.com/vertex-ai/locations/{region}/{where}/{number}"
            f"?project={project}"
        )


def read(job: CustomJob | HyperparameterTuningJob) -> RemoteJob:
    """What a proto of the service says."""
    from google.cloud import aiplatform_v1

    tuning = isinstance(job, aiplatform_v1.HyperparameterTuningJob)
    spec = (
        job.trial_job_spec
        if isinstance(job, aiplatform_v1.HyperparameterTuningJob)
        else (job.job_spec)
    )
    pools = tuple(
        RemotePool(
            role=vertex.role_of(position),
            count=int(pool.replica_count),
            machine=pool.machine_spec.machine_type,
            accelerator=pool.machine_spec.accelerator_type.name
            if pool.machine_spec.accelerator_count
            else None,
            accelerators=pool.machine_spec.accelerator_count,
            topology=pool.machine_spec.tpu_topology or None,
            disk_type=pool.disk_spec.boot_disk_type or "pd-ssd",
            disk_gb=pool.disk_spec.boot_disk_size_gb or 100,
        )
        for position, pool in enumerate(spec.worker_pool_specs)
        if pool.replica_count
    )
    images = [
        pool.container_spec.image_uri for pool in spec.worker_pool_specs if pool.replica_count
    ]
    return RemoteJob(
        name=job.name,
        display_name=job.display_name,
        kind="tuning" if tuning else "custom",
        state=job.state.name.removeprefix("JOB_STATE_").lower(),
        region=job.name.split("/")[3] if job.name.count("/") == 5 else "",
        created=_time(job.create_time),
        started=_time(job.start_time),
        ended=_time(job.end_time),
        error=job.error.message,
        labels=dict(job.labels),
        image=images[0] if images else "",
        output=spec.base_output_directory.output_uri_prefix,
        strategy=spec.scheduling.strategy.name.lower().replace("_", "-"),
        pools=pools,
        trials=tuple(_trial(one) for one in job.trials)
        if isinstance(job, aiplatform_v1.HyperparameterTuningJob)
        else (),
    )


def _trial(one: Any) -> RemoteTrial:
    metrics = list(one.final_measurement.metrics)
    start, end = _time(one.start_time), _time(one.end_time)
    return RemoteTrial(
        id=one.id,
        state=one.state.name.lower(),
        parameters={value.parameter_id: _text(value.value) for value in one.parameters},
        value=metrics[0].value if metrics else None,
        seconds=(end - start).total_seconds() if start and end else None,
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _time(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) and value.timestamp() > 0 else None


# --- refusals -------------------------------------------------------------------------------------


def passing() -> Retry:
    """How often a call that changes nothing is made again: what passes, up to two minutes."""
    import requests
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type

    return Retry(
        predicate=if_exception_type(
            exceptions.ServiceUnavailable,
            exceptions.TooManyRequests,
            exceptions.InternalServerError,
            exceptions.BadGateway,
            exceptions.GatewayTimeout,
            requests.exceptions.ConnectionError,
        ),
        initial=0.2,
        maximum=15.0,
        multiplier=2.0,
        timeout=120.0,
    )


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """The service's errors as one line each. `what` says what was asked, as in `submit cats`."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import RefreshError, TransportError

    try:
        yield
    except exceptions.Forbidden as error:
        text = _first(error)
        if "SERVICE_DISABLED" in str(error) or "has not been used" in text:
            raise OutsideError(
                f"{what}: the API is not enabled in the project",
                "gcloud services enable aiplatform.googleapis.com",
            ) from None
        raise OutsideError(
            f"{what}: not allowed: {text}", "ask for roles/aiplatform.user in the project"
        ) from None
    except (exceptions.Unauthorized, RefreshError) as error:
        raise OutsideError(
            f"{what}: the credentials do not hold: {_first(error)}",
            "gcloud auth application-default login",
        ) from None
    except (exceptions.ResourceExhausted, exceptions.TooManyRequests) as error:
        raise OutsideError(
            f"{what}: no quota left: {_first(error)}",
            "ask for quota for this accelerator in this region, or take another region",
        ) from None
    except exceptions.NotFound as error:
        raise OutsideError(f"{what}: {_first(error)}", "builder job list shows all") from None
    except exceptions.FailedPrecondition as error:
        raise OutsideError(f"{what}: {_first(error)}", "builder job status shows why") from None
    except exceptions.BadRequest as error:
        raise OutsideError(
            f"{what}: the service refuses it: {_first(error)}",
            "mend the job's file; builder job render shows what is sent",
        ) from None
    except (
        exceptions.ServiceUnavailable,
        exceptions.RetryError,
        exceptions.DeadlineExceeded,
        exceptions.ServerError,
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
        TransportError,
    ) as error:
        raise OutsideError(
            f"{what}: the service cannot be reached: {_first(error)}",
            "run the same command again: it finds the job if it was made",
        ) from None
    except exceptions.GoogleAPICallError as error:
        raise OutsideError(f"{what}: {_first(error)}", "") from None


def _first(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    text = re.sub(r"^[A-Z]+ https?://\S+: ", "", text)  # how REST begins a message
    return text.splitlines()[0][:300] if text else type(error).__name__
