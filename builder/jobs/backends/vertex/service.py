"""Where jobs go on Vertex AI: project, region and endpoint; and the clients that speak to it.

A flag wins over the job's file, the file over the environment (BUILDER_JOB_PROJECT ...), and these
over the table [job] of builder.toml. `endpoint` is Google's own where nothing else is set; an
emulator and private access have another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.core import settings
from builder.core.errors import InputError
from builder.jobs.description.job import Job

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
    root: Path,
    job: Job | None,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str] | None = None,
) -> Service:
    """Return where a job goes. flags: project and region. The project of [cloud] serves where [job]
    names none. Raises InputError that names where a bad value came from.
    """
    environ = os.environ if environ is None else environ
    own = {name: flags.get(name) or getattr(job, name, None) for name in ("project", "region")}
    chosen = settings.load(root, environ=environ, tables={"job": own})
    project = chosen.job.project or chosen.cloud.project or environ.get("GOOGLE_CLOUD_PROJECT")
    return Service(**{**chosen.job.model_dump(), "project": project})


# --- clients --------------------------------------------------------------------------------------


def jobs_client(service: Service) -> JobServiceClient:
    """Return a client of the job service. An http:// endpoint is an emulator: it gets no
    credentials."""
    from google.api_core.client_options import ClientOptions
    from google.cloud import aiplatform_v1

    host = service.endpoint or f"{service.region}-aiplatform.googleapis.com"
    if not host.startswith("http://"):
        return aiplatform_v1.JobServiceClient(
            credentials=credentials(host),
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
    session = googleapi.session(credentials(host))

    def entries(body: Mapping[str, Any]) -> dict[str, Any]:
        answer = session.post(f"{host}/v2/entries:list", json=body, timeout=READ_SECONDS)
        if not answer.ok:
            raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
        return dict(answer.json())

    return entries


def storage_client(service: Service) -> Any:
    """Return a client of Cloud Storage. The library itself reads STORAGE_EMULATOR_HOST."""
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    login = credentials("http://" if os.environ.get(STORAGE) else None)
    return Client(project=service.project, credentials=login)


def credentials(endpoint: str | None) -> Any:
    """Return the credentials for an endpoint; none for an emulator. Raises OutsideError."""
    from google.auth.credentials import AnonymousCredentials

    if (endpoint or "").startswith("http://"):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    return googleapi.credentials()[0]
