"""Requests about builds: create one, get it, list them, cancel one, run one again.

A `create` whose answer was lost is not sent twice: the build is found by a tag of its own.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from builder.cloudbuild.clients import Clients, explained, explaining
from builder.core.errors import FactoryError, OutsideError
from builder.core.googleapi import passing
from builder.core.retry import Passing, Retry

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build, CreateBuildRequest

TAG = "submission-"
"""The beginning of the tag by which a submitted build is found again."""

CREATE = Retry(attempts=4, first=2.0)
"""The attempts to submit a build."""

Sleep = Callable[[float], None]


def wait(seconds: float) -> None:
    """Wait between two requests."""
    time.sleep(seconds)


def creation(clients: Clients, build: Build) -> CreateBuildRequest:
    """The request for a build."""
    from google.cloud.devtools import cloudbuild_v1 as api

    return api.CreateBuildRequest(**clients.within, build=build)


def create(clients: Clients, build: Build, sleep: Sleep | None = None) -> Build:
    """Submit a build, once. Raises OutsideError with the service's reason.

    When a connection breaks, the build may have been created or not. So the build is looked for by
    its tag before it is sent again.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    tag = TAG + uuid.uuid4().hex
    build.tags.append(tag)
    request = creation(clients, build)
    sent = False

    def attempt() -> Build:
        nonlocal sent
        if sent:
            with contextlib.suppress(FactoryError):
                if found := listed(clients, tag=tag, limit=1):
                    return found[0]
        sent = True
        try:
            operation = clients.build.create_build(request, retry=None, timeout=60.0)
            made: Build = operation.metadata.build
            return made
        except passing() as error:
            refused = explained(error, "the build could not be created")
            raise Passing(refused.message, final=refused) from error
        except (GoogleAPIError, GoogleAuthError) as error:
            raise explained(error, "the build was not created") from error

    return CREATE.run(attempt, sleep=sleep or wait)


def _named(clients: Clients, key: str) -> dict[str, str]:
    return {"name": f"{clients.parent}/builds/{key}", **clients.older_names(id=key)}


def get(clients: Clients, key: str) -> Build:
    """A build by its id. Raises OutsideError."""
    with explaining(f"build {key}"):
        return ask(clients, key)


def ask(clients: Clients, key: str) -> Build:
    """A build by its id. Raises the errors of Google's client."""
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.GetBuildRequest(_named(clients, key))
    return clients.build.get_build(request, retry=None, timeout=30.0)


def listed(clients: Clients, tag: str = "", limit: int = 20) -> tuple[Build, ...]:
    """The project's builds in its region, the newest first. Raises OutsideError."""
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.ListBuildsRequest(
        **clients.within,
        page_size=limit,
        filter=f'tags="{tag}"' if tag else "",
    )
    found: list[Build] = []
    with explaining("the list of builds"):
        for build in clients.build.list_builds(request, timeout=30.0):
            found.append(build)
            if len(found) == limit:
                break
    return tuple(found)


def cancel(clients: Clients, key: str) -> Build:
    """Cancel a build. Raises OutsideError."""
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.CancelBuildRequest(_named(clients, key))
    with explaining(f"build {key}"):
        return clients.build.cancel_build(request, timeout=60.0)


def retry(clients: Clients, key: str) -> Build:
    """Start a build again with the same source. Raises OutsideError."""
    from google.api_core.exceptions import NotFound
    from google.cloud.devtools import cloudbuild_v1 as api

    get(clients, key)
    request = api.RetryBuildRequest(_named(clients, key))
    with explaining(f"build {key}"):
        try:
            operation = clients.build.retry_build(request, timeout=60.0)
        except NotFound:
            raise OutsideError(
                f"build {key}: its staged source is gone, so it cannot run again",
                "submit it again; a build that was submitted with --keep-source can be retried",
            ) from None
        made: Build = operation.metadata.build
        return made
