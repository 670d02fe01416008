"""Google's clients, made from the settings, and the meaning of their errors in a line each.

`cloud.endpoint` sets the address of Cloud Build (an emulator, private access). The address of Cloud
Storage comes from STORAGE_EMULATOR_HOST, as in Google's own library. An endpoint on this machine
gets no credentials.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.core import googleapi
from builder.core.errors import FactoryError, InputError
from builder.registry import is_loopback

if TYPE_CHECKING:
    import requests
    from google.cloud.devtools.cloudbuild_v1 import CloudBuildClient

    from builder.core.settings import CloudSettings

STORAGE = "https://storage.googleapis.com"
STORAGE_VARIABLE = "STORAGE_EMULATOR_HOST"
LOGGING_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
"""gcloud's own variable for another endpoint of Cloud Logging."""


@dataclass(frozen=True)
class Clients:
    """The clients of one project. Each is made at its first use."""

    settings: CloudSettings
    project: str
    credentials: Any

    @property
    def parent(self) -> str:
        """The project and region that builds and triggers belong to."""
        return f"projects/{self.project}/locations/{self.settings.region}"

    @property
    def within(self) -> dict[str, str]:
        """The fields that name the project and region in a request for several things."""
        return {"parent": self.parent, **self.older_names()}

    def older_names(self, **ids: str) -> dict[str, str]:
        """The fields that named a thing before regions: the project, and its id.

        gRPC needs them. Over REST there are none: with them, the client takes the older address,
        which has no region.
        """
        if self.settings.transport == "rest":
            return {}
        return {"project_id": self.project, **ids}

    @cached_property
    def build(self) -> CloudBuildClient:
        """Cloud Build."""
        from google.cloud.devtools import cloudbuild_v1

        endpoint = self.settings.endpoint
        if self.settings.transport == "grpc" and endpoint and endpoint.startswith("http://"):
            import grpc  # type: ignore[import-untyped]
            from google.cloud.devtools.cloudbuild_v1.services.cloud_build import transports

            channel = grpc.insecure_channel(urlsplit(endpoint).netloc)
            return cloudbuild_v1.CloudBuildClient(
                transport=transports.CloudBuildGrpcTransport(channel=channel)
            )
        if endpoint and self.settings.transport == "grpc":
            endpoint = urlsplit(endpoint).netloc
        return cloudbuild_v1.CloudBuildClient(
            credentials=self.credentials,
            transport=self.settings.transport,
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )

    @cached_property
    def storage(self) -> Any:
        """Cloud Storage."""
        # The library has no types. By importlib, mypy does not look for them.
        storage: Any = importlib.import_module("google.cloud.storage")
        return storage.Client(project=self.project, credentials=self.credentials)

    @cached_property
    def logging(self) -> Any:
        """Cloud Logging, over REST."""
        from google.cloud import logging

        endpoint = os.environ.get(LOGGING_VARIABLE)
        return logging.Client(  # type: ignore[no-untyped-call]
            project=self.project,
            credentials=self.credentials,
            _use_grpc=False,
            client_options={"api_endpoint": endpoint.rstrip("/")} if endpoint else None,
        )

    @cached_property
    def session(self) -> requests.Session:
        """Plain HTTPS with the project's credentials."""
        return googleapi.session(self.credentials)

    @property
    def storage_endpoint(self) -> str:
        """The address for reading objects: https://HOST."""
        host = os.environ.get(STORAGE_VARIABLE) or STORAGE
        return (host if "://" in host else f"http://{host}").rstrip("/")


def connect(settings: CloudSettings) -> Clients:
    """The clients for these settings.

    Raises OutsideError without credentials, InputError without a project.
    """
    from google.auth.credentials import AnonymousCredentials

    host = urlsplit(settings.endpoint or "").netloc
    credentials: Any
    if host and is_loopback(host):
        credentials, found = AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    else:
        credentials, found = googleapi.credentials()
    project = settings.project or found
    if not project:
        raise InputError(
            "no project is set", 'use --project, or write project = "..." below [cloud]'
        )
    return Clients(replace(settings, project=project), project, credentials)


def for_show(settings: CloudSettings) -> Clients:
    """The clients of a request that is shown and not sent: a login is needed for no more than the
    project's name. Raises InputError as `connect` does."""
    return Clients(settings, settings.project, None) if settings.project else connect(settings)


# --- what an error means --------------------------------------------------------------------------

ADVICE = googleapi.Advice(
    api="cloudbuild.googleapis.com",
    forbidden="ask for roles/cloudbuild.builds.editor, and roles/storage.admin for the staging",
    missing="correct its name, project and region",
    quota="wait a minute, or ask for more quota",
    refused="correct what it names, and run this again",
    precondition="correct what it names, and run this again",
    unreachable="look at the network and status.cloud.google.com, retry",
)


def explained(error: BaseException, what: str) -> FactoryError:
    """An error of Google's clients as one of ours: a line of what was refused, one of the fix."""
    return googleapi.explained(error, what, ADVICE)


def explaining(
    what: str, but: tuple[type[Exception], ...] = ()
) -> contextlib.AbstractContextManager[None]:
    """Turn Google's errors inside the block into the factory's, except those of `but`."""
    return googleapi.explaining(what, ADVICE, but)
