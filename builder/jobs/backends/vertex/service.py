"""Where jobs go on Vertex AI: project, region and endpoint; and the clients that speak to it.

A flag wins over the job's file, the file over the environment (BUILDER_JOB_PROJECT ...), and these
over the table [job] of builder.toml. `endpoint` is Google's own where nothing else is set; an
emulator and private access have another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.core import settings
from builder.core.errors import InputError
from builder.jobs import description
from builder.jobs.description import Job

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

ReadEntries = Callable[[Mapping[str, Any]], dict[str, Any]]
READ_SECONDS = 60.0
STORAGE = "STORAGE_EMULATOR_HOST"
"""The variable of the storage library for an emulator."""


@dataclass(frozen=True)
class Service:
    """A project and region of the service. endpoint: None for Google's own."""

    project: str | None = None
    region: str | None = None
    endpoint: str | None = None
    logging_endpoint: str | None = None

    @property
    def parent(self) -> str:
        """Return the parent resource of jobs. Raises InputError without a project or a region."""
        for name in ("project", "region"):
            if not getattr(self, name):
                raise InputError(
                    f"no {name} is known",
                    f"give --{name}, add {name}: to the job, or set it in the table [job] of "
                    "builder.toml",
                )
        return f"projects/{self.project}/locations/{self.region}"

    def known(self) -> Service:
        """Return itself. Raises InputError without a project or a region; needs no credentials."""
        _ = self.parent
        return self


def load(
    root: Path | None,
    job: Job | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    **flags: str | None,
) -> Service:
    """Return where a job goes. The project of [cloud] serves where [job] names none.

    Raises InputError that names where a bad value came from.
    """
    environ = os.environ if environ is None else environ
    described = {name: getattr(job, name, None) for name in ("project", "region")}
    flags = {name: flags.get(name) or described.get(name) for name in {*flags, *described}}
    chosen = settings.load(root or Path(os.devnull), environ=environ, tables={"job": flags})
    project = chosen.job.project or chosen.cloud.project or environ.get("GOOGLE_CLOUD_PROJECT")
    return Service(**{**chosen.job.model_dump(), "project": project})


def of_job(
    root: Path, name: str | None, project: str | None = None, region: str | None = None
) -> Service:
    """Return where to ask about a job: from its whole name, or from the description of that name.

    Raises InputError where no project or no region is known.
    """
    job = None
    if name and name in description.names(root):
        job = description.load(root, name)
    service = load(root, job, project=project, region=region)
    parts = (name or "").split("/")
    if len(parts) == 6 and parts[0] == "projects":
        service = replace(service, project=service.project or parts[1], region=parts[3])
    return service.known()


# --- clients --------------------------------------------------------------------------------------


def jobs_client(service: Service) -> JobServiceClient:
    """Return a client of the job service. An http:// endpoint is an emulator: it gets no
    credentials."""
    from google.api_core.client_options import ClientOptions
    from google.cloud import aiplatform_v1

    host = service.endpoint or f"{service.region}-aiplatform.googleapis.com"
    if not host.startswith("http://"):
        return aiplatform_v1.JobServiceClient(
            credentials=googleapi.credentials()[0],
            client_options=ClientOptions(api_endpoint=host.removeprefix("https://")),
        )
    import grpc  # type: ignore[import-untyped]
    from google.cloud.aiplatform_v1.services.job_service.transports.grpc import (
        JobServiceGrpcTransport,
    )

    channel = grpc.insecure_channel(host.removeprefix("http://"))
    return aiplatform_v1.JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))


def logging_client(service: Service) -> ReadEntries:
    """Return how Cloud Logging is asked for a page: the body of entries.list in, its answer out.

    google-cloud-logging has no such call: it adds "the last 24 hours" to a filter without a time,
    and after an error it begins at the first page again.
    """
    from google.api_core import exceptions

    host = service.logging_endpoint or "https://logging.googleapis.com"
    anonymous = host.startswith("http://")
    session = googleapi.session(_anonymous() if anonymous else googleapi.credentials()[0])

    def entries(body: Mapping[str, Any]) -> dict[str, Any]:
        answer = session.post(f"{host}/v2/entries:list", json=body, timeout=READ_SECONDS)
        if not answer.ok:
            raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
        return dict(answer.json())

    return entries


def storage_client(service: Service) -> Any:
    """Return a client of Cloud Storage. The library itself reads STORAGE_EMULATOR_HOST."""
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    if os.environ.get(STORAGE):
        return Client(project=service.project, credentials=_anonymous())
    return Client(project=service.project, credentials=googleapi.credentials()[0])


def credentials(service: Service) -> Any:
    """Return the credentials for a service; none for an emulator. Raises OutsideError."""
    if (service.endpoint or "").startswith("http://"):
        return _anonymous()
    return googleapi.credentials()[0]


def _anonymous() -> Any:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call]
