"""Google's clients of one project, made from the settings, and the meaning of their errors.

`cloud.endpoint` sets the address of Cloud Build (an emulator, private access). The address of Cloud
Storage comes from STORAGE_EMULATOR_HOST, as in Google's own library. An http:// endpoint
gets no credentials.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from builder import googleapi
from builder.core.errors import InputError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import CloudBuildClient

    from builder.core.settings import CloudSettings

ADVICE = googleapi.Advice(
    api="cloudbuild.googleapis.com",
    forbidden="ask for roles/cloudbuild.builds.editor, and roles/storage.admin for the staging",
    missing="correct its name, project and region",
    quota="wait a minute, or ask for more quota",
    refused="correct what it names, and run this again",
    unreachable="look at the network and status.cloud.google.com, retry",
)
explained = partial(googleapi.explained, advice=ADVICE)
explaining = partial(googleapi.explaining, advice=ADVICE)


@dataclass(frozen=True)
class Clients:
    """Each is made at its first use."""

    settings: CloudSettings
    project: str
    credentials: Any

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.settings.region}"

    @cached_property
    def build(self) -> CloudBuildClient:
        from google.cloud.devtools import cloudbuild_v1

        endpoint = self.settings.endpoint
        return cloudbuild_v1.CloudBuildClient(
            credentials=self.credentials,
            transport="rest",
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )

    @cached_property
    def storage(self) -> Any:
        # The library has no types. By importlib, mypy does not look for them.
        storage: Any = importlib.import_module("google.cloud.storage")
        return storage.Client(project=self.project, credentials=self.credentials)


def connect(settings: CloudSettings, sending: bool = True) -> Clients:
    """Return the clients for these settings.

    sending: False for a request that is shown, which needs a login for the project's name alone.
    Raises OutsideError without credentials, InputError without a project.
    """
    if settings.project and not sending:
        return Clients(settings, settings.project, None)
    credentials, own = googleapi.credentials(settings.endpoint)
    project = settings.project or own
    if not project:
        raise InputError(
            "no project is set", 'use --project, or write project = "..." below [cloud]'
        )
    return Clients(settings.model_copy(update={"project": project}), project, credentials)
