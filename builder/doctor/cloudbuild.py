"""Checks of what a build in Cloud Build needs, before it costs money.

Sources: the references of the services' REST APIs, and Cloud Build's page on permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from builder import googleapi
from builder.cloudbuild.clients import Clients
from builder.core.findings import DoctorFinding, check
from builder.core.settings import CloudSettings
from builder.googleapi import Project
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


@dataclass(frozen=True)
class CloudBuild:
    settings: CloudSettings
    project: Project


def of(clients: Clients) -> CloudBuild:
    endpoint = clients.settings.endpoint or ""
    base = endpoint if is_loopback(urlsplit(endpoint).netloc) else None
    project = Project(clients.project, googleapi.session(clients.credentials), base)
    return CloudBuild(clients.settings, project)


@check(CloudBuild, "right to build")
def caller(cloud: CloudBuild) -> Iterator[DoctorFinding]:
    yield cloud.project.may("right to build", BUILDS, "user:YOU")
    yield cloud.project.reads_logs("user:YOU")
    if cloud.settings.pool:
        owner = cloud.settings.pool.split("/")[1]
        yield cloud.project.may("right to use the pool", POOL, "user:YOU", owner)


@check(CloudBuild, "staging")
def staging(cloud: CloudBuild) -> Iterator[DoctorFinding]:
    bucket = cloud.settings.bucket
    path = f"/storage/v1/b/{bucket}/iam/testPermissions"
    has = cloud.project.ask("storage.googleapis.com", path, STAGING, by_get=True)
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=user:YOU --role="
    yield googleapi.granted("staging", STAGING, has, grant)


@check(CloudBuild, "account")
def account(cloud: CloudBuild) -> Iterator[DoctorFinding]:
    if name := cloud.settings.service_account:
        yield cloud.project.acts_as("account", name, "user:YOU")
        return
    message = "none is set: the build runs as the project's default account"
    fix = "write service_account below [cloud], and give it what docs/cloud-build.md lists"
    yield DoctorFinding("account", "warning", message, fix)
