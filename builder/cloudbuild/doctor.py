"""What a build in the cloud needs, looked at before it costs money.

It asks the project's own services and changes nothing. What may not be asked is said as a note.
Sources: the reference of each service's REST API (Service Usage, Resource Manager, IAM, Cloud
Storage, Artifact Registry), and Cloud Build's page on permissions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from builder.cloudbuild.clients import ADVICE, Clients, explaining
from builder.cloudbuild.reader.buildfile import BuildFile
from builder.core import googleaccess
from builder.core.checkup import Finding
from builder.core.errors import FactoryError
from builder.core.googleaccess import ACT_AS, Project, image_repository
from builder.core.settings import CloudSettings
from builder.core.workers import DEFAULT_MACHINE, MACHINES, WorkerMachine
from builder.registry import is_loopback

APIS = (
    "cloudbuild.googleapis.com",
    "artifactregistry.googleapis.com",
    "storage.googleapis.com",
    "logging.googleapis.com",
)
OURS = {
    "cloudbuild.builds.create": "roles/cloudbuild.builds.editor",
    "cloudbuild.builds.get": "roles/cloudbuild.builds.editor",
    "logging.logEntries.list": "roles/logging.viewer",
}
"""What the caller needs in the project, and a role that has it."""
POOL = {"cloudbuild.workerpools.use": "roles/cloudbuild.workerPoolUser"}
STAGING = {
    "storage.objects.create": "roles/storage.objectAdmin",
    "storage.objects.delete": "roles/storage.objectAdmin",
}
WRITES_LOGS = ("roles/logging.logWriter", "roles/cloudbuild.builds.builder")
WRITES_IMAGES = (
    "roles/artifactregistry.writer",
    "roles/artifactregistry.repoAdmin",
    "roles/artifactregistry.admin",
    "roles/cloudbuild.builds.builder",
)
READS_SOURCE = (
    "roles/storage.objectViewer",
    "roles/storage.objectUser",
    "roles/storage.objectAdmin",
    "roles/storage.admin",
    "roles/cloudbuild.builds.builder",
)

DISK_GB = 100
"""The disk of a worker where the build asks for none (API reference, BuildOptions.diskSizeGb)."""


@dataclass(frozen=True)
class Needs:
    """What a build uses of its machine at most, in GB, with what the worker's system uses.

    memory: of the steps that run side by side. disk: of the targets that are built.
    """

    memory: float
    disk: float


def examine(
    clients: Clients, file: BuildFile, repository: str | None, needs: Needs | None = None
) -> tuple[Finding, ...]:
    """All findings about a build of this file.

    repository: HOST/PATH that it pushes to. needs: as in `forecast`.
    """
    questions = (
        _apis(clients),
        _caller(clients),
        _pool(clients),
        _account(clients, repository),
        _staging(clients),
        _regions(clients),
        forecast(clients.settings, file, needs),
        _last(clients, file),
    )
    return tuple(finding for question in questions for finding in question)


def _project(clients: Clients) -> Project:
    endpoint = clients.settings.endpoint or ""
    base = endpoint if is_loopback(urlsplit(endpoint).netloc) else None
    return Project(clients.project, clients.session, ADVICE, base)


def _ask(clients: Clients, host: str, path: str, body: Any = None) -> dict[str, Any] | Finding:
    """The answer of a service; a note if it does not answer. body: of a POST."""
    return _project(clients).ask(host, path, body)


def _apis(clients: Clients) -> Iterator[Finding]:
    missing = googleaccess.disabled(_project(clients), APIS)
    if isinstance(missing, Finding):
        yield missing
        return
    enable = f"gcloud services enable {' '.join(missing)} --project {clients.project}"
    if missing:
        yield Finding("apis", "bad", f"not enabled: {', '.join(missing)}", enable)
    else:
        yield Finding("apis", "ok", f"{len(APIS)} are enabled")


def _permissions(
    name: str, found: dict[str, Any] | Finding, wanted: Mapping[str, str], who: str
) -> Iterator[Finding]:
    """The finding of an answer to testIamPermissions."""
    if isinstance(found, Finding):
        yield found
        return
    missing = googleaccess.missing(found, wanted)
    if missing:
        roles = ", ".join(dict.fromkeys(missing.values()))
        yield Finding(name, "bad", f"{who} may not: {', '.join(missing)}", f"grant {roles}")
    else:
        yield Finding(name, "ok", f"{who} may: {', '.join(wanted)}")


def _caller(clients: Clients) -> Iterator[Finding]:
    found = _project(clients).allowed(tuple(OURS))
    yield from _permissions("you", found, OURS, "you")


def _pool(clients: Clients) -> Iterator[Finding]:
    if not clients.settings.pool:
        return
    project = clients.settings.pool.split("/")[1]
    found = _project(clients).allowed(tuple(POOL), project)
    yield from _permissions("pool", found, POOL, "you")


def _account(clients: Clients, repository: str | None) -> Iterator[Finding]:
    """The account of the build: whether the caller may use it, and what it may do."""
    address = clients.settings.service_account
    if not address:
        yield Finding(
            "account", "note", "none is set: the build runs as the project's default account",
            "write service_account below [cloud], and give it what docs/cloud-build.md lists",
        )  # fmt: skip
        return
    asked = _project(clients)
    yield from _permissions("account", asked.acts_as(address), ACT_AS, f"you, as {address},")
    project = asked.policy()
    yield from _granted("logs", address, WRITES_LOGS, "write logs", [project])
    bucket = asked.bucket_policy(clients.settings.bucket)
    yield from _granted("source", address, READS_SOURCE, "read the source", [project, bucket])
    if images := image_repository(repository or ""):
        policy = asked.repository_policy(images)
        yield from _granted("images", address, WRITES_IMAGES, "push images", [project, policy])
    else:
        where = repository or "no registry"
        yield Finding("images", "note", f"{where}: not a repository of Artifact Registry")


def _granted(
    name: str,
    address: str,
    roles: Sequence[str],
    what: str,
    policies: Sequence[dict[str, Any] | Finding],
) -> Iterator[Finding]:
    """Whether one of these policies gives an account one of these roles."""
    has = googleaccess.held(policies, f"serviceAccount:{address}")
    if fitting := has & {*roles, *googleaccess.ANYTHING}:
        yield Finding(name, "ok", f"{address} may {what}: {sorted(fitting)[0]}")
    elif not googleaccess.readable(policies):
        yield Finding(
            name, "note", f"whether {address} may {what} is not known: a policy may not be read"
        )
    else:
        yield Finding(
            name, "bad", f"{address} may not {what}, as far as its own roles tell",
            f"grant {roles[0]}; a role of a group, a folder or of your own making is not seen",
        )  # fmt: skip


def _staging(clients: Clients) -> Iterator[Finding]:
    bucket = clients.settings.bucket
    query = "&".join(f"permissions={one}" for one in STAGING)
    found = _ask(
        clients, "storage.googleapis.com", f"/storage/v1/b/{bucket}/iam/testPermissions?{query}"
    )
    if isinstance(found, Finding) and "not found" in found.seen:
        yield Finding("staging", "note", f"gs://{bucket} is made by the first build")
    else:
        yield from _permissions("staging", found, STAGING, f"in gs://{bucket}, you")


def _regions(clients: Clients) -> Iterator[Finding]:
    """The pool and the connections of triggers work in their own region only."""
    region = clients.settings.region
    named = {"the pool": clients.settings.pool or ""}
    for _, table in clients.settings.triggers:
        named[f"the repository of trigger {table.get('name')}"] = str(table.get("repository", ""))
    for what, name in named.items():
        match = re.search(r"/locations/([^/]+)/", name)
        if match and match[1] != region:
            yield Finding(
                "region", "bad", f"{what} is in {match[1]}, and builds run in {region}",
                f'write region = "{match[1]}" below [cloud]',
            )  # fmt: skip


def forecast(settings: CloudSettings, file: BuildFile, needs: Needs | None) -> Iterator[Finding]:
    """What a build takes of its machine and what it costs at most, told without asking anyone.

    needs: None where nobody knows.
    """
    name = _machine(settings, file)
    machine = MACHINES.get(name)
    if machine is None:
        yield Finding("cost", "note", "memory, disk and price are those of the private pool")
        return
    disk = max(DISK_GB, file.build.options.disk_size_gb)
    if needs is None:
        yield Finding(
            "memory", "note", f"{name} has {machine.memory:g} GB; what the steps use is not known"
        )
    else:
        yield _fits_memory(name, machine, needs.memory)
        yield _fits_disk(disk, needs.disk)
    minutes = file.build.timeout / 60
    yield Finding(
        "cost", "ok",
        f"{name}, {disk} GB of disk, {minutes:.0f} minutes at most: "
        f"${minutes * machine.minute:.2f} at most, at ${machine.minute} a minute",
    )  # fmt: skip
    if name not in (DEFAULT_MACHINE, "E2_MEDIUM"):
        yield Finding(
            "quota", "note",
            f"a trial project is refused {name} (FAILED_PRECONDITION); no service tells before",
            f'write machine_type = "{DEFAULT_MACHINE}" below [cloud] in such a project',
        )  # fmt: skip


def _fits_memory(name: str, machine: WorkerMachine, needed: float) -> Finding:
    if needed <= machine.memory:
        return Finding("memory", "ok", f"{needed:g} GB at most, of {machine.memory:g} GB of {name}")
    larger = next((one for one, has in MACHINES.items() if has.memory >= needed), "")
    return Finding(
        "memory", "bad", f"the build may use {needed:g} GB, and {name} has {machine.memory:g}",
        f'write machine_type = "{larger}" below [cloud], then builder render',
    )  # fmt: skip


def _fits_disk(disk: int, needed: float) -> Finding:
    if needed <= disk:
        return Finding("disk", "ok", f"{needed:.0f} GB at most, of {disk} GB")
    return Finding(
        "disk", "bad", f"the build may use {needed:.0f} GB of disk, and asks for {disk}",
        "run builder render: it writes diskSizeGb of all targets",
    )  # fmt: skip


def _machine(settings: CloudSettings, file: BuildFile) -> str:
    """The machine that a build would run on, "" for one of a private pool."""
    options = file.value.get("options", {})
    if settings.pool or options.get("pool") or options.get("workerPool"):
        return ""
    return settings.machine_type or file.build.options.machine_type or DEFAULT_MACHINE


def _last(clients: Clients, file: BuildFile) -> Iterator[Finding]:
    """What the last build that succeeded took."""
    from google.cloud.devtools import cloudbuild_v1 as api

    machine = MACHINES.get(_machine(clients.settings, file))
    tag = next((tag for tag in file.build.tags if "$" not in tag), "")
    if not (tag and machine):
        return
    request = api.ListBuildsRequest(
        **clients.within, filter=f'status="SUCCESS" AND tags="{tag}"', page_size=1
    )
    try:
        with explaining("the last builds"):
            last = next(iter(clients.build.list_builds(request, timeout=60.0)), None)
    except FactoryError:
        return  # what the caller may not do is said above
    if last:
        took = (last.finish_time - last.start_time).total_seconds() / 60
        cost = took * machine.minute
        yield Finding("last", "ok", f"the last build took {took:.1f} minutes: ${cost:.2f}")
