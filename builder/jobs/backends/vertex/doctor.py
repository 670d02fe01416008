"""Checks of what a job on Vertex AI needs: credentials, rights, the bucket.

Source: Vertex AI, "Access control with IAM".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from builder import googleapi
from builder.core.errors import OutsideError
from builder.core.findings import DoctorFinding, Unknown, check, examine
from builder.googleapi import Project
from builder.jobs.backends.vertex import bucket
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.backends.vertex.status import explaining
from builder.jobs.ready import Ready

RUNS_JOBS: Final = {
    f"aiplatform.{right}": "roles/aiplatform.user"
    for right in (
        *("customJobs.create", "customJobs.get", "customJobs.list", "customJobs.cancel"),
        "hyperparameterTuningJobs.create",
    )
}


@dataclass(frozen=True)
class Vertex:
    settings: JobSettings
    ready: Ready | None = None

    @cached_property
    def credentials(self) -> Any:
        return googleapi.credentials(self.settings.endpoint)[0]

    @cached_property
    def project(self) -> Project:
        own = self.settings.endpoint or ""
        base = own if own.startswith("http://") else None
        return Project(self.settings.project or "", googleapi.session(self.credentials), base)

    @property
    def caller(self) -> str:
        """How IAM calls whom the credentials belong to."""
        address = getattr(self.credentials, "service_account_email", None) or ""
        return f"serviceAccount:{address}" if "@" in address else "user:YOU"


def findings(backend: VertexAI, ready: Ready | None) -> tuple[DoctorFinding, ...]:
    return examine(Vertex(backend.known().settings, ready))


@check(Vertex, "credentials", essential=True)
def credentials(vertex: Vertex) -> Iterator[DoctorFinding]:
    """Yield whether the credentials hold, and until when; an emulator asks for none."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import Request

    login = vertex.credentials
    if not isinstance(login, AnonymousCredentials):
        with explaining("the login"):
            login.refresh(Request())
    expiry = getattr(login, "expiry", None)
    until = f"; this token holds until {expiry:%H:%M} UTC" if expiry else ""
    yield DoctorFinding("credentials", "ok", f"a login is accepted{until}")


@check(Vertex, "rights")
def rights(vertex: Vertex) -> Iterator[DoctorFinding]:
    yield vertex.project.may("right to run jobs", RUNS_JOBS, vertex.caller)
    yield vertex.project.reads_logs(vertex.caller)


@check(Vertex, "right to act as the job's account")
def acts_as(vertex: Vertex) -> Iterator[DoctorFinding]:
    account = vertex.ready.job.service_account if vertex.ready else None
    if account:
        yield vertex.project.acts_as(f"right to act as {account}", account, vertex.caller)


@check(Vertex, "bucket")
def job_folder(vertex: Vertex) -> Iterator[DoctorFinding]:
    """Yield whether the job's folder is in its region, and in no other."""
    called = bucket.name(vertex.ready) if vertex.ready else ""
    if vertex.ready is None or not called:
        return
    region = vertex.ready.region
    try:
        found = bucket.location(vertex.settings.project, called)
    except OutsideError as error:
        raise Unknown(error.message, error.fix) from error
    if found is None:
        create = bucket.create(called, region)
        yield DoctorFinding("bucket", "error", f"there is no bucket gs://{called}", create)
    elif found == region:
        yield DoctorFinding("bucket", "ok", f"gs://{called} is in {region}")
    else:  # of several regions such as `us`: refused, too
        what = f"gs://{called} is in {found}, and the job in {region}"
        yield DoctorFinding("bucket", "error", what, bucket.create(f"{called}-{region}", region))
