"""Google's clients, made from the settings, and the meaning of their errors in a line each.

`cloud.endpoint` sets the address of Cloud Build (an emulator, private access). The address of Cloud
Storage comes from STORAGE_EMULATOR_HOST, as in Google's own library. An endpoint on this machine
gets no credentials.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.core.errors import FactoryError, InputError, OutsideError
from builder.registry import is_loopback

if TYPE_CHECKING:
    import requests
    from google.cloud.devtools.cloudbuild_v1 import CloudBuildClient

    from builder.core.settings import CloudSettings

STORAGE = "https://storage.googleapis.com"
STORAGE_VARIABLE = "STORAGE_EMULATOR_HOST"
LOGGING_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
"""gcloud's own variable for another endpoint of Cloud Logging."""

LOGIN = "run: gcloud auth application-default login"


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
        import requests
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession

        if isinstance(self.credentials, AnonymousCredentials):
            session = requests.Session()
            session.trust_env = False
            return session
        found: requests.Session = AuthorizedSession(self.credentials)  # type: ignore[no-untyped-call]
        return found

    @property
    def storage_endpoint(self) -> str:
        """The address for reading objects: https://HOST."""
        host = os.environ.get(STORAGE_VARIABLE) or STORAGE
        return (host if "://" in host else f"http://{host}").rstrip("/")


def connect(settings: CloudSettings) -> Clients:
    """The clients for these settings. Raises InputError without credentials or a project."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    host = urlsplit(settings.endpoint or "").netloc
    credentials: Any
    if host and is_loopback(host):
        credentials, found = AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    else:
        try:
            credentials, found = google.auth.default(
                scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
        except DefaultCredentialsError:
            raise InputError("there are no credentials for Google Cloud", LOGIN) from None
    project = settings.project or found
    if not project:
        raise InputError(
            "no project is set", 'use --project, or write project = "..." below [cloud]'
        )
    return Clients(replace(settings, project=project), project, credentials)


# --- what an error means --------------------------------------------------------------------------

_DISABLED = re.compile(r"has not been used in project|SERVICE_DISABLED|is disabled", re.I)


def explained(error: BaseException, what: str) -> FactoryError:
    """An error of Google's clients as one of ours: a line of what was refused, one of the fix."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, RefreshError

    said = _line(getattr(error, "message", "") or str(error))
    said = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) https?://\S+: ", "", said)
    text = str(error)
    if isinstance(error, FactoryError):
        return error
    if isinstance(error, RefreshError):
        return OutsideError(f"{what}: the credentials are no longer accepted: {said}", LOGIN)
    if isinstance(error, GoogleAuthError):
        return OutsideError(f"{what}: no credentials: {said}", LOGIN)
    if isinstance(error, exceptions.Forbidden | exceptions.NotFound) and _DISABLED.search(text):
        project = re.search(r"(?:in project |project=)([a-z0-9.:-]+)", text)
        api = re.search(r"([a-z]+\.googleapis\.com)", text)
        name, where = api[1] if api else "cloudbuild.googleapis.com", project[1] if project else ""
        fix = f"run: gcloud services enable {name}" + (f" --project {where}" if where else "")
        return OutsideError(f"{what}: the API {name} is not enabled: {said}", fix)
    if isinstance(error, exceptions.Unauthorized):
        return OutsideError(f"{what}: the credentials are not accepted: {said}", LOGIN)
    if isinstance(error, exceptions.Forbidden):
        fix = "ask for roles/cloudbuild.builds.editor, and roles/storage.admin for the staging"
        return OutsideError(f"{what}: not allowed: {said}", fix)
    if isinstance(error, exceptions.NotFound):
        return OutsideError(f"{what}: not found: {said}", "correct its name, project and region")
    if isinstance(error, exceptions.TooManyRequests):
        fix = "wait a minute, or ask for more quota"
        return OutsideError(f"{what}: too many requests: {said}", fix)
    if isinstance(error, exceptions.BadRequest | exceptions.PreconditionFailed):
        return OutsideError(f"{what}: refused: {said}", "correct what it names, and run this again")
    return OutsideError(f"{what}: {said}", "look at the network and status.cloud.google.com, retry")


def passing() -> tuple[type[Exception], ...]:
    """The errors that may pass: of a connection, or of a service that is busy."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    return (
        exceptions.ServerError,  # 5xx
        exceptions.TooManyRequests,
        exceptions.RetryError,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        TransportError,
        ConnectionError,
    )


@contextlib.contextmanager
def explaining(what: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn Google's errors inside the block into the factory's, except those of `but`."""
    import requests
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except but:
        raise
    except (GoogleAPIError, GoogleAuthError, requests.RequestException, ConnectionError) as error:
        raise explained(error, what) from error


def _line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]
