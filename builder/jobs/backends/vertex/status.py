"""A job as Vertex AI tells it, what its replicas print, and its errors in the factory's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from builder import contract, googleapi
from builder.jobs.backends.protocol import SERVICE, JobStatus, LogLine, LogReader, TrialStatus
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.machines import Pool, role_of
from builder.jobs.ready import RUN_LABEL, number_of

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import CustomJob, HyperparameterTuningJob

ADVICE = googleapi.Advice(
    api="aiplatform.googleapis.com",
    forbidden="ask for roles/aiplatform.user in the project",
    missing="builder job list shows all",
    quota="ask for quota for this accelerator in this region, or take another region",
    refused="correct what the service names; builder job render shows what is sent",
    unreachable="run the same command again: it finds the job if it was made",
)
RECENT = timedelta(minutes=10)
"""A step before that says nothing of now: a replica may have started again since."""
explaining = partial(googleapi.explaining, advice=ADVICE)


def read(job: CustomJob | HyperparameterTuningJob) -> JobStatus:
    from google.cloud import aiplatform_v1

    tuning = isinstance(job, aiplatform_v1.HyperparameterTuningJob)
    spec = job.trial_job_spec if tuning else job.job_spec
    specs = list(enumerate(spec.worker_pool_specs))
    used = [(position, pool) for position, pool in specs if pool.replica_count]
    labels, failed = dict(job.labels), re.search(r"non-zero status of (\d+)", job.error.message)
    state = job.state.name.removeprefix("JOB_STATE_").lower()
    return JobStatus(
        name=job.name,
        display_name=job.display_name,
        state=state,
        created=_time(job.create_time),
        started=_time(job.start_time),
        ended=_time(job.end_time),
        error=job.error.message,
        labels=labels,
        image=used[0][1].container_spec.image_uri if used else "",
        output=spec.base_output_directory.output_uri_prefix,
        pools=tuple(_pool(position, pool) for position, pool in used),
        trials=tuple(map(_trial, job.trials)) if tuning else (),
        run=number_of(labels, RUN_LABEL),
        failed_code=int(failed[1]) if failed and state == "failed" else None,
        console=_console(job.name) if job.name.count("/") == 5 else "",
    )


def _pool(position: int, pool: Any) -> Pool:
    machine = pool.machine_spec
    return Pool(
        role=role_of(position),
        count=int(pool.replica_count),
        machine=machine.machine_type,
        accelerator=machine.accelerator_type.name if machine.accelerator_count else None,
        accelerators=machine.accelerator_count,
        topology=machine.tpu_topology or None,
    )


def _console(name: str) -> str:
    _, project, _, region, collection, number = name.split("/")
    where = "training" if collection == "customJobs" else "hyperparameter-tuning-jobs"
    return (
        f"https://console.cloud.google.com/vertex-ai/locations/{region}/{where}/{number}"
        f"?project={project}"
    )


def _trial(trial: Any) -> TrialStatus:
    metrics = list(trial.final_measurement.metrics)
    start, end = _time(trial.start_time), _time(trial.end_time)
    return TrialStatus(
        id=trial.id,
        state=trial.state.name.lower(),
        parameters={value.parameter_id: _text(value.value) for value in trial.parameters},
        value=metrics[0].value if metrics else None,
        seconds=(end - start).total_seconds() if start and end else None,
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _time(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) and value.timestamp() > 0 else None


@dataclass(frozen=True)
class CloudLog(LogReader):
    """One job's log in Cloud Logging. Filter and labels are those of
    `gcloud ai custom-jobs stream-logs`."""

    entries: googleapi.LogEntries

    @classmethod
    def of(cls, settings: JobSettings, job_id: str) -> CloudLog:
        """Return the log of a job from its beginning. Raises OutsideError without credentials."""
        host = settings.logging_endpoint or ""
        conditions = ('resource.type="ml_job"', f'resource.labels.job_id="{job_id}"')
        session = googleapi.session(googleapi.credentials(host)[0])
        return cls(googleapi.LogEntries(session, host, settings.project or "", conditions))

    def read(self) -> tuple[LogLine, ...]:
        with explaining("logs"):
            return tuple(map(_line, self.entries.read()))

    def latest(self) -> tuple[LogLine, ...]:
        since = (datetime.now(UTC) - RECENT).isoformat().replace("+00:00", "Z")
        wanted = (f'jsonPayload.event="{contract.STEP}"', f'timestamp>="{since}"')
        with explaining("logs"):
            return tuple(map(_line, self.entries.newest(*wanted)))


def _line(entry: dict[str, Any]) -> LogLine:
    text, fields = googleapi.entry_payload(entry)
    return LogLine(
        time=googleapi.entry_time(entry),
        replica=_replica(entry.get("resource", {}).get("labels", {}).get("task_name", SERVICE)),
        severity=str(entry.get("severity") or "DEFAULT"),
        text=text,
        trial=entry.get("labels", {}).get("ml.googleapis.com/trial_id"),
        fields=fields,
    )


def _replica(name: str) -> str:
    """Return worker-1 for workerpool1-1; any other name stays as it is."""
    match = re.fullmatch(r"workerpool([0-9]+)-([0-9]+)", name)
    return f"{role_of(int(match[1]))}-{match[2]}" if match else name
