"""Submitting a build: check the file, stage the source, create the build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild.clients import Clients
from builder.cloudbuild.reader import validation
from builder.cloudbuild.reader.buildfile import BuildFile
from builder.cloudbuild.submission.builds import create, creation
from builder.cloudbuild.submission.prepare import prepared
from builder.cloudbuild.submission.staging import StagedSource, Staging, staged
from builder.core.errors import InputError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

    from builder.core.settings import CloudSettings


@dataclass(frozen=True)
class Submission:
    """A build that was created, and its source in a bucket."""

    build: Build
    staging: Staging


def shown(
    clients: Clients, file: BuildFile, given: Mapping[str, str], tags: Sequence[str]
) -> dict[str, Any]:
    """The request that `submitted` would send, under the API's JSON names. Nothing is sent.

    It lacks what is made for each submission: the staged object, and the tag by which the build is
    found again. Raises InputError as `submitted` does.
    """
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format  # type: ignore[import-untyped]

    settings = clients.settings
    build = prepared(_checked(file, settings, given), settings, given, tags)
    build.source.storage_source.bucket = settings.bucket
    request = api.CreateBuildRequest.pb(creation(clients, build))
    found: dict[str, Any] = json_format.MessageToDict(request)
    return found


def _checked(file: BuildFile, settings: CloudSettings, given: Mapping[str, str]) -> Build:
    """The build of a file. Raises InputError for everything that can be refused here."""
    validation.refuse(file, validation.check(file, given))
    plain = file.to_proto()
    prepared(plain, settings, given)
    if file.newer:
        raise InputError(
            f"{file.path}: {file.newer[0]} is newer than the installed client",
            "remove it, or start the build with a trigger",
        )
    return plain


@contextlib.contextmanager
def submitted(
    clients: Clients,
    file: BuildFile,
    folder: Path,
    given: Mapping[str, str],
    tags: Sequence[str],
    keep: bool,
    on_staged: Callable[[StagedSource], None],
) -> Iterator[Submission]:
    """Submit a build of the source in `folder`. The source is staged for as long as this lasts.

    given: substitutions. keep: leave the staged source behind. on_staged: called when the source is
    in its bucket. Everything that can be refused here is refused before the source is staged:
    raises InputError. Raises OutsideError for what the service or the bucket refuses.
    """
    settings = clients.settings
    plain = _checked(file, settings, given)
    owned = settings.staging_bucket is None  # anybody can take the name of a default bucket
    with staged(clients.storage, settings.bucket, folder, keep, settings.region, owned) as staging:
        on_staged(staging.object)
        build = create(clients, prepared(plain, settings, given, tags, staging.object))
        yield Submission(build, staging)
