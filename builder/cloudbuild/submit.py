"""Submitting a build: its substitutions and settings, its source in a bucket, the request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild import builds
from builder.cloudbuild.buildfile import used
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.staging import StagedSource, staged
from builder.core import git
from builder.core.errors import FactoryError
from builder.googleapi import account_name

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

    from builder.core.settings import CloudSettings

GPU, REGISTRY, REGION = "_GPU", "_REGISTRY", "_REGION"


@dataclass(frozen=True)
class Submission:
    targets: tuple[str, ...]
    """What it builds, () for another project's file; its tags."""
    substitutions: Mapping[str, str]

    @property
    def name(self) -> str:
        return ",".join(self.targets) or "build"


def commit(folder: Path) -> dict[str, str]:
    """Return the names of the commit that a trigger sets, and a call may set.

    {} without a repository, and for a tree that differs from its commit.
    """
    if git.ask(folder, "status", "--porcelain", "--", ".") != "":
        return {}
    sha = (git.ask(folder, "rev-parse", "HEAD") or "").strip()
    return {"COMMIT_SHA": sha, "SHORT_SHA": sha[:7]} if sha else {}


def is_for_targets(build: Build, overrides: Mapping[str, str]) -> bool:
    """Return whether the targets of a submission decide what a file builds, so that each can have a
    build of its own: the file declares _GPU, and the call does not set it."""
    return GPU in build.substitutions and GPU not in overrides


def submissions(
    build: Build,
    targets: Sequence[str],
    repository: str | None,
    region: str,
    of_commit: Mapping[str, str],
    overrides: Mapping[str, str],
) -> tuple[Submission, ...]:
    """Return the builds to submit: one for each target if they decide what the file builds.

    overrides: substitutions of the call. targets, repository, region: the values of _GPU, _REGISTRY
    and _REGION, for a file that declares these names; so any project's file can be submitted.
    of_commit: COMMIT_SHA and SHORT_SHA. Only those that the file uses are sent: the service refuses
    another one under MUST_MATCH.
    """
    own = {REGISTRY: repository or "", REGION: region}
    if region == "global":  # a region of builds, not of registries
        own.pop(REGION)
    values = {name: of_commit[name] for name in used(build, of_commit)}
    values |= {name: value for name, value in own.items() if name in build.substitutions and value}
    if not (targets and is_for_targets(build, overrides)):
        return (Submission(tuple(targets), {**values, **overrides}),)
    return tuple(Submission((name,), {**values, GPU: name, **overrides}) for name in targets)


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


def request(clients: Clients, build: Build, submission: Submission) -> dict[str, Any]:
    """Return the request that `submitted` would send, under the API's JSON names.

    It lacks what is made for each submission: the staged object, and the tag by which the build is
    found again.
    """
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    values, targets = submission.substitutions, submission.targets
    build = prepared(build, clients.settings, values, targets)
    build.source.storage_source.bucket = clients.settings.bucket
    message = api.CreateBuildRequest.pb(api.CreateBuildRequest(parent=clients.parent, build=build))
    value: dict[str, Any] = json_format.MessageToDict(message)
    return value


@contextlib.contextmanager
def submitted(
    clients: Clients, build: Build, folder: Path, submissions: Sequence[Submission], keep: bool
) -> Iterator[tuple[dict[str, Build], StagedSource]]:
    """Submit a build for each submission, of the source in `folder`; yield the builds by what they
    build. The source is staged once, for the time of the block.

    keep: leave the staged source behind. Raises OutsideError for what the service or the bucket
    refuses. Builds that were submitted before that go on, and keep the source; the message names
    them.
    """
    with staged(clients, folder, keep) as source:
        started: dict[str, Build] = {}
        try:
            for one in submissions:
                new = prepared(build, clients.settings, one.substitutions, one.targets, source)
                started[one.name] = builds.create(clients, new)
        except BaseException as error:
            source.keep = source.keep or bool(started)
            if started and isinstance(error, FactoryError):
                known = ", ".join(f"{name} ({build.id})" for name, build in started.items())
                raise type(error)(f"{error.message}; these go on: {known}", error.fix) from error
            raise
        yield started, source
