"""Checks of what a build in Cloud Build needs, before it costs money.

Sources: the references of the services' REST APIs, and Cloud Build's page on permissions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from builder import googleapi
from builder.cloudbuild.clients import connect as signed_in
from builder.core import filemodel, yamlfile
from builder.core.errors import InputError
from builder.core.settings import CloudSettings
from builder.doctor import Finding, check, google
from builder.doctor.google import Project, Question
from builder.facts.workers import DEFAULT_MACHINE, MACHINES
from builder.registry import is_loopback

BUILDS: Final = {
    "cloudbuild.builds.create": "roles/cloudbuild.builds.editor",
    "cloudbuild.builds.get": "roles/cloudbuild.builds.editor",
}
"""What the caller needs in the project, and a role that has it."""
POOL: Final = {"cloudbuild.workerpools.use": "roles/cloudbuild.workerPoolUser"}
STAGING: Final = {
    "storage.objects.create": "roles/storage.objectAdmin",
    "storage.objects.delete": "roles/storage.objectAdmin",
}
_BUILDER: Final = "roles/cloudbuild.builds.builder"
WRITES_LOGS: Final = ("roles/logging.logWriter", _BUILDER)
READS_SOURCE: Final = (
    *("roles/storage.objectViewer", "roles/storage.objectUser", "roles/storage.objectAdmin"),
    *("roles/storage.admin", _BUILDER),
)
WRITES_IMAGES: Final = (
    *("roles/artifactregistry.writer", "roles/artifactregistry.repoAdmin"),
    *("roles/artifactregistry.admin", _BUILDER),
)
DISK_GB: Final = 100
"""The disk of a worker where the build asks for none (API reference, BuildOptions.diskSizeGb)."""
MINUTES: Final = 60.0
"""How long a build may take that names no timeout (API reference, Build.timeout)."""


@dataclass(frozen=True)
class BuildOptions:
    """What a cloudbuild.yaml asks for. machine: "" for the default, None in a private pool."""

    machine: str | None = ""
    disk_gb: int = DISK_GB
    minutes: float = MINUTES

    @classmethod
    def read(cls, file: Path) -> BuildOptions:
        """Return the options of a file. Raises InputError for one that is no build."""
        content: Any = yamlfile.parse(filemodel.read_text(file, file.name), file.name).value
        options = (content.get("options") or {}) if isinstance(content, dict) else None
        if not isinstance(options, dict):
            raise InputError(f"{file.name}: is not a build", "builder cloud validate says why")
        timeout = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(content.get("timeout")))
        in_pool = options.get("pool") or options.get("workerPool")
        return cls(
            None if in_pool else options.get("machineType") or "",
            max(DISK_GB, int(options.get("diskSizeGb") or 0)),
            float(timeout[1]) / 60 if timeout else MINUTES,
        )


@dataclass(frozen=True)
class CloudBuild:
    """A build in a project. repository: HOST/PATH that it pushes to."""

    settings: CloudSettings
    project: Project
    build: BuildOptions
    repository: str | None = None


def connect(settings: CloudSettings) -> tuple[CloudSettings, Project]:
    """Return the settings with their project, and the project to ask.

    Raises InputError without a project, OutsideError without credentials.
    """
    clients = signed_in(settings)
    base = settings.endpoint if is_loopback(urlsplit(settings.endpoint or "").netloc) else None
    project = Project(clients.project, googleapi.session(clients.credentials), base)
    return clients.settings, project


@check(CloudBuild, "APIs")
def apis(cloud: CloudBuild) -> Iterator[Finding]:
    yield from cloud.project.apis(("cloudbuild.googleapis.com", *google.APIS))


@check(CloudBuild, "right to build")
def caller(cloud: CloudBuild) -> Iterator[Finding]:
    project, grant = cloud.project, cloud.project.grant("user:YOU")
    yield project.caller("right to build", project.rights(BUILDS), BUILDS, grant)
    yield project.reads_logs("user:YOU")
    if cloud.settings.pool:
        question = project.rights(POOL, cloud.settings.pool.split("/")[1])
        yield project.caller("right to use the pool", question, POOL, grant)


@check(CloudBuild, "staging")
def staging(cloud: CloudBuild) -> Iterator[Finding]:
    bucket = cloud.settings.bucket
    query = "&".join(f"permissions={permission}" for permission in STAGING)
    path = f"/storage/v1/b/{bucket}/iam/testPermissions?{query}"
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=user:YOU --role="
    question = Question("storage.googleapis.com", path)
    yield cloud.project.caller("staging", question, STAGING, grant)


@check(CloudBuild, "account")
def account(cloud: CloudBuild) -> Iterator[Finding]:
    """Yield whether the caller may use the build's account."""
    if name := cloud.settings.service_account:
        yield cloud.project.acts_as("account", name, "user:YOU")
        return
    message = "none is set: the build runs as the project's default account"
    fix = "write service_account below [cloud], and give it what docs/cloud-build.md lists"
    yield Finding("account", "warning", message, fix)


@check(CloudBuild, "account's rights")
def account_rights(cloud: CloudBuild) -> Iterator[Finding]:
    """Yield whether the account may write logs, read the source and push images."""
    name, project = cloud.settings.service_account, cloud.project
    if not name:
        return
    grant = project.grant(f"serviceAccount:{name}")
    bucket = google.bucket_policy(cloud.settings.bucket)
    yield project.granted("logs", name, WRITES_LOGS, [project.policy], grant)
    yield project.granted("source", name, READS_SOURCE, [project.policy, bucket], grant)
    if repository := google.image_repository(cloud.repository or ""):
        policies = [project.policy, repository.policy]
        yield project.granted("images", name, WRITES_IMAGES, policies, grant)
    else:
        registry = cloud.repository or "no registry"
        yield Finding("images", "warning", f"{registry}: not a repository of Artifact Registry")


@check(CloudBuild, "cost")
def worker(cloud: CloudBuild) -> Iterator[Finding]:
    yield from estimate(cloud.settings, cloud.build)


def estimate(settings: CloudSettings, build: BuildOptions) -> Iterator[Finding]:
    """Yield what a build gets of its machine and what it costs at most. Asks nobody."""
    name = settings.machine_type or build.machine or DEFAULT_MACHINE
    machine = MACHINES.get(name)
    if machine is None or settings.pool or build.machine is None:
        message = "memory, disk and price are those of the private pool"
        yield Finding("cost", "warning", message)
        return
    size = f"{machine.memory:g} GB, {build.disk_gb} GB of disk"
    price = f"${build.minutes * machine.minute:.2f} at most, at ${machine.minute} a minute"
    message = f"{name}, {size}, {build.minutes:.0f} minutes at most: {price}"
    yield Finding("cost", "ok", message)
    if name not in (DEFAULT_MACHINE, "E2_MEDIUM"):
        message = f"a trial project is refused {name} (FAILED_PRECONDITION); no service says before"
        fix = f'write machine_type = "{DEFAULT_MACHINE}" below [cloud] in such a project'
        yield Finding("quota", "warning", message, fix)
