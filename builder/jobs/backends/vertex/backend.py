"""Vertex AI as a backend: its job service and Cloud Logging behind the calls of the protocol."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import JobStatus, LogReader, LostAnswer, by_age
from builder.jobs.backends.vertex import checks, messages, service, status
from builder.jobs.backends.vertex.logs import CloudLog
from builder.jobs.backends.vertex.service import Service
from builder.jobs.backends.vertex.status import explaining
from builder.jobs.description.job import Job
from builder.jobs.ready import KEY_LABEL, NAME_LABEL, Image, Ready

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

CUSTOM, TUNING = "customJobs", "hyperparameterTuningJobs"
_KINDS = {CUSTOM: "custom_job", TUNING: "hyperparameter_tuning_job"}
_NAME = re.compile(rf"projects/[^/]+/locations/[^/]+/({CUSTOM}|{TUNING})/[0-9]+")


@dataclass(frozen=True)
class VertexAI:
    """The jobs of one project in one region."""

    title = "Vertex AI"
    name = "vertex"

    service: Service

    @property
    def location(self) -> str:
        """Return the region of the project."""
        return f"{self.service.region} of {self.service.project}"

    @cached_property
    def client(self) -> JobServiceClient:
        """Return the client of the job service."""
        return service.jobs_client(self.service)

    # --- sending ---

    def check(self, job: Job, image: Image, targets: Mapping[str, str]) -> Ready:
        """Return the job with its machines, checked. Raises InputError with every problem."""
        return checks.ready(job, image, self.service, targets)

    def preflight(self, ready: Ready) -> None:  # noqa: ARG002
        """Raise InputError without a project or a region: the service checks a job when it is
        created."""
        self.service.known()

    def key(self, ready: Ready) -> str:
        """Return a hash of everything that the job asks for; a label of the job holds it."""
        return messages.key(ready)

    def render(self, ready: Ready) -> dict[str, Any]:
        """Return the REST body."""
        return messages.body(ready)

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:  # noqa: ARG002
        """Create the job, which the service itself numbers. Raises LostAnswer, OutsideError."""
        import requests
        from google.api_core import exceptions
        from google.cloud import aiplatform_v1

        tuning = ready.job.study is not None
        message = aiplatform_v1.HyperparameterTuningJob if tuning else aiplatform_v1.CustomJob
        job: Any = message.from_json(json.dumps(messages.body(ready, run)))
        lost = (
            exceptions.ServerError,
            exceptions.DeadlineExceeded,
            exceptions.Unknown,
            requests.exceptions.ConnectionError,
            requests.exceptions.Timeout,
        )
        what = f"submit {ready.job.id}"
        with explaining(what):
            try:
                kind = _KINDS[TUNING if tuning else CUSTOM]
                created = self._call("create", kind)(parent=self.service.parent, **{kind: job})
            except lost as error:
                if googleapi.bad_credentials(error):  # nothing was sent
                    raise
                explained = googleapi.explained(error, what, status.ADVICE)
                raise LostAnswer(explained.message, explained.fix) from error
        return status.read(created)

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        """Return the jobs with this key, the newest first, ended ones too."""
        with explaining("submit"):
            return self._listed(f'labels.{KEY_LABEL}="{key}"')

    # --- asking ---

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """Return the newest jobs of the region; with `name` those of one description."""
        with explaining("list"):
            wanted = f'labels.{NAME_LABEL}="{name}"' if name else ""
            return self._listed(wanted)[:limit]

    def find(self, name: str) -> JobStatus:
        """Return the job of the service's whole name or number, of a display name, or of the name
        of a description, which means its newest job. Raises OutsideError."""
        if _NAME.fullmatch(name):
            return self.get(name)
        if name.isdigit():
            custom, tuning = (f"{self.service.parent}/{kind}/{name}" for kind in _KINDS)
            try:
                return self.get(custom)
            except OutsideError as error:
                if "not found" not in error.message:
                    raise
            return self.get(tuning)
        text = name.replace("\\", "").replace('"', "")
        with explaining(f"find {name}"):
            for wanted in (f'labels.{NAME_LABEL}="{text}"', f'display_name="{text}"'):
                if jobs := self._listed(wanted, limit=100):
                    return jobs[0]
        raise OutsideError(
            f"no job is called {name} in {self.location}",
            "builder job list shows all; --region asks another region",
        )

    def get(self, name: str) -> JobStatus:
        """Return one job by the service's whole name."""
        with explaining(name):
            retry = googleapi.read_retry()
            return status.read(self._call("get", _kind(name))(name=name, retry=retry))

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask for an end, and return the job as it is then; one that has ended is left alone."""
        from google.api_core import exceptions

        now = self.get(job.name)
        if not now.active:
            return now
        cancel = self._call("cancel", _kind(job.name))
        with explaining(f"cancel {job.id}"), contextlib.suppress(exceptions.BadRequest):
            cancel(name=job.name, retry=googleapi.read_retry())  # refused where it has just ended
        return self.get(job.name)

    def logs(self, job: JobStatus) -> LogReader:
        """Return a reader of the job's lines in Cloud Logging."""
        client = service.logging_client(self.service)
        return CloudLog(client, self.service.project or "", job.id)

    # --- pieces ---

    def _listed(self, wanted: str, limit: int = 1000) -> tuple[JobStatus, ...]:
        """Return the jobs that fit a filter of the service, of each kind `limit` at most."""
        request = {"parent": self.service.parent, "filter": wanted}
        jobs = []
        for kind in _KINDS.values():
            pages = self._call("list", f"{kind}s")(request=request, retry=googleapi.read_retry())
            jobs += [status.read(job) for job, _ in zip(pages, range(limit), strict=False)]
        return tuple(sorted(jobs, key=by_age, reverse=True))

    def _call(self, verb: str, kind: str) -> Any:
        """Return the client's call for one kind of job, such as get_custom_job."""
        return getattr(self.client, f"{verb}_{kind}")


def _kind(name: str) -> str:
    return _KINDS[TUNING if f"/{TUNING}/" in name else CUSTOM]
