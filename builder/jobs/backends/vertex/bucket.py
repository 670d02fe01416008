"""The bucket of a job's folder."""

from __future__ import annotations

import os
from typing import Any

from builder import googleapi
from builder.core.errors import OutsideError
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.backends.vertex.status import explaining
from builder.jobs.ready import Ready


def name(ready: Ready) -> str:
    """Return the bucket's name; "": the job has no folder of its own."""
    return ready.job.job_dir.split("/")[2] if ready.job.job_dir else ""


def location(project: str | None, called: str) -> str | None:
    """Return the region of a bucket, in lower case; None: there is no such bucket. Raises
    OutsideError where it cannot be known."""
    from google.api_core import exceptions

    try:
        with explaining(f"gs://{called}"):
            bucket = _storage(project).get_bucket(called)
    except OutsideError as error:
        if isinstance(error.__cause__, exceptions.NotFound):
            return None
        raise
    return str(bucket.location or "").lower()


def create(called: str, region: str) -> str:
    return f"gcloud storage buckets create gs://{called} --location={region}"


def check(settings: JobSettings, ready: Ready) -> None:
    """Refuse a job whose bucket is not there, before it waits for machines.

    Whoever may submit need not be allowed to look at the bucket: then the job is its own answer. So
    it is where the service is another's, and STORAGE_EMULATOR_HOST names no store beside it.
    Raises OutsideError.
    """
    called, own = name(ready), settings.endpoint and not os.environ.get("STORAGE_EMULATOR_HOST")
    if not called or own:
        return
    try:
        found = location(settings.project, called)
    except OutsideError:
        return
    if found is None:
        raise OutsideError(
            f"job_dir: there is no bucket gs://{called}", create(called, ready.region)
        )


def _storage(project: str | None) -> Any:
    """Return a client of Cloud Storage; the library itself reads STORAGE_EMULATOR_HOST."""
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    login, _ = googleapi.credentials(os.environ.get("STORAGE_EMULATOR_HOST"))
    return Client(project=project, credentials=login)
