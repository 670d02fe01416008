"""Vertex AI as a place: its job service and Cloud Logging behind the calls of the protocol."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder.core import googleapi
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.jobs.lease import BucketLease, Lease
from builder.jobs.places.protocol import JobStatus, Log, LogLine, LostAnswer, NoRoom, Sample, age
from builder.jobs.places.vertex import messages, service, status
from builder.jobs.places.vertex.logs import CloudLog
from builder.jobs.places.vertex.service import Service
from builder.jobs.places.vertex.status import Kind, explaining
from builder.jobs.ready import Ready

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/(customJobs|hyperparameterTuningJobs)/[0-9]+")


@dataclass(frozen=True)
class VertexAI:
    """The jobs of one project in one region. Its requests are `Ready` jobs, checked for it."""

    service: Service

    @property
    def title(self) -> str:
        """What people call it."""
        return "Vertex AI"

    @property
    def on(self) -> str:
        """What the option --on calls it."""
        return "vertex"

    @property
    def where(self) -> str:
        """The region of the project."""
        return f"{self.service.region} of {self.service.project}"

    @property
    def lag(self) -> float:
        """A guess: the service promises nothing, and lists were seen to lag by a second."""
        return 20.0

    @cached_property
    def client(self) -> JobServiceClient:
        """The client of the job service."""
        return service.jobs_client(self.service)

    @cached_property
    def storage(self) -> Any:
        """The client of Cloud Storage."""
        return service.storage_client(self.service)

    # --- sending ---

    def name_of(self, request: Ready) -> str:
        """The job's name in its description."""
        return request.job.id

    def key(self, request: Ready) -> str:
        """A hash of everything that the job asks for; a label of the job holds it."""
        return messages.key(request)

    def render(self, request: Ready, run: int = 1) -> dict[str, Any]:
        """The REST body."""
        return messages.to_dict(messages.message(request, run))

    def create(self, request: Ready, run: int = 1) -> JobStatus:
        """Send the job. Raises InputError without a digest of its image, LostAnswer, NoRoom,
        OutsideError.

        A call that changes something is never repeated here.
        """
        import requests
        from google.api_core import exceptions

        for image in (request.image, *request.images.values()):
            if image.digest is None:
                raise InputError(
                    f"{image.reference} is not known by its digest",
                    "push it first: builder image TARGET --push",
                )
        wanted, parent = messages.message(request, run), self.service.parent
        lost = (
            exceptions.ServerError,
            exceptions.DeadlineExceeded,
            exceptions.Unknown,
            requests.exceptions.ConnectionError,
            requests.exceptions.Timeout,
        )
        with explaining(f"submit {request.job.id}", status.SUBMIT):
            try:
                if request.job.study is None:
                    made: Any = self.client.create_custom_job(parent=parent, custom_job=wanted)
                else:
                    made = self.client.create_hyperparameter_tuning_job(
                        parent=parent, hyperparameter_tuning_job=wanted
                    )
            except lost as error:
                if googleapi.bad_credentials(error):  # nothing was sent
                    raise
                found = googleapi.explained(error, f"submit {request.job.id}", status.SUBMIT)
                raise LostAnswer(found.message, found.fix) from error
            except exceptions.TooManyRequests as error:  # ResourceExhausted, too
                if not status.NO_ROOM.search(str(error)):
                    raise
                found = googleapi.explained(error, f"submit {request.job.id}", status.SUBMIT)
                raise NoRoom(found.message, found.fix) from error
        return status.read(made)

    def lease(self, request: Ready, run: int = 1) -> Lease | None:
        """The file in the job's folder, in Google's own storage or in an emulator's."""
        folder = messages.job_dir(request, run) or ""
        ours = self.service.endpoint is None or os.environ.get(service.STORAGE)
        if not (folder.startswith("gs://") and ours):
            return None
        return BucketLease(self.storage, folder)

    def same(self, request: Ready) -> list[JobStatus]:
        """The jobs with the request's key, newest first."""
        kind: Kind = "custom" if request.job.study is None else "tuning"
        with explaining(f"submit {request.job.id}", status.SUBMIT):
            return self._listed(kind, f'labels.{messages.KEY_LABEL}="{self.key(request)}"')

    # --- reading ---

    def newest(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """The newest jobs of the region, newest first; with `name` those of one description."""
        with explaining("list"):
            return tuple(
                self._all(f'labels.{messages.NAME_LABEL}="{name}"' if name else "")[:limit]
            )

    def find(self, name: str) -> JobStatus:
        """The job that a person means: the service's whole name or number, the display name, or
        the name of a description, which means its newest job. Raises OutsideError."""
        if _NAME.fullmatch(name):
            return self.get(name)
        if name.isdigit():
            return self._by_number(name)
        text = name.replace("\\", "").replace('"', "")
        with explaining(f"find {name}"):
            for where in (f'labels.{messages.NAME_LABEL}="{text}"', f'display_name="{text}"'):
                if found := self._all(where, limit=100):
                    return found[0]
        raise OutsideError(
            f"no job is called {name} in {self.where}",
            "builder job list shows all; --region asks another region",
        )

    def get(self, name: str) -> JobStatus:
        """One job by the service's whole name."""
        with explaining(name):
            if _kind(name) == "custom":
                found: Any = self.client.get_custom_job(name=name, retry=googleapi.reading())
            else:
                found = self.client.get_hyperparameter_tuning_job(
                    name=name, retry=googleapi.reading()
                )
            return status.read(found)

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask for an end; a job that has ended is left alone."""
        from google.api_core import exceptions

        now = self.get(job.name)
        if not now.active:
            return now
        with explaining(f"cancel {job.id}"):
            try:
                if _kind(job.name) == "custom":
                    self.client.cancel_custom_job(name=job.name, retry=googleapi.reading())
                else:
                    self.client.cancel_hyperparameter_tuning_job(
                        name=job.name, retry=googleapi.reading()
                    )
            except exceptions.BadRequest:  # it ended between the two calls
                now = self.get(job.name)
                if now.active:
                    raise
                return now
        return self.get(job.name)

    def log(self, job: JobStatus, replica: str | None = None) -> Log[LogLine]:
        """The job's lines in Cloud Logging."""
        client = service.logging_client(self.service)
        return CloudLog(client, self.service.project or "", job.id, replica=replica)

    def usage(self, job: JobStatus) -> Log[Sample]:
        """Nothing: the service does not tell it."""
        del job
        return _Nothing()

    # --- pieces ---

    def _all(self, where: str, limit: int = 1000) -> list[JobStatus]:
        kinds: tuple[Kind, ...] = ("custom", "tuning")
        found = [one for kind in kinds for one in self._listed(kind, where, limit)]
        return sorted(found, key=age, reverse=True)

    def _listed(self, kind: Kind, where: str, limit: int = 1000) -> list[JobStatus]:
        request = {"parent": self.service.parent, "filter": where}
        if kind == "custom":
            pages: Any = self.client.list_custom_jobs(request=request, retry=googleapi.reading())
        else:
            pages = self.client.list_hyperparameter_tuning_jobs(
                request=request, retry=googleapi.reading()
            )
        found = []
        for one in pages:
            found.append(status.read(one))
            if len(found) >= limit:
                break
        return sorted(found, key=age, reverse=True)

    def _by_number(self, number: str) -> JobStatus:
        first: FactoryError | None = None
        for collection in status.COLLECTIONS:
            try:
                return self.get(f"{self.service.parent}/{collection}/{number}")
            except OutsideError as error:
                first = first or error
        assert first is not None
        raise first


class _Nothing:
    def new(self) -> tuple[Sample, ...]:
        return ()


def _kind(name: str) -> Kind:
    match = _NAME.fullmatch(name)
    return status.COLLECTIONS[match[1]] if match else "custom"
