"""Checks of what a job on Vertex AI needs: credentials, APIs, rights, the bucket, quota.

Sources: Vertex AI, "Access control with IAM" and "Use a custom service account" (the service's own
agent pulls the image, whatever the job's account is); Service Usage v1beta1, consumerQuotaMetrics.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any, Final

from builder import googleapi
from builder.core.errors import OutsideError
from builder.doctor import Finding, check, google
from builder.doctor.google import Project, Question
from builder.jobs.backends.vertex import service
from builder.jobs.backends.vertex.checks import check_bucket
from builder.jobs.backends.vertex.service import Service
from builder.jobs.ready import Ready

RUNS_JOBS: Final = {
    f"aiplatform.{right}": "roles/aiplatform.user"
    for right in (
        *("customJobs.create", "customJobs.get", "customJobs.list", "customJobs.cancel"),
        "hyperparameterTuningJobs.create",
    )
}
PULLS: Final = (
    *("roles/artifactregistry.reader", "roles/artifactregistry.writer"),
    *("roles/artifactregistry.repoAdmin", "roles/artifactregistry.admin"),
    "roles/aiplatform.serviceAgent",  # the agent has it in its own project
)
WRITES: Final = (
    *("roles/storage.objectAdmin", "roles/storage.objectUser", "roles/storage.admin"),
    "roles/aiplatform.customCodeServiceAgent",
)


@dataclass(frozen=True)
class Vertex:
    """A project and region of the service, and with `ready` a job there."""

    service: Service
    ready: Ready | None = None

    @cached_property
    def credentials(self) -> Any:
        return service.credentials(self.service)

    @cached_property
    def project(self) -> Project:
        own = self.service.endpoint or ""
        # an emulator's gRPC has another port
        base = self.service.logging_endpoint or own if own.startswith("http://") else None
        return Project(self.service.project or "", googleapi.session(self.credentials), base)

    @property
    def caller(self) -> str:
        """How IAM calls whom the credentials belong to."""
        address = getattr(self.credentials, "service_account_email", None) or ""
        return f"serviceAccount:{address}" if "@" in address else "user:YOU"

    def agent(self, kind: str) -> str:
        """Return one of the service's own accounts in this project. Raises Unknown."""
        path = f"/v1/projects/{self.project.name}"
        number = self.project.ask(Question("cloudresourcemanager.googleapis.com", path))
        return f"service-{number.get('projectNumber')}@gcp-sa-{kind}.iam.gserviceaccount.com"


@check(Vertex, "credentials", essential=True)
def credentials(vertex: Vertex) -> Iterator[Finding]:
    """Yield whether the credentials hold, until when, and who pays for what they ask."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    login = vertex.credentials
    if isinstance(login, AnonymousCredentials):
        yield Finding("credentials", "ok", "none: the endpoint is an emulator's")
        return
    name = getattr(login, "service_account_email", None) or "a login"
    try:
        login.refresh(Request())
    except GoogleAuthError as error:
        problem = f"{name} is not accepted: {googleapi.first_line(error)}"
        raise OutsideError(problem, googleapi.LOGIN) from error
    until = login.expiry.replace(tzinfo=UTC) if login.expiry else None
    ends = f"; this token holds until {until:%H:%M} UTC" if until else ""
    yield Finding("credentials", "ok", f"{name} is accepted{ends}")
    if login.quota_project_id is None and type(login).__module__ == "google.oauth2.credentials":
        message = "a person's login names none: some services refuse it"
        fix = googleapi.QUOTA_PROJECT.replace("PROJECT", vertex.service.project or "PROJECT")
        yield Finding("quota project", "error", message, fix)


@check(Vertex, "APIs")
def apis(vertex: Vertex) -> Iterator[Finding]:
    yield from vertex.project.apis(("aiplatform.googleapis.com", *google.APIS))


@check(Vertex, "rights")
def rights(vertex: Vertex) -> Iterator[Finding]:
    project, grant = vertex.project, vertex.project.grant(vertex.caller)
    yield project.caller("right to run jobs", project.rights(RUNS_JOBS), RUNS_JOBS, grant)
    yield project.reads_logs(vertex.caller)


# --- one job --------------------------------------------------------------------------------------


@check(Vertex, "right to act as the job's account")
def acts_as(vertex: Vertex) -> Iterator[Finding]:
    account = vertex.ready.job.service_account if vertex.ready else None
    if account:
        yield vertex.project.acts_as(f"right to act as {account}", account, vertex.caller)


@check(Vertex, "the service reads the image")
def pulls(vertex: Vertex) -> Iterator[Finding]:
    """Yield whether the service's agent may read each image of the job."""
    names = [vertex.ready.image.reference] if vertex.ready else []
    repositories = {name: google.image_repository(name) for name in names}
    for name, repository in repositories.items():
        if repository is None:
            yield Finding("image", "warning", f"{name}: not a repository of Artifact Registry")
    for repository in dict.fromkeys(filter(None, repositories.values())):
        agent, policies = vertex.agent("aiplatform"), [repository.policy]
        if repository.project == vertex.project.name:
            policies.append(vertex.project.policy)
        grant = (
            f"gcloud artifacts repositories add-iam-policy-binding {repository.name} "
            f"--project={repository.project} --location={repository.region} "
            f"--member=serviceAccount:{agent} --role="
        )
        what = f"the service reads {repository.project}/{repository.name}"
        yield vertex.project.granted(what, agent, PULLS, policies, grant)


@check(Vertex, "bucket")
def job_folder(vertex: Vertex) -> Iterator[Finding]:
    """Yield whether the job's folder is in its region, and the job's account may write there."""
    if vertex.ready is None or not vertex.ready.job.job_dir:
        return
    name = vertex.ready.job.job_dir.removeprefix("gs://").split("/")[0]
    for note in check_bucket(vertex.ready, service.storage_client(vertex.service)):
        yield Finding("bucket", "warning", note)
    account = vertex.ready.job.service_account or vertex.agent("aiplatform-cc")
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{name}"
    yield vertex.project.granted(
        f"the job writes to gs://{name}",
        account,
        WRITES,
        [google.bucket_policy(name), vertex.project.policy],
        f"{grant} --member=serviceAccount:{account} --role=",
    )


@check(Vertex, "quota")
def quota(vertex: Vertex) -> Iterator[Finding]:
    """Yield the limits in the job's region beside what the job asks; no service says what is in
    use.
    """
    if vertex.ready is None:
        return
    region = vertex.ready.region
    limits = _limits(vertex.project, region)
    for names, count in _quotas(vertex.ready).items():
        name = next((name for name in names if name in limits), None)
        if name is None:
            message = f"no limit of this name is published; the job asks for {count}"
            yield Finding(f"quota {names[0]}", "warning", message)
            continue
        limit = limits[name]
        message = f"{'no limit' if limit < 0 else limit} in {region}, the job asks for {count}"
        if 0 <= limit < count:
            fix = f"ask for {count} of {name} in {region} on the page Quotas of the console"
            yield Finding(f"quota {name}", "error", message, f"{fix}, or take another region")
        else:
            yield Finding(f"quota {name}", "ok", message)


def _limits(project: Project, region: str) -> dict[str, int]:
    """Return the limit of each quota metric in a region; -1 for no limit.

    Buckets stand from the least specific one to the most specific. Source: Service Usage v1beta1,
    ConsumerQuotaLimit.
    """
    path = f"/v1beta1/projects/{project.name}/services/aiplatform.googleapis.com"
    limits: dict[str, int] = {}
    token = "first"
    while token:
        page = f"pageSize=1000&pageToken={'' if token == 'first' else token}"
        question = Question("serviceusage.googleapis.com", f"{path}/consumerQuotaMetrics?{page}")
        answer = project.ask(question)
        for metric in answer.get("metrics", ()):
            name = metric["metric"].partition("/")[2]
            for limit in metric.get("consumerQuotaLimits", ()):
                for row in limit.get("quotaBuckets", ()):
                    if (row.get("dimensions") or {}).get("region") in (None, region):
                        limits[name] = int(row.get("effectiveLimit", 0))
        token = answer.get("nextPageToken", "")
    return limits


def _quotas(ready: Ready) -> Counter[tuple[str, ...]]:
    """Return the quota metrics of a job's accelerators, each by its possible names -> how many.

    A metric names the accelerator with its memory or without. A study needs those of all trials
    that run at once. Source: the names in the service's refusals, such as
    custom_model_training_nvidia_t4_gpus; those of spot begin with
    custom_model_training_preemptible.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    at_once = ready.job.study.parallel if ready.job.study else 1
    spot = "preemptible_" if ready.job.scheduling.strategy == "spot" else ""
    for pool, placement in ready.pools:
        if placement.device is None:
            continue
        name = (placement.device.type or placement.device.name).lower().replace("-", "_")
        words = [name]
        if placement.device.kind != "tpu":
            word = name.replace("nvidia_tesla_", "nvidia_")
            short = word if "a100" in word else re.sub(r"_[0-9]+gb$", "", word)
            words = [f"{word}_gpus" for word in dict.fromkeys((word, short))]
        names = tuple(f"custom_model_training_{spot}{word}" for word in words)
        counts[names] += pool.count * placement.count * at_once
    return counts
