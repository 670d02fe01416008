"""What is submitted: the build of a file, with the substitutions and settings of the call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.cloudbuild.reader.substitutions import used
from builder.core.errors import InputError
from builder.core.googleapi import account_name

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

    from builder.cloudbuild.reader.buildfile import BuildFile
    from builder.cloudbuild.submission.staging import StagedSource
    from builder.core.settings import CloudSettings

GPU, REGISTRY, REGION = "_GPU", "_REGISTRY", "_REGION"
FROM_GIT = ("COMMIT_SHA", "SHORT_SHA", "BRANCH_NAME", "TAG_NAME", "REPO_NAME")
"""The built-in names that a call may set (the service's documentation, "default substitutions")."""


def values(
    file: BuildFile,
    targets: Sequence[str],
    repository: str | None,
    region: str,
    commit: Mapping[str, str],
    given: Mapping[str, str],
) -> dict[str, str]:
    """The substitutions of a submission.

    given: those of the call; they win. targets, repository, region: the values of _GPU, _REGISTRY
    and _REGION, for a file that declares these names; so any project's file can be submitted.
    commit: COMMIT_SHA and the other names that a trigger would set; empty for a tree that differs
    from its commit. Only those that the file uses are sent: the service refuses another one under
    MUST_MATCH.
    """
    declared = file.build.substitutions
    known = {GPU: ",".join(targets), REGISTRY: repository or "", REGION: region}
    if region == "global":  # a region of builds, not of registries
        known.pop(REGION)
    ours = {name: value for name, value in known.items() if value and name in declared}
    wanted = used(file.build, FROM_GIT)
    git = {name: commit[name] for name in wanted if commit.get(name)}
    return {**git, **ours, **given}


def prepared(
    build: Build,
    settings: CloudSettings,
    substitutions: Mapping[str, str],
    tags: Sequence[str] = (),
    staged: StagedSource | None = None,
) -> Build:
    """The build of a file with the additions of the call and of the settings.

    Pure: the argument does not change. Raises InputError for settings that exclude each other.
    """
    from google.cloud.devtools import cloudbuild_v1 as api

    new = api.Build(build)
    for name, value in substitutions.items():
        new.substitutions[name] = value
    new.tags.extend(tag for tag in tags if tag not in new.tags)
    if staged:
        new.source = api.Source(
            storage_source=api.StorageSource(
                bucket=staged.bucket, object_=staged.name, generation=staged.generation
            )
        )
    if settings.service_account:
        new.service_account = account_name(settings.service_account)
    if settings.logs_bucket:
        new.logs_bucket = settings.logs_bucket
    mode = api.BuildOptions.LoggingMode
    if settings.logging:
        new.options.logging = getattr(mode, settings.logging)
    elif new.service_account and not new.logs_bucket and not new.options.logging:
        new.options.logging = mode(mode.CLOUD_LOGGING_ONLY)
    if (
        new.service_account
        and not new.logs_bucket
        and new.options.logging not in (mode.CLOUD_LOGGING_ONLY, mode.NONE)
    ):
        raise InputError(
            f"a build with a service account and logging {settings.logging} needs a logs bucket",
            'write logs_bucket = "gs://BUCKET" or logging = "CLOUD_LOGGING_ONLY" below [cloud]',
        )
    if settings.pool:
        # A private pool has its own machines: the service refuses it together with these two.
        new.options.pool = api.BuildOptions.PoolOption(name=settings.pool)
        new.options.machine_type = api.BuildOptions.MachineType(0)
        new.options.disk_size_gb = 0
    elif settings.machine_type and not (new.options.pool.name or new.options.worker_pool):
        new.options.machine_type = getattr(api.BuildOptions.MachineType, settings.machine_type)
    _refuse_far_pool(new.options.pool.name, settings.region)
    return new


def _refuse_far_pool(pool: str, region: str) -> None:
    """Raises InputError for a private pool of another region than the build's.

    The service finds no such pool then (MarkEdmondson1234/googleCloudRunner#210).
    """
    found = re.search(r"/locations/([a-z0-9-]+)/", pool)
    if found and found[1] != region:
        raise InputError(
            f"the private pool is in {found[1]}, and the build would run in {region}",
            f'write region = "{found[1]}" below [cloud], or --region {found[1]}',
        )
