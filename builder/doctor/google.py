"""Questions to a project of Google Cloud that change nothing: APIs, rights, policies.

Sources: the REST references of Service Usage, Resource Manager, IAM, Cloud Storage and Artifact
Registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from builder import googleapi
from builder.core.errors import FactoryError
from builder.doctor import Finding, Unknown

if TYPE_CHECKING:
    import requests

APIS: Final = (
    "artifactregistry.googleapis.com",
    "storage.googleapis.com",
    "logging.googleapis.com",
)
"""What each build and each job needs, beside the API of its own service."""
ACT_AS: Final = {"iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser"}
"""The right to let something run as a service account, and the role that has it."""
READS_LOGS: Final = {"logging.logEntries.list": "roles/logging.viewer"}
_BASIC_ROLES: Final = {"roles/owner", "roles/editor"}
_REPOSITORY: Final = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/:@]+)")
_PROJECTS: Final = "cloudresourcemanager.googleapis.com"


@dataclass(frozen=True)
class Question:
    """A request to a service. body: of a POST, None for a GET."""

    host: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ImageRepository:
    """A repository of Artifact Registry."""

    project: str
    region: str
    name: str

    @property
    def policy(self) -> Question:
        """Who has which role in it."""
        place = f"projects/{self.project}/locations/{self.region}/repositories/{self.name}"
        return Question("artifactregistry.googleapis.com", f"/v1/{place}:getIamPolicy")


def image_repository(reference: str) -> ImageRepository | None:
    """Return the repository that an image's reference names; None for another registry's."""
    match = _REPOSITORY.match(reference)
    return ImageRepository(match[2], match[1], match[3]) if match else None


def bucket_policy(name: str) -> Question:
    """Return the question who has which role in a bucket."""
    return Question("storage.googleapis.com", f"/storage/v1/b/{name}/iam")


@dataclass(frozen=True)
class Project:
    """A project that is asked. base: an emulator's address, None for Google's own services."""

    name: str
    session: requests.Session
    base: str | None = None

    @property
    def policy(self) -> Question:
        """Who has which role in the project."""
        return Question(_PROJECTS, f"/v1/projects/{self.name}:getIamPolicy", {})

    def rights(self, permissions: Mapping[str, str], project: str = "") -> Question:
        """Return the question which of these permissions the caller has in a project."""
        path = f"/v1/projects/{project or self.name}:testIamPermissions"
        return Question(_PROJECTS, path, {"permissions": list(permissions)})

    def grant(self, member: str) -> str:
        """Return the command that gives a member a role in the project, without the role."""
        return f"gcloud projects add-iam-policy-binding {self.name} --member={member} --role="

    def ask(self, question: Question) -> dict[str, Any]:
        """Return the answer of a service. Raises Unknown where it gives none."""
        from google.api_core import exceptions

        fixes = dict.fromkeys(
            ("forbidden", "missing", "quota", "refused", "precondition", "unreachable"),
            "look at the project's name, at your rights and at status.cloud.google.com",
        )
        what = re.split(r"[:/]", question.path.partition("?")[0])[-1]
        try:
            advice = googleapi.Advice(question.host, **fixes)
            with googleapi.explaining(f"{question.host} {what}", advice):
                answer = self.session.request(
                    "GET" if question.body is None else "POST",
                    (self.base or f"https://{question.host}") + question.path,
                    json=question.body,
                    timeout=30,
                )
                if not answer.ok:
                    raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
                return dict(answer.json())
        except FactoryError as error:
            raise Unknown(error.message, error.fix) from error

    def apis(self, apis: Sequence[str]) -> Iterator[Finding]:
        """Yield which of these APIs are not enabled."""
        within = f"projects/{self.name}/services"
        names = "&".join(f"names={within}/{api}" for api in apis)
        question = Question("serviceusage.googleapis.com", f"/v1/{within}:batchGet?{names}")
        services = self.ask(question).get("services", ())
        enabled = {s["name"].rpartition("/")[2] for s in services if s.get("state") == "ENABLED"}
        for api in apis:
            if api not in enabled:
                fix = f"gcloud services enable {api} --project={self.name}"
                yield Finding(f"API {api}", "error", "is not enabled", fix)
        if enabled >= set(apis):
            yield Finding("APIs", "ok", f"{len(apis)} are enabled")

    def caller(
        self, name: str, question: Question, wanted: Mapping[str, str], grant: str
    ) -> Finding:
        """Return whether the caller has the wanted permissions, each with the role that has it.

        question: one to testIamPermissions. grant: the command that grants a role, without it.
        """
        has = self.ask(question).get("permissions", ())
        missing = [permission for permission in wanted if permission not in has]
        if not missing:
            return Finding(name, "ok", f"granted: {', '.join(wanted)}")
        return Finding(name, "error", f"missing: {', '.join(missing)}", grant + wanted[missing[0]])

    def reads_logs(self, member: str) -> Finding:
        """Return whether the caller may read logs."""
        question, grant = self.rights(READS_LOGS), self.grant(member)
        return self.caller("right to read logs", question, READS_LOGS, grant)

    def acts_as(self, name: str, account: str, member: str) -> Finding:
        """Return whether the caller may let something run as a service account."""
        path = f"/v1/{googleapi.account_name(account)}:testIamPermissions"
        question = Question("iam.googleapis.com", path, {"permissions": list(ACT_AS)})
        command = f"gcloud iam service-accounts add-iam-policy-binding {account}"
        return self.caller(name, question, ACT_AS, f"{command} --member={member} --role=")

    def granted(
        self,
        name: str,
        account: str,
        roles: Sequence[str],
        policies: Sequence[Question],
        grant: str,
    ) -> Finding:
        """Return whether one of these policies gives an account one of these roles.

        grant: the command that gives it the first one, without the role.
        """
        member, roles_held, fix = f"serviceAccount:{account}", set[str](), grant + roles[0]
        unreadable = False
        for question in policies:
            try:
                bindings = self.ask(question).get("bindings", ())
            except Unknown:
                unreadable = True
                continue
            roles_held |= {b["role"] for b in bindings if member in b.get("members", ())}
        if fitting := roles_held & {*roles, *_BASIC_ROLES}:
            return Finding(name, "ok", f"{account} has {min(fitting)}")
        if unreadable:
            return Finding(name, "warning", f"not known of {account}: a policy is closed", fix)
        message = f"{account} may not, as far as its own roles tell; those of groups are not seen"
        return Finding(name, "error", message, fix)
