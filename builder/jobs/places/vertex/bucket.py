"""The bucket of a job's directory, looked at before the job is sent."""

from __future__ import annotations

from typing import Any

from builder.core.errors import InputError, OutsideError
from builder.jobs.description import where
from builder.jobs.ready import Ready


def check(ready: Ready, storage: Any) -> tuple[str, ...]:
    """Check that the job directory's bucket exists, in the job's region alone. Returns notes.

    storage: a google.cloud.storage.Client. Raises InputError for a bucket in another or in several
    regions, OutsideError for a missing one.
    """
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if not ready.job.job_dir:
        return ()
    name = ready.job.job_dir.removeprefix("gs://").split("/")[0]
    try:
        bucket = storage.get_bucket(name)
    except exceptions.NotFound:
        raise OutsideError(
            f"{where(ready.job, 'job_dir')}: there is no bucket gs://{name}",
            f"gcloud storage buckets create gs://{name} --location={ready.region}",
        ) from None
    except (exceptions.Forbidden, exceptions.Unauthorized, GoogleAuthError):
        return (f"gs://{name}: its location cannot be read with these credentials; not checked",)
    except exceptions.GoogleAPICallError as error:
        return (f"gs://{name}: its location cannot be read ({error.message}); not checked",)
    location, kind = str(bucket.location or "").lower(), str(bucket.location_type or "region")
    if kind != "region":
        raise InputError(
            f"{where(ready.job, 'job_dir')}: gs://{name} is a {kind} bucket "
            f"({location}), and training needs one of a single region",
            f"gcloud storage buckets create gs://{name}-{ready.region} --location={ready.region}",
        )
    if location != ready.region:
        raise InputError(
            f"{where(ready.job, 'job_dir')}: gs://{name} is in {location}, the job in "
            f"{ready.region}",
            f"write region: {location}, or take a bucket in {ready.region}",
        )
    return ()
