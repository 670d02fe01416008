"""Questions to a project of Google Cloud that change nothing: APIs, rights, policies.

What may not be asked is a finding, too. Sources: the REST references of Service Usage, Resource
Manager and IAM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from builder.core import googleapi
from builder.core.checkup import Finding
from builder.core.errors import FactoryError

if TYPE_CHECKING:
    import requests

ANYTHING = ("roles/owner", "roles/editor")
"""Basic roles, which have nearly every right."""
ACT_AS: Final = {"iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser"}
"""The right to let something run as a service account, and the role that has it."""
_REPOSITORY: Final = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/:@]+)")
Answer = dict[str, Any]


@dataclass(frozen=True)
class ImageRepository:
    """A repository of Artifact Registry."""

    project: str
    region: str
    name: str


def image_repository(reference: str) -> ImageRepository | None:
    """The repository that an image's reference names; None for another registry's."""
    if found := _REPOSITORY.match(reference):
        return ImageRepository(project=found[2], region=found[1], name=found[3])
    return None


@dataclass(frozen=True)
class Project:
    """A project that is asked. base: an emulator's address, None for Google's own services."""

    name: str
    session: requests.Session
    advice: googleapi.Advice
    base: str | None = None

    def ask(self, host: str, path: str, body: Any = None) -> Answer | Finding:
        """The answer of a service; a note if it does not answer. body: of a POST."""
        from google.api_core import exceptions

        what = path.rpartition(":")[2].rpartition("/")[2].partition("?")[0]
        try:
            with googleapi.explaining(f"{host} {what}", self.advice):
                method = "GET" if body is None else "POST"
                where = (self.base or f"https://{host}") + path
                answer = self.session.request(method, where, json=body, timeout=30)
                if not answer.ok:
                    raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
                return dict(answer.json())
        except FactoryError as error:
            seen = f"not known: {error.message}"
            return Finding(host.partition(".")[0], "note", seen, error.fix)

    def policy(self) -> Answer | Finding:
        """Who has which role in the project."""
        host = "cloudresourcemanager.googleapis.com"
        return self.ask(host, f"/v1/projects/{self.name}:getIamPolicy", {})

    def bucket_policy(self, name: str) -> Answer | Finding:
        """Who has which role in a bucket."""
        return self.ask("storage.googleapis.com", f"/storage/v1/b/{name}/iam")

    def repository_policy(self, one: ImageRepository) -> Answer | Finding:
        """Who has which role in a repository of images."""
        place = f"projects/{one.project}/locations/{one.region}/repositories/{one.name}"
        return self.ask("artifactregistry.googleapis.com", f"/v1/{place}:getIamPolicy")

    def acts_as(self, account: str) -> Answer | Finding:
        """Whether the caller may use a service account: those of ACT_AS that are granted."""
        path = f"/v1/{googleapi.account_name(account)}:testIamPermissions"
        return self.ask("iam.googleapis.com", path, {"permissions": list(ACT_AS)})

    def allowed(self, permissions: Sequence[str], project: str | None = None) -> Answer | Finding:
        """Which of these permissions the caller has in the project, or in another one."""
        path = f"/v1/projects/{project or self.name}:testIamPermissions"
        body = {"permissions": list(permissions)}
        return self.ask("cloudresourcemanager.googleapis.com", path, body)


def disabled(project: Project, apis: Sequence[str]) -> list[str] | Finding:
    """Those of the APIs that are not enabled."""
    within = f"projects/{project.name}/services"
    names = "&".join(f"names={within}/{api}" for api in apis)
    found = project.ask("serviceusage.googleapis.com", f"/v1/{within}:batchGet?{names}")
    if isinstance(found, Finding):
        return found
    enabled = {
        one["name"].rpartition("/")[2]
        for one in found.get("services", ())
        if one.get("state") == "ENABLED"
    }
    return [api for api in apis if api not in enabled]


def missing(answer: Answer, wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of the wanted permissions that an answer to testIamPermissions does not have."""
    has = answer.get("permissions", ())
    return {one: role for one, role in wanted.items() if one not in has}


def held(policies: Sequence[Answer | Finding], member: str) -> set[str]:
    """The roles that these policies give to one member, as far as they may be read."""
    return {
        binding["role"]
        for policy in policies
        if not isinstance(policy, Finding)
        for binding in policy.get("bindings", ())
        if member in binding.get("members", ())
    }


def readable(policies: Sequence[Answer | Finding]) -> bool:
    """Whether each of the policies could be read."""
    return not any(isinstance(one, Finding) for one in policies)
