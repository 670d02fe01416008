"""Vertex AI as a backend: its job service and Cloud Logging behind the calls of the protocol, and
what is checked before a job is sent there."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import googleapi, registry
from builder.core import settings
from builder.core.backends import Flags
from builder.core.errors import InputError, OutsideError
from builder.jobs import checks, description, machines
from builder.jobs.backends.protocol import JobStatus, LogReader, LostAnswer, by_age
from builder.jobs.backends.vertex import bucket, messages, status
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.backends.vertex.status import explaining
from builder.jobs.description.job import Job
from builder.jobs.ready import KEY_LABEL, NAME_LABEL, JobImage, Ready

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

CUSTOM, TUNING = "customJobs", "hyperparameterTuningJobs"
_KINDS = {CUSTOM: "custom_job", TUNING: "hyperparameter_tuning_job"}
_NAME = re.compile(rf"projects/[^/]+/locations/[^/]+/({CUSTOM}|{TUNING})/[0-9]+")


def connect(root: Path, job: Job | None, flags: Flags, name: str | None) -> VertexAI:
    """Return the project and region of a job that is sent, of the service's whole name of a job
    that is asked about, or else of its description.

    Where a job is asked about, they have to be known. Raises InputError.
    """
    if (parts := (name or "").split("/")) and len(parts) == 6:
        # projects/P/locations/R/customJobs/N
        flags = {**flags, "project": flags.get("project") or parts[1], "region": parts[3]}
    if name in description.names(root):
        job = description.load(root, str(name))
    backend = VertexAI(load(root, job, flags))
    return backend if job and name is None else backend.known()


def load(
    root: Path, job: Job | None, flags: Flags, environ: Mapping[str, str] | None = None
) -> JobSettings:
    """Return where a job goes: a flag wins over the job's file, the file over the environment
    (BUILDER_JOB_PROJECT ...), and these over the table [job] of builder.toml. The project of
    [cloud] serves where [job] names none.

    flags: project and region. Raises InputError that names where a bad value came from.
    """
    environ = os.environ if environ is None else environ
    own = {name: flags.get(name) or getattr(job, name, None) for name in ("project", "region")}
    chosen = settings.load(root, environ=environ, tables={"job": own})
    configured = chosen.table("job", JobSettings)
    project = configured.project or chosen.cloud.project or environ.get("GOOGLE_CLOUD_PROJECT")
    return configured.model_copy(update={"project": project})


@dataclass(frozen=True)
class VertexAI:
    title = "Vertex AI"
    name = "vertex"

    settings: JobSettings

    @property
    def location(self) -> str:
        return f"{self.settings.region} of {self.settings.project}"

    @property
    def parent(self) -> str:
        """Return the parent resource of jobs. Raises InputError without a project or a region."""
        for name in ("project", "region"):
            if not getattr(self.settings, name):
                raise InputError(
                    f"no {name} is known",
                    f"give --{name}, add {name}: to the job, or set it in the table [job] of "
                    "builder.toml",
                )
        return f"projects/{self.settings.project}/locations/{self.settings.region}"

    def known(self) -> VertexAI:
        """Return itself. Raises InputError without a project or a region; needs no credentials."""
        _ = self.parent
        return self

    @cached_property
    def client(self) -> JobServiceClient:
        from google.cloud import aiplatform_v1

        own = f"https://{self.settings.region}-aiplatform.googleapis.com"
        endpoint = self.settings.endpoint or own
        return aiplatform_v1.JobServiceClient(
            credentials=googleapi.credentials(endpoint)[0],
            transport="rest",
            client_options={"api_endpoint": endpoint},
        )

    # --- sending ---

    def check(self, job: Job, image: JobImage, targets: Mapping[str, str]) -> Ready:
        problems, placements, notes = checks.common(job, image, targets)
        with problems.at(("environment",)):
            _check_environment(job, image, self.settings.project)
        with problems.at(("region",)):
            if self.settings.region is None:
                raise InputError(
                    "no region is known",
                    "add region: us-central1 to the job, or give --region, or set it in [job]",
                )
            for placement in placements:
                machines.check_region(placement, self.settings.region)
        with problems.at(("image",)):
            if (
                self.settings.endpoint is None and image.in_registry
            ):  # Google's own service pulls it
                _check_registry(image)
        problems.stop()
        devices = dict.fromkeys(placement.device for placement in placements if placement.device)
        notes += [device.warning for device in devices if device.warning]
        notes += [f"{name}: a cluster's own, not rendered" for name in job.elsewhere("vertex")]
        project, region = self.settings.project, self.settings.region or ""
        return Ready(job, image, region, placements, project, tuple(notes))

    def preflight(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:  # noqa: ARG002
        """Raise InputError without a project or a region; the service checks what it creates."""
        self.known()
        return messages.body(ready, run)

    def key(self, ready: Ready) -> str:
        return messages.key(ready)

    def render(self, ready: Ready) -> dict[str, Any]:
        return messages.body(ready)

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:  # noqa: ARG002
        """Create the job, which the service itself numbers. Raises LostAnswer, OutsideError."""
        import requests
        from google.api_core import exceptions
        from google.cloud import aiplatform_v1

        bucket.check(self.settings, ready)
        tuning = ready.job.study is not None
        message = aiplatform_v1.HyperparameterTuningJob if tuning else aiplatform_v1.CustomJob
        job: Any = message.from_json(json.dumps(messages.body(ready, run)))
        lost = (
            exceptions.ServerError,
            requests.exceptions.ConnectionError,
            requests.exceptions.Timeout,
            requests.exceptions.ChunkedEncodingError,
        )
        what = f"submit {ready.job.id}"
        with explaining(what):
            try:
                kind = _KINDS[TUNING if tuning else CUSTOM]
                created = self._call("create", kind)(parent=self.parent, **{kind: job})
            except lost as error:
                explained = googleapi.explained(error, what, status.ADVICE)
                raise LostAnswer(explained.message, explained.fix) from error
        return status.read(created)

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        with explaining("submit"):
            return self._listed(f'labels.{KEY_LABEL}="{key}"')

    # --- asking ---

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        with explaining("list"):
            wanted = f'labels.{NAME_LABEL}="{name}"' if name else ""
            return self._listed(wanted)[:limit]

    def find(self, name: str) -> JobStatus:
        """An id is the service's number."""
        if _NAME.fullmatch(name):
            return self.get(name)
        if name.isdigit():
            custom, tuning = (f"{self.parent}/{kind}/{name}" for kind in _KINDS)
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
        with explaining(name):
            retry = googleapi.read_retry()
            return status.read(self._call("get", _kind(name))(name=name, retry=retry))

    def cancel(self, job: JobStatus) -> JobStatus:
        from google.api_core import exceptions

        now = self.get(job.name)
        if not now.active:
            return now
        cancel = self._call("cancel", _kind(job.name))
        with explaining(f"cancel {job.id}"), contextlib.suppress(exceptions.BadRequest):
            cancel(name=job.name, retry=googleapi.read_retry())  # refused where it has just ended
        return self.get(job.name)

    def logs(self, job: JobStatus) -> LogReader:
        return status.CloudLog.of(self.settings, job.id)

    # --- pieces ---

    def _listed(self, wanted: str, limit: int = 1000) -> tuple[JobStatus, ...]:
        """Return the jobs that fit a filter of the service, of each kind `limit` at most."""
        request = {"parent": self.parent, "filter": wanted}
        jobs = []
        for kind in _KINDS.values():
            pages = self._call("list", f"{kind}s")(request=request, retry=googleapi.read_retry())
            jobs += [status.read(job) for job, _ in zip(pages, range(limit), strict=False)]
        return tuple(sorted(jobs, key=by_age, reverse=True))

    def _call(self, verb: str, kind: str) -> Any:
        """Return the client's call for one kind of job, such as get_custom_job."""
        return partial(getattr(self.client, f"{verb}_{kind}"), timeout=googleapi.READ_SECONDS)


def _kind(name: str) -> str:
    return _KINDS[TUNING if f"/{TUNING}/" in name else CUSTOM]


def _check_registry(image: JobImage) -> None:
    reference = registry.parse(image.reference)
    if not (
        reference.host == registry.DOCKER_HUB or reference.host.endswith((".pkg.dev", "gcr.io"))
    ):
        path = reference.repository.rsplit("/", 1)[-1]
        raise InputError(
            f"Vertex AI cannot pull from {reference.host}: it takes images from Artifact Registry "
            "and Docker Hub",
            f"push it to REGION-docker.pkg.dev/PROJECT/REPOSITORY/{path} and name that",
        )


def _check_environment(job: Job, image: JobImage, project: str | None) -> None:
    """Raise InputError for a secret that the job would hold, or that no start could read."""
    for name, secret in job.secrets.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", secret.secret):
            what = f"{name}: {secret.secret} is no name in Secret Manager"
            raise InputError(what, "use letters, digits, _ and -")
        if project is None:
            raise InputError(f"{name} names a secret, and no project is known", "give --project")
        if not (job.command or image.entrypoint):
            what = f"{name} is read before the program starts, and what the image starts is unknown"
            raise InputError(what, "write command: [python3, -m, MODULE]")
    checks.check_no_plain_secrets(
        job,
        "write {name}: {{secret: NAME}}, and make it: gcloud secrets create NAME --data-file=FILE",
    )
