"""Jobs on Vertex AI: submit, find, list, cancel, wait.

Submitting is idempotent: a job carries a hash of all that it asks for as a label, and a command
that finds such a job, active or done, makes no second one. That holds after a connection that broke
between the service's deed and its answer, and for two commands at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import Passing, Retry
from builder.jobs.images import Service
from builder.jobs.places.vertex import messages as vertex
from builder.jobs.places.vertex import status as remote
from builder.jobs.places.vertex.checks import Ready
from builder.jobs.places.vertex.status import RemoteJob

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

CREATE_ATTEMPTS = 3
POLL_SECONDS = 10.0
_DONE = ("succeeded", "partially_succeeded")


@dataclass(frozen=True)
class Submitted:
    """The job, and whether this command made it; `why` says what was found where it did not."""

    job: RemoteJob
    created: bool
    why: str = ""


def submit(
    client: JobServiceClient,
    service: Service,
    ready: Ready,
    *,
    locks: Path,
    again: bool = False,
    on_event: OnEvent = ignore,
) -> Submitted:
    """Send a job, unless it is there already.

    One that is active or has succeeded is found; one that failed, expired or was cancelled is made
    anew with the same job directory, where the trainer takes up its checkpoints. `again`: run it a
    second time, with a directory of its own. `locks`: a folder that this machine's commands share.
    Raises OutsideError.
    """
    if ready.image.digest is None:
        raise InputError(
            f"{ready.image.reference} is not known by its digest",
            "push it first: builder image TARGET --push",
        )
    found = vertex.key(ready)
    with (
        step(f"submit {ready.job.id}", on_event) as submitting,
        files.locked(locks / f"submit-{found}.lock"),
        remote.refusals(submitting.name),
    ):
        result = _submit(client, service, ready, found, again, submitting.log)
        submitting.cached = not result.created
    return result


def _submit(
    client: JobServiceClient,
    service: Service,
    ready: Ready,
    found: str,
    again: bool,
    say: Callable[[str], None],
) -> Submitted:
    kind = "custom" if ready.job.study is None else "tuning"
    before = _with_key(client, service, kind, found)
    run = max((_run(one) for one in before), default=1)
    if again and before:
        run += 1
    same = [one for one in before if _run(one) == run]
    if running := [one for one in same if _stays(one)]:
        oldest = min(running, key=_age)  # of two made at once, the one that is kept
        return Submitted(oldest, False, f"it is {oldest.state} already")
    for one in same:
        if one.state in _DONE:
            return Submitted(one, False, f"it {one.state.replace('_', ' ')} before")
    made = _create(client, service, ready, kind, found, run, say)
    winner = _first_of(client, service, kind, found, run, made)
    if winner.name != made.name:  # another machine sent the same job at the same moment
        say(f"{winner.id} was made at the same moment: {made.id} is cancelled")
        cancel(client, made)
        return Submitted(winner, False, "another command made it at the same moment")
    return Submitted(made, True)


def _create(
    client: JobServiceClient,
    service: Service,
    ready: Ready,
    kind: str,
    found: str,
    run: int,
    say: Callable[[str], None],
) -> RemoteJob:
    """Create the job. Where the answer got lost, look whether it was made before trying again."""
    import requests
    from google.api_core import exceptions

    wanted = vertex.message(ready, run)
    known = {one.name for one in _with_key(client, service, kind, found)}

    def attempt() -> RemoteJob:
        try:
            if kind == "custom":
                made: Any = client.create_custom_job(parent=service.parent, custom_job=wanted)
            else:
                made = client.create_hyperparameter_tuning_job(
                    parent=service.parent, hyperparameter_tuning_job=wanted
                )
            return remote.read(made)
        except (
            exceptions.ServerError,
            exceptions.DeadlineExceeded,
            exceptions.Unknown,
            requests.exceptions.ConnectionError,
            requests.exceptions.Timeout,
        ) as error:
            say(f"the answer got lost ({type(error).__name__}): looking whether the job was made")
            new = [one for one in _with_key(client, service, kind, found) if one.name not in known]
            if new:
                return new[0]
            raise Passing(str(error), final=error) from None

    return Retry(CREATE_ATTEMPTS, first=0.5).run(attempt)


def _first_of(
    client: JobServiceClient, service: Service, kind: str, found: str, run: int, made: RemoteJob
) -> RemoteJob:
    rivals = [
        one
        for one in _with_key(client, service, kind, found)
        if _run(one) == run and (_stays(one) or one.name == made.name)
    ]
    return min(rivals, key=_age, default=made)


def _stays(job: RemoteJob) -> bool:
    return job.active and job.state != "cancelling"


def _age(job: RemoteJob) -> tuple[float, str]:
    """What two commands that look at the same jobs sort alike: the oldest first."""
    return (job.created.timestamp() if job.created else 0.0, job.name)


def _run(job: RemoteJob) -> int:
    text = job.labels.get(vertex.RUN_LABEL, "1")
    return int(text) if text.isdigit() else 1


def _with_key(client: JobServiceClient, service: Service, kind: str, found: str) -> list[RemoteJob]:
    """The jobs that ask for the same, newest first."""
    return _listed(client, service, kind, f'labels.{vertex.KEY_LABEL}="{found}"')


def _listed(
    client: JobServiceClient, service: Service, kind: str, where: str, limit: int = 1000
) -> list[RemoteJob]:
    request = {"parent": service.parent, "filter": where}
    if kind == "custom":
        pages: Any = client.list_custom_jobs(request=request, retry=remote.passing())
    else:
        pages = client.list_hyperparameter_tuning_jobs(request=request, retry=remote.passing())
    found = []
    for one in pages:
        found.append(remote.read(one))
        if len(found) >= limit:
            break
    return sorted(found, key=_age, reverse=True)


# --- reading --------------------------------------------------------------------------------------


def listing(
    client: JobServiceClient, service: Service, name: str | None = None, limit: int = 20
) -> tuple[RemoteJob, ...]:
    """The jobs of the region, newest first; with `name` those of one description."""
    where = f'labels.{vertex.NAME_LABEL}="{name}"' if name else ""
    with remote.refusals("list"):
        found = [
            *_listed(client, service, "custom", where),
            *_listed(client, service, "tuning", where),
        ]
    found.sort(key=_age, reverse=True)
    return tuple(found[:limit])


def find(client: JobServiceClient, service: Service, name: str) -> RemoteJob:
    """The job that a person means.

    `name`: the service's whole name or number, the display name, or the name of a description,
    which means its newest job. Raises OutsideError where there is none.
    """
    whole = re.fullmatch(
        r"projects/[^/]+/locations/[^/]+/(customJobs|hyperparameterTuningJobs)/[0-9]+", name
    )
    if whole:
        return get(client, name, remote.COLLECTIONS[whole[1]])
    if name.isdigit():
        return _by_number(client, service, name)
    text = name.replace("\\", "").replace('"', "")
    with remote.refusals(f"find {name}"):
        for where in (f'labels.{vertex.NAME_LABEL}="{text}"', f'display_name="{text}"'):
            found = [
                *_listed(client, service, "custom", where, 100),
                *_listed(client, service, "tuning", where, 100),
            ]
            if found:
                return max(found, key=_age)
    raise OutsideError(
        f"no job is called {name} in {service.region} of {service.project}",
        "builder job list shows all; another region is asked with --region",
    )


def _by_number(client: JobServiceClient, service: Service, number: str) -> RemoteJob:
    first: FactoryError | None = None
    for collection, kind in remote.COLLECTIONS.items():
        try:
            return get(client, f"{service.parent}/{collection}/{number}", kind)
        except OutsideError as error:
            first = first or error
    assert first is not None
    raise first


def get(client: JobServiceClient, name: str, kind: remote.Kind) -> RemoteJob:
    """One job by the service's whole name. Raises OutsideError."""
    with remote.refusals(name):
        if kind == "custom":
            return remote.read(client.get_custom_job(name=name, retry=remote.passing()))
        return remote.read(client.get_hyperparameter_tuning_job(name=name, retry=remote.passing()))


def cancel(client: JobServiceClient, job: RemoteJob) -> RemoteJob:
    """Ask for an end; one that has ended is left alone. Returns the job as it is then."""
    from google.api_core import exceptions

    now = get(client, job.name, job.kind)
    if not now.active:
        return now
    with remote.refusals(f"cancel {job.id}"):
        try:
            if job.kind == "custom":
                client.cancel_custom_job(name=job.name, retry=remote.passing())
            else:
                client.cancel_hyperparameter_tuning_job(name=job.name, retry=remote.passing())
        except exceptions.BadRequest:  # it ended between the look and the call
            now = get(client, job.name, job.kind)
            if now.active:
                raise
            return now
    return get(client, job.name, job.kind)


def wait(
    client: JobServiceClient,
    job: RemoteJob,
    *,
    poll: float = POLL_SECONDS,
    timeout: float | None = None,
    on_look: Callable[[RemoteJob], None] | None = None,
) -> RemoteJob:
    """Look at the job every `poll` seconds until it has ended, or `timeout` seconds are over.

    `on_look` gets the job each time. Raises OutsideError.
    """
    began = time.monotonic()
    while True:
        job = get(client, job.name, job.kind)
        if on_look is not None:
            on_look(job)
        if not job.active:
            return job
        if timeout is not None and time.monotonic() - began + poll > timeout:
            raise OutsideError(
                f"{job.display_name} is still {job.state} after {timeout:.0f} s",
                f"builder job wait {job.id}",
            )
        time.sleep(poll)


def check_bucket(ready: Ready, storage: Any) -> tuple[str, ...]:
    """That the bucket of the job directory is there and in the job's region.

    Training wants a bucket of one region. `storage`: a google.cloud.storage.Client. Returns notes.
    Raises InputError for a bucket elsewhere, OutsideError for one that is not there.
    """
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    from builder.jobs import description

    if not ready.job.job_dir:
        return ()
    name = ready.job.job_dir.removeprefix("gs://").split("/")[0]
    try:
        bucket = storage.get_bucket(name)
    except exceptions.NotFound:
        raise OutsideError(
            f"{description.where(ready.job, 'job_dir')}: there is no bucket gs://{name}",
            f"gcloud storage buckets create gs://{name} --location={ready.region}",
        ) from None
    except (exceptions.Forbidden, exceptions.Unauthorized, GoogleAuthError):
        return (f"gs://{name}: its location cannot be read with these credentials; not checked",)
    except exceptions.GoogleAPICallError as error:
        return (f"gs://{name}: its location cannot be read ({error.message}); not checked",)
    location, kind = str(bucket.location or "").lower(), str(bucket.location_type or "region")
    if kind != "region":
        raise InputError(
            f"{description.where(ready.job, 'job_dir')}: gs://{name} is a {kind} bucket "
            f"({location}), and training wants one of a single region",
            f"gcloud storage buckets create gs://{name}-{ready.region} --location={ready.region}",
        )
    if location != ready.region:
        raise InputError(
            f"{description.where(ready.job, 'job_dir')}: gs://{name} is in {location}, the job in "
            f"{ready.region}",
            f"write region: {location}, or take a bucket in {ready.region}",
        )
    return ()
