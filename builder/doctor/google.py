"""Questions to a project of Google Cloud that change nothing: what the caller may do.

Sources: the REST references of Resource Manager, IAM and Cloud Storage. A service that is not
enabled says so itself, with the command that enables it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from builder import googleapi
from builder.core.errors import FactoryError
from builder.doctor import Finding, Unknown

if TYPE_CHECKING:
    import requests

ACT_AS: Final = {"iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser"}
"""The right to let something run as a service account, and the role that has it."""
READS_LOGS: Final = {"logging.logEntries.list": "roles/logging.viewer"}


@dataclass(frozen=True)
class Project:
    """A project that is asked."""

    name: str
    session: requests.Session
    base: str | None = None
    """An emulator's address, None for Google's own services."""

    def ask(
        self, host: str, path: str, permissions: Iterable[str], by_get: bool = False
    ) -> list[str]:
        """Return those of the permissions that the caller has, by a testIamPermissions of a
        service. by_get: it takes them as a query. Raises Unknown where it does not answer."""
        from google.api_core import exceptions

        fix = "look at the project's name, at your rights and at status.cloud.google.com"
        names = ("forbidden", "missing", "quota", "refused", "unreachable")
        advice = googleapi.Advice(host, **dict.fromkeys(names, fix))
        sent = {"permissions": list(permissions)}
        try:
            with googleapi.explaining(f"{host} testIamPermissions", advice):
                url = (self.base or f"https://{host}") + path
                answer = (
                    self.session.get(url, timeout=30, params=sent)
                    if by_get
                    else self.session.post(url, timeout=30, json=sent)
                )
                if not answer.ok:
                    raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
                return list(answer.json().get("permissions", ()))
        except FactoryError as error:
            raise Unknown(error.message, error.fix) from error

    def may(self, name: str, wanted: Mapping[str, str], member: str, project: str = "") -> Finding:
        """Return whether the caller has these permissions in a project, each with the role that has
        it."""
        project = project or self.name
        path = f"/v1/projects/{project}:testIamPermissions"
        has = self.ask("cloudresourcemanager.googleapis.com", path, wanted)
        command = f"gcloud projects add-iam-policy-binding {project} --member={member} --role="
        return granted(name, wanted, has, command)

    def reads_logs(self, member: str) -> Finding:
        """Return whether the caller may read logs."""
        return self.may("right to read logs", READS_LOGS, member)

    def acts_as(self, name: str, account: str, member: str) -> Finding:
        """Return whether the caller may let something run as a service account."""
        path = f"/v1/{googleapi.account_name(account)}:testIamPermissions"
        command = f"gcloud iam service-accounts add-iam-policy-binding {account}"
        has = self.ask("iam.googleapis.com", path, ACT_AS)
        return granted(name, ACT_AS, has, f"{command} --member={member} --role=")


def granted(name: str, wanted: Mapping[str, str], has: Collection[str], grant: str) -> Finding:
    """Return whether permissions are there. grant: the command that grants a role, without it."""
    missing = [permission for permission in wanted if permission not in has]
    if not missing:
        return Finding(name, "ok", f"granted: {', '.join(wanted)}")
    return Finding(name, "error", f"missing: {', '.join(missing)}", grant + wanted[missing[0]])
