"""Submitting a build: its substitutions and settings, its source in a bucket, the request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild import builds
from builder.cloudbuild.buildfile import used
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.staging import StagedSource, staged
from builder.core import git
from builder.googleapi import account_name

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

    from builder.core.settings import CloudSettings

GPU, REGISTRY, REGION = "_GPU", "_REGISTRY", "_REGION"


def commit(folder: Path) -> dict[str, str]:
    """Return the names of the commit that a trigger sets, and a call may set.

    {} without a repository, and for a tree that differs from its commit.
    """
    if git.ask(folder, "status", "--porcelain", "--", ".") != "":
        return {}
    sha = (git.ask(folder, "rev-parse", "HEAD") or "").strip()
    return {"COMMIT_SHA": sha, "SHORT_SHA": sha[:7]} if sha else {}


def substitutions(
    build: Build,
    targets: Sequence[str],
    repository: str | None,
    region: str,
    of_commit: Mapping[str, str],
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Return the substitutions of a submission.

    overrides: those of the call. targets, repository, region: the values of _GPU, _REGISTRY and
    _REGION, for a file that declares these names; so any project's file can be submitted.
    of_commit: COMMIT_SHA and SHORT_SHA. Only those that the file uses are sent: the service refuses
    another one under MUST_MATCH.
    """
    own = {GPU: ",".join(targets), REGISTRY: repository or "", REGION: region}
    if region == "global":  # a region of builds, not of registries
        own.pop(REGION)
    known = {name: value for name, value in own.items() if name in build.substitutions}
    values = {**{name: of_commit[name] for name in used(build, of_commit)}, **known}
    return {**{name: value for name, value in values.items() if value}, **overrides}


def prepared(
    build: Build,
    settings: CloudSettings,
    overrides: Mapping[str, str],
    tags: Sequence[str] = (),
    source: StagedSource | None = None,
) -> Build:
    """Return the build with the additions of the call and of the settings.

    The argument does not change.
    """
    from google.cloud.devtools import cloudbuild_v1 as api

    new = api.Build(build)
    new.substitutions.update(overrides)
    new.tags.extend(tag for tag in tags if tag not in new.tags)
    if source:
        new.source.storage_source = api.StorageSource(
            bucket=source.bucket, object_=source.name, generation=source.generation
        )
    if settings.service_account:
        new.service_account = account_name(settings.service_account)
    options, logging = new.options, api.BuildOptions.LoggingMode
    if new.service_account and not (new.logs_bucket or options.logging):
        # one with an account of its own has to say where its log goes
        options.logging = logging(logging.CLOUD_LOGGING_ONLY)
    if settings.pool:
        # A private pool has its own machines: the service refuses it together with these two.
        options.pool = api.BuildOptions.PoolOption(name=settings.pool)
        options.machine_type = api.BuildOptions.MachineType(0)
        options.disk_size_gb = 0
    elif settings.machine_type and not (options.pool.name or options.worker_pool):
        options.machine_type = getattr(api.BuildOptions.MachineType, settings.machine_type)
    return new


def request(
    clients: Clients, build: Build, overrides: Mapping[str, str], tags: Sequence[str]
) -> dict[str, Any]:
    """Return the request that `submitted` would send, under the API's JSON names.

    It lacks what is made for each submission: the staged object, and the tag by which the build is
    found again.
    """
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    build = prepared(build, clients.settings, overrides, tags)
    build.source.storage_source.bucket = clients.settings.bucket
    message = api.CreateBuildRequest.pb(api.CreateBuildRequest(parent=clients.parent, build=build))
    value: dict[str, Any] = json_format.MessageToDict(message)
    return value


@contextlib.contextmanager
def submitted(
    clients: Clients,
    build: Build,
    folder: Path,
    overrides: Mapping[str, str],
    tags: Sequence[str],
    keep: bool,
) -> Iterator[tuple[Build, StagedSource]]:
    """Submit a build of the source in `folder`. The source is staged for the time of the block.

    keep: leave the staged source behind. Raises OutsideError for what the service or the bucket
    refuses.
    """
    with staged(clients, folder, keep) as source:
        new = prepared(build, clients.settings, overrides, tags, source)
        yield builds.create(clients, new), source
