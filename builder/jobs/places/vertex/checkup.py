"""What prevents a job on Vertex AI, each with its remedy: credentials, APIs, rights, quota.

It asks the project's own services and changes nothing. Sources: Vertex AI, "Access control with
IAM" and "Use a custom service account" (the service's own agent pulls the image, whatever the
job's account is); Service Usage v1beta1, consumerQuotaMetrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any, Final

from builder.core import googleaccess, googleapi
from builder.core.checkup import Finding
from builder.core.errors import FactoryError
from builder.core.googleaccess import ACT_AS, Project
from builder.jobs.machines import Placement
from builder.jobs.places.vertex import bucket, service
from builder.jobs.places.vertex.service import Service
from builder.jobs.places.vertex.status import ADVICE
from builder.jobs.ready import Ready

APIS: Final = (
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "storage.googleapis.com",
    "logging.googleapis.com",
)
OURS: Final = {
    "aiplatform.customJobs.create": "roles/aiplatform.user",
    "aiplatform.customJobs.get": "roles/aiplatform.user",
    "aiplatform.customJobs.list": "roles/aiplatform.user",
    "aiplatform.customJobs.cancel": "roles/aiplatform.user",
    "aiplatform.hyperparameterTuningJobs.create": "roles/aiplatform.user",
    "logging.logEntries.list": "roles/logging.viewer",
}
"""What the caller needs in the project, and a role that has it. To read logs is a right of its
own."""
AGENT_ROLE: Final = "roles/aiplatform.serviceAgent"
"""The role in its own project that the service gives to its agent; it can read images there."""
PULLS: Final = (
    "roles/artifactregistry.reader",
    "roles/artifactregistry.writer",
    "roles/artifactregistry.repoAdmin",
    "roles/artifactregistry.admin",
)
WRITES: Final = (
    "roles/storage.objectAdmin",
    "roles/storage.objectUser",
    "roles/storage.admin",
    "roles/aiplatform.customCodeServiceAgent",
)
_KINDS: Final = {
    "google.oauth2.credentials": "a person's login",
    "google.oauth2.service_account": "a service account's key",
    "google.auth.compute_engine": "the account of this machine",
    "google.auth.impersonated_credentials": "a service account, impersonated",
    "google.auth.identity_pool": "workload identity federation",
    "google.auth.aws": "workload identity federation",
    "google.auth.pluggable": "workload identity federation",
}


@dataclass(frozen=True)
class _Question:
    """What is asked about. number: the project's, "" where it is not known. who: how IAM calls the
    caller."""

    project: Project
    where: Service
    ready: Ready | None
    number: str
    who: str

    @property
    def agent(self) -> str:
        """The service's own account in this project, which pulls images."""
        return f"service-{self.number}@gcp-sa-aiplatform.iam.gserviceaccount.com"

    @property
    def account(self) -> str:
        """The account that the job runs as; by default the agent for custom code."""
        own = self.ready.job.service_account if self.ready else None
        return own or f"service-{self.number}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


def examine(where: Service, ready: Ready | None = None) -> tuple[Finding, ...]:
    """All findings about the project; with `ready` also about that job there.

    Ends with the credentials where nothing can be asked with them.
    """
    where = where.known()
    try:
        credentials = service.credentials(where)
    except FactoryError as error:
        return (Finding("credentials", "bad", error.message, error.fix),)
    found = list(credential_findings(credentials, where.project or ""))
    if any(one.state == "bad" for one in found):
        return tuple(found)
    base = where.endpoint if (where.endpoint or "").startswith("http://") else None
    if base and where.logging_endpoint:  # an emulator's gRPC has another port than its REST
        base = where.logging_endpoint
    project = Project(where.project or "", googleapi.session(credentials), ADVICE, base)
    host = "cloudresourcemanager.googleapis.com"
    told = project.ask(host, f"/v1/projects/{project.name}")
    number = "" if isinstance(told, Finding) else str(told.get("projectNumber", ""))
    if isinstance(told, Finding):
        found.append(replace(told, name="project"))
    asked = _Question(project, where, ready, number, member(credentials))
    for checks in (_apis, _caller, _acts, _pulls, _bucket, _quota):
        found += checks(asked)
    return tuple(found)


# --- credentials ----------------------------------------------------------------------------------


def credential_findings(credentials: Any, project: str) -> Iterator[Finding]:
    """Of which kind the credentials are, until when they hold, and who pays for what they ask."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    if isinstance(credentials, AnonymousCredentials):
        yield Finding("credentials", "ok", "none: the endpoint is an emulator's")
        return
    module = type(credentials).__module__
    kind = next((word for name, word in _KINDS.items() if module.startswith(name)), module)
    who = getattr(credentials, "service_account_email", None) or ""
    named = f"{kind} ({who})" if "@" in who else kind
    try:
        credentials.refresh(Request())
    except GoogleAuthError as error:
        told = googleapi.explained(error, named, ADVICE)
        yield Finding("credentials", "bad", told.message, told.fix)
        return
    until = credentials.expiry.replace(tzinfo=UTC) if credentials.expiry else None
    told_until = f"; this token holds until {until:%H:%M} UTC" if until else ""
    yield Finding("credentials", "ok", f"{named}, accepted{told_until}")
    pays = credentials.quota_project_id
    if pays is None and module.startswith("google.oauth2.credentials"):
        seen = "a person's login names none: some services refuse it"
        fix = googleapi.QUOTA_PROJECT.replace("PROJECT", project)
        yield Finding("quota project", "bad", seen, fix)
    else:
        yield Finding("quota project", "ok", pays or "that of the account")


def member(credentials: Any) -> str:
    """How IAM calls whom the credentials are of."""
    who = getattr(credentials, "service_account_email", None) or ""
    return f"serviceAccount:{who}" if "@" in who else "user:YOU"


# --- the project ----------------------------------------------------------------------------------


def _apis(asked: _Question) -> Iterator[Finding]:
    missing = googleaccess.disabled(asked.project, APIS)
    if isinstance(missing, Finding):
        yield replace(missing, name="APIs")
        return
    for api in missing:
        enable = f"gcloud services enable {api} --project={asked.project.name}"
        yield Finding(f"API {api}", "bad", "is not enabled", enable)
    if not missing:
        yield Finding("APIs", "ok", f"{len(APIS)} are enabled")


def _caller(asked: _Question) -> Iterator[Finding]:
    answer = asked.project.allowed(tuple(OURS))
    if isinstance(answer, Finding):
        yield replace(answer, name="rights")
        return
    missing = googleaccess.missing(answer, OURS)
    for role in dict.fromkeys(OURS.values()):
        what = "to read logs" if role.startswith("roles/logging") else "to run jobs"
        lacking = [one for one, of in missing.items() if of == role]
        if lacking:
            grant = (
                f"gcloud projects add-iam-policy-binding {asked.project.name} "
                f"--member={asked.who} --role={role}"
            )
            yield Finding(f"right {what}", "bad", f"missing: {', '.join(lacking)}", grant)
        else:
            yield Finding(f"right {what}", "ok", f"as {role} has it")


def _acts(asked: _Question) -> Iterator[Finding]:
    """Whether the caller may let a job run as the account that the job names."""
    account = asked.ready.job.service_account if asked.ready else None
    if account is None:
        return
    answer = asked.project.acts_as(account)
    name = f"right to act as {account}"
    if isinstance(answer, Finding):
        yield replace(answer, name=name)
    elif googleaccess.missing(answer, ACT_AS):
        grant = (
            f"gcloud iam service-accounts add-iam-policy-binding {account} --member={asked.who} "
            f"--role={ACT_AS['iam.serviceAccounts.actAs']}"
        )
        yield Finding(name, "bad", "missing: iam.serviceAccounts.actAs", grant)
    else:
        yield Finding(name, "ok", "granted")


def _pulls(asked: _Question) -> Iterator[Finding]:
    """Whether the service's agent may read each image of the job."""
    if asked.ready is None:
        return
    images = (asked.ready.image, *asked.ready.images.values())
    found = {one.reference: googleaccess.image_repository(one.reference) for one in images}
    for reference, place in found.items():
        if place is None:
            yield Finding("image", "note", f"{reference}: not a repository of Artifact Registry")
    for place in dict.fromkeys(one for one in found.values() if one is not None):
        policies = [asked.project.repository_policy(place)]
        if place.project == asked.project.name:
            policies.append(asked.project.policy())
        grant = (
            f"gcloud artifacts repositories add-iam-policy-binding {place.name} "
            f"--project={place.project} --location={place.region} "
            f"--member=serviceAccount:{asked.agent} --role={PULLS[0]}"
        )
        name = f"the service reads {place.project}/{place.name}"
        roles = (*PULLS, AGENT_ROLE)
        yield _granted(name, asked.agent, roles, policies, grant, known=bool(asked.number))


def _bucket(asked: _Question) -> Iterator[Finding]:
    """Whether the job's folder is in its region, and the job's account may write there."""
    ready = asked.ready
    if ready is None or not ready.job.job_dir:
        return
    name = ready.job.job_dir.removeprefix("gs://").split("/")[0]
    try:
        for note in bucket.check(ready, service.storage_client(asked.where)):
            yield Finding("bucket", "note", note)
    except FactoryError as error:
        yield Finding("bucket", "bad", error.message, error.fix)
        return
    policies = [asked.project.bucket_policy(name), asked.project.policy()]
    grant = (
        f"gcloud storage buckets add-iam-policy-binding gs://{name} "
        f"--member=serviceAccount:{asked.account} --role={WRITES[0]}"
    )
    known = bool(asked.number) or bool(ready.job.service_account)
    yield _granted(f"the job writes to gs://{name}", asked.account, WRITES, policies, grant, known)


def _granted(
    name: str,
    account: str,
    roles: tuple[str, ...],
    policies: list[googleaccess.Answer | Finding],
    grant: str,
    known: bool,
) -> Finding:
    """Whether a policy gives an account one of these roles. known: whether its name is."""
    if not known:
        return Finding(name, "note", "not known: the project's number cannot be read", grant)
    has = googleaccess.held(policies, f"serviceAccount:{account}")
    if fitting := has & {*roles, *googleaccess.ANYTHING}:
        return Finding(name, "ok", f"{account} has {sorted(fitting)[0]}")
    if not googleaccess.readable(policies):
        return Finding(name, "note", f"not known of {account}: a policy may not be read", grant)
    seen = f"{account} may not, as far as its own roles tell; those of groups are not seen"
    return Finding(name, "bad", seen, grant)


# --- quota ----------------------------------------------------------------------------------------


def _quota(asked: _Question) -> Iterator[Finding]:
    """The limits in the job's region beside what the job asks; how much is in use is not told."""
    if asked.ready is None:
        return
    ready = asked.ready
    wanted = wanted_quota(ready)
    parent = f"projects/{asked.project.name}/services/{APIS[0]}"
    metrics: list[dict[str, Any]] = []
    token = ""
    while True:
        page = f"pageSize=1000&pageToken={token}"
        path = f"/v1beta1/{parent}/consumerQuotaMetrics?{page}"
        answer = asked.project.ask("serviceusage.googleapis.com", path)
        if isinstance(answer, Finding):
            yield replace(answer, name="quota")
            return
        metrics += answer.get("metrics", ())
        if not (token := answer.get("nextPageToken", "")):
            break
    limits = {one["metric"].partition("/")[2]: one for one in metrics}
    for names, count in wanted.items():
        metric = next((limits[name] for name in names if name in limits), None)
        if metric is None:
            seen = f"no limit of this name is told; the job asks for {count}"
            yield Finding(f"quota {names[0]}", "note", seen)
            continue
        limit = limit_in(metric, ready.region)
        called = f"quota {metric['metric'].partition('/')[2]}"
        if limit is None or limit >= count:
            most = "no limit" if limit is None else f"{limit} in {ready.region}"
            yield Finding(called, "ok", f"{most}, the job asks for {count}")
        else:
            fix = (
                f"ask for {count} of {metric['metric']} in {ready.region} on the page Quotas of "
                "the console, or take another region"
            )
            seen = f"{limit} in {ready.region}, the job asks for {count}"
            yield Finding(called, "bad", seen, fix)


def wanted_quota(ready: Ready) -> dict[tuple[str, ...], int]:
    """The quota metrics of a job's accelerators, each with its possible names, and how many.

    A study needs those of all trials that run at once. Source: the names in the service's refusals,
    such as custom_model_training_nvidia_t4_gpus; those of spot begin with
    custom_model_training_preemptible.
    """
    found: dict[tuple[str, ...], int] = {}
    at_once = ready.job.study.parallel if ready.job.study else 1
    spot = "preemptible_" if ready.job.scheduling.strategy == "spot" else ""
    for pool, placement in ready.pools:
        if placement.device is None:
            continue
        names = tuple(f"custom_model_training_{spot}{word}" for word in _words(placement))
        found[names] = found.get(names, 0) + pool.count * placement.count * at_once
    return found


def _words(placement: Placement) -> list[str]:
    """What a metric may call an accelerator: with its memory, and without."""
    assert placement.device is not None
    name = (placement.device.type or placement.device.name).lower().replace("-", "_")
    if placement.device.kind == "tpu":
        return [name]
    word = name.replace("nvidia_tesla_", "nvidia_")
    short = re.sub(r"_[0-9]+gb$", "", word)
    either = [word] if short == word or "a100" in word else [word, short]
    return [f"{one}_gpus" for one in either]


def limit_in(metric: dict[str, Any], region: str) -> int | None:
    """The limit of a metric in a region; None for none.

    Buckets stand from the least specific one to the most specific. Source: Service Usage v1beta1,
    ConsumerQuotaLimit.
    """
    found: int | None = None
    for limit in metric.get("consumerQuotaLimits", ()):
        for one in limit.get("quotaBuckets", ()):
            of = (one.get("dimensions") or {}).get("region")
            if of in (None, region):
                found = int(one.get("effectiveLimit", 0))
    return None if found is None or found < 0 else found
