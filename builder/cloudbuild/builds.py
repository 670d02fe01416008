"""Requests about builds: create one, get it, list them.

A `create` whose answer was lost is not sent twice: the build is found by a tag of its own.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

from builder import googleapi
from builder.cloudbuild.clients import Clients, explained, explaining
from builder.core.errors import FactoryError
from builder.core.retry import Retry, TransientError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

TAG = "submission-"
"""The beginning of the tag by which a submitted build is found again."""

CREATE = Retry(attempts=4, first=2.0)
"""The attempts to submit a build."""


def wait(seconds: float) -> None:
    """Wait between two requests."""
    time.sleep(seconds)


def create(clients: Clients, build: Build) -> Build:
    """Submit a build, once. Raises OutsideError with the service's reason.

    When a connection breaks, the build may have been created or not. So the build is looked for by
    its tag before it is sent again.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.devtools import cloudbuild_v1 as api

    tag = TAG + uuid.uuid4().hex
    build.tags.append(tag)
    request = api.CreateBuildRequest(parent=clients.parent, build=build)
    attempts = 0

    def attempt() -> Build:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            with contextlib.suppress(FactoryError):
                if known := listed(clients, tag=tag, limit=1):
                    return known[0]
        try:
            operation = clients.build.create_build(request, retry=None, timeout=60.0)
        except googleapi.transient_errors() as error:
            refused = explained(error, "the build could not be created")
            raise TransientError(refused.message, final=refused) from error
        except (GoogleAPIError, GoogleAuthError) as error:
            raise explained(error, "the build was not created") from error
        created: Build = operation.metadata.build
        return created

    return CREATE.run(attempt, sleep=wait)


def get(clients: Clients, key: str, patience: float = 120.0) -> Build:
    """Return a build by its id. Raises OutsideError.

    patience: seconds for which transient errors are answered by another attempt.
    """
    retry = googleapi.read_retry().with_timeout(patience)
    with explaining(f"build {key}"):
        return clients.build.get_build(
            {"name": f"{clients.parent}/builds/{key}"}, retry=retry, timeout=30.0
        )


def listed(clients: Clients, tag: str = "", limit: int = 20) -> tuple[Build, ...]:
    """Return the project's builds in its region, the newest first. Raises OutsideError."""
    query = f'tags="{tag}"' if tag else ""
    request = {"parent": clients.parent, "page_size": limit, "filter": query}
    with explaining("the list of builds"):
        pages = clients.build.list_builds(request, timeout=30.0)
        return tuple(build for build, _ in zip(pages, range(limit), strict=False))
