"""Google's services: credentials, their errors in two lines, which are transient, Cloud Logging.

Cloud Build, Vertex AI and the doctor use it. None of these may import another, so the one table of
errors stands below all of them. Everything goes over REST, which passes through HTTP proxies.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from builder.core.errors import FactoryError, OutsideError
from builder.core.findings import DoctorFinding, Unknown

if TYPE_CHECKING:
    import requests
    from google.api_core.retry import Retry

QUOTA_PROJECT: Final = "run: gcloud auth application-default set-quota-project PROJECT"
LOGIN: Final = "run: gcloud auth application-default login"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
KEY_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"

_NO_QUOTA_PROJECT: Final = re.compile(r"requires a quota project|end user credentials", re.I)
_DISABLED: Final = re.compile(
    r"has not been used in project|SERVICE_DISABLED|is disabled", re.IGNORECASE
)


@dataclass(frozen=True)
class Advice:
    """What a person should do about an error of one service: the second line of each kind."""

    api: str
    """The service's own API."""
    forbidden: str
    """Not allowed."""
    missing: str
    """Not found."""
    quota: str
    """Too many requests, or no quota left."""
    refused: str
    """A wrong request, or the wrong moment for it."""
    unreachable: str
    """No connection, and any other error."""


def explained(error: BaseException, what: str, advice: Advice) -> FactoryError:
    """Return the factory's error for any error of Google's clients.

    what: the object or the call that the client asked for. An error of ours is returned as it is.
    """
    if isinstance(error, FactoryError):
        return error
    problem, fix = _meaning(error, advice)
    return OutsideError(f"{what}: {problem}: {first_line(error)}", fix)


def _meaning(error: BaseException, advice: Advice) -> tuple[str, str]:
    """Return what is wrong and what to do about it."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, OAuthError, RefreshError, TransportError

    match error:
        case RefreshError() | OAuthError() | exceptions.Unauthorized():
            return "the credentials are not accepted", _login()
        case GoogleAuthError() if not isinstance(error, TransportError):
            return "no credentials", _login()
        case exceptions.Forbidden() if _NO_QUOTA_PROJECT.search(str(error)):
            return "the credentials name no quota project", QUOTA_PROJECT
        case exceptions.Forbidden() | exceptions.NotFound() if _DISABLED.search(str(error)):
            return _disabled(str(error), advice.api)
        case exceptions.Forbidden():
            return "not allowed", advice.forbidden
        case exceptions.NotFound():
            return "not found", advice.missing
        case exceptions.TooManyRequests():
            return "too many requests, or no quota left", advice.quota
        case exceptions.BadRequest() | exceptions.PreconditionFailed():
            return "refused", advice.refused
        case exceptions.GoogleAPICallError() if not isinstance(error, exceptions.ServerError):
            return "the service's error", advice.unreachable
    return "the service cannot be reached", advice.unreachable


def _disabled(text: str, api: str) -> tuple[str, str]:
    project = re.search(r"(?:in project |project=)([a-z0-9.:-]+)", text)
    named = re.search(r"([a-z]+\.googleapis\.com)", text)
    name = named[1] if named else api
    option = f" --project {project[1]}" if project else ""
    return f"the API {name} is not enabled", f"run: gcloud services enable {name}{option}"


@contextlib.contextmanager
def explaining(what: str, advice: Advice) -> Iterator[None]:
    """Raise the errors of Google's clients as the factory's."""
    import requests
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, requests.RequestException, ConnectionError) as error:
        raise explained(error, what, advice) from error


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a broken connection or a busy service."""
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


def read_retry() -> Retry:
    """Return how a call that changes nothing is repeated: after transient errors, for 2 minutes."""
    from google.api_core.exceptions import RetryError
    from google.api_core.retry import Retry

    transient = transient_errors()
    return Retry(
        predicate=lambda error: isinstance(error, transient) and not isinstance(error, RetryError),
        initial=0.2,
        maximum=15.0,
        multiplier=2.0,
        timeout=120.0,
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without the address that REST puts before it."""
    from google.auth.exceptions import GoogleAuthError

    text = str(getattr(error, "message", "") or error)
    if isinstance(error, GoogleAuthError) and error.args:  # the others are details for programs
        text = str(error.args[0])
    text = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) https?://\S+: ", "", text)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first[:300] or type(error).__name__


# --- credentials ----------------------------------------------------------------------------------


def credentials(endpoint: str | None = None) -> tuple[Any, str | None]:
    """Return this machine's credentials, and the project that they name; an endpoint that is
    reached by http:// is an emulator and gets none.

    Raises OutsideError where there are none, or where they cannot be read or used.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

    if (endpoint or "").startswith("http://"):
        return AnonymousCredentials(), None  # type: ignore[no-untyped-call]
    file = os.environ.get(KEY_FILE)
    try:
        loaded, project = google.auth.default(scopes=[SCOPE])
        return loaded, project
    except TransportError as error:
        what = f"the service of the credentials cannot be reached: {first_line(error)}"
        raise OutsideError(what, f"try again; {_login()}") from error
    except (AttributeError, LookupError, TypeError) as error:  # a file of another shape
        named = f"{KEY_FILE}={file}" if file else "the file of this machine's credentials"
        raise OutsideError(f"{named}: it does not hold credentials", _login()) from error
    except (GoogleAuthError, OSError, ValueError) as error:
        reason = first_line(error)
        if file:
            what = f"{KEY_FILE}={file}: {reason}"
        elif isinstance(error, DefaultCredentialsError) and "not valid" not in reason.lower():
            what = "there are no credentials for Google Cloud"
        else:
            what = f"the credentials for Google Cloud cannot be used: {reason}"
        raise OutsideError(what, _login()) from error


def session(credentials: Any) -> requests.Session:
    """Return an HTTPS session with credentials.

    Anonymous credentials are those of an emulator, which is reached without any proxy.
    """
    import requests
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    if isinstance(credentials, AnonymousCredentials):
        anonymous = requests.Session()
        anonymous.trust_env = False
        return anonymous
    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]


def _login() -> str:
    if os.environ.get(KEY_FILE):
        return f"renew the file that {KEY_FILE} names; or unset it and {LOGIN}"
    return LOGIN


# --- Cloud Logging --------------------------------------------------------------------------------

OVERLAP: Final = timedelta(seconds=60)
"""How much each read of a log begins before the newest entry that was read."""
PAGE: Final = 1000
"""The most entries of one answer. Source: Cloud Logging, quotas."""
READ_SECONDS: Final = 60.0


@dataclass
class LogEntries:
    """The entries of a log that fit a filter, read while they grow: each once.

    An entry may be received minutes after its line was printed. So each read asks for what was
    received since the last one, begins a little earlier, and skips what it has returned already.
    google-cloud-logging cannot do that: it begins at the first page again after an error.
    """

    session: requests.Session
    host: str
    project: str
    conditions: tuple[str, ...]
    since: datetime | None = None
    """When the newest entry that was read was received."""
    returned: dict[str, datetime] = field(default_factory=dict)
    """When each entry that another read may bring again was received."""

    def read(self) -> list[dict[str, Any]]:
        """Return the entries since the last call, by time. Raises the errors of Google's clients;
        a transient one repeats one page."""
        new = []
        for entry in list(self._entries()):
            received = entry_time(entry, "receiveTimestamp")
            key = entry.get("insertId") or repr(entry)
            if key not in self.returned:
                self.returned[key] = received
                new.append(entry)
                self.since = max(self.since or received, received)
        if self.since is not None:  # no later read returns entries from before the overlap
            edge = self.since - 2 * OVERLAP
            self.returned = {key: when for key, when in self.returned.items() if when > edge}
        return new

    def newest(self, *conditions: str) -> list[dict[str, Any]]:
        """Return the newest entries that fit further conditions, by time: a page at most."""
        body = self._body([*self.conditions, *conditions], "desc")
        return list(reversed(read_retry()(self._page)(body).get("entries", ())))

    def _body(self, conditions: Sequence[str], order: str) -> dict[str, Any]:
        return {
            "resourceNames": [f"projects/{self.project}"],
            "filter": " AND ".join(conditions),
            "orderBy": f"timestamp {order}",
            "pageSize": PAGE,
        }

    def _entries(self) -> Iterator[dict[str, Any]]:
        conditions = list(self.conditions)
        if self.since is not None:
            back = (self.since - OVERLAP).astimezone(UTC).isoformat().replace("+00:00", "Z")
            conditions.append(f'receiveTimestamp>="{back}"')
        body = self._body(conditions, "asc")
        ask = read_retry()(self._page)
        while True:
            answer = ask(body)
            yield from answer.get("entries", ())
            if not answer.get("nextPageToken"):
                return
            body = body | {"pageToken": answer["nextPageToken"]}

    def _page(self, body: dict[str, Any]) -> dict[str, Any]:
        from google.api_core import exceptions

        url = f"{self.host or 'https://logging.googleapis.com'}/v2/entries:list"
        answer = self.session.post(url, json=body, timeout=READ_SECONDS)
        if not answer.ok:
            raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
        return dict(answer.json())


def entry_time(entry: dict[str, Any], kind: str = "timestamp") -> datetime:
    """Return when an entry's line was printed, or when the entry was received."""
    text = entry.get(kind) or entry.get("timestamp") or entry.get("receiveTimestamp")
    return datetime.fromisoformat(text) if text else datetime.now(UTC)


def entry_payload(entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of an entry, and the fields of one that is a JSON object."""
    kinds = ("textPayload", "jsonPayload", "protoPayload")
    payload = next((entry[kind] for kind in kinds if kind in entry), "")
    fields = payload if isinstance(payload, dict) else {}
    return str(fields.get("message", payload)).rstrip("\n"), fields


# --- service accounts -----------------------------------------------------------------------------

_OF_A_PROJECT: Final = re.compile(
    r"[^@]+@([a-z][a-z0-9-]*)((?:\.[a-z0-9-]+)*)\.iam\.gserviceaccount\.com"
)
_DEFAULT: Final = re.compile(
    r"(\d+)-compute@developer\.gserviceaccount\.com|(\d+)@cloudbuild\.gserviceaccount\.com"
    r"|([a-z0-9.-]+)@appspot\.gserviceaccount\.com"
)


def account_name(address: str) -> str:
    """Return the full name of a service account: projects/PROJECT/serviceAccounts/ADDRESS.

    The default accounts of Compute Engine, Cloud Build and App Engine begin with their project's
    number or id. A domain's project, acme.com:p, is p.acme.com in an address. `-` lets the service
    find the project of any other address.
    """
    project = "-"
    if match := _OF_A_PROJECT.fullmatch(address):
        domain = match[2].removeprefix(".")
        project = f"{domain}:{match[1]}" if domain else match[1]
    elif match := _DEFAULT.fullmatch(address):
        project = next(group for group in match.groups() if group)
    return f"projects/{project}/serviceAccounts/{address}"


# --- what the caller may do -----------------------------------------------------------------------
#
# Questions that change nothing. Sources: the REST references of Resource Manager, IAM and Cloud
# Storage. A service that is not enabled says so itself, with the command that enables it.

ACT_AS: Final = {"iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser"}
"""The right to let something run as a service account, and the role that has it."""
READS_LOGS: Final = {"logging.logEntries.list": "roles/logging.viewer"}


@dataclass(frozen=True)
class Project:
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
        advice = Advice(host, **dict.fromkeys(names, fix))
        sent = {"permissions": list(permissions)}
        try:
            with explaining(f"{host} testIamPermissions", advice):
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

    def may(
        self, name: str, wanted: Mapping[str, str], member: str, project: str = ""
    ) -> DoctorFinding:
        """Return whether the caller has these permissions in a project, each with its role."""
        project = project or self.name
        path = f"/v1/projects/{project}:testIamPermissions"
        has = self.ask("cloudresourcemanager.googleapis.com", path, wanted)
        command = f"gcloud projects add-iam-policy-binding {project} --member={member} --role="
        return granted(name, wanted, has, command)

    def reads_logs(self, member: str) -> DoctorFinding:
        return self.may("right to read logs", READS_LOGS, member)

    def acts_as(self, name: str, account: str, member: str) -> DoctorFinding:
        """Return whether the caller may let something run as a service account."""
        path = f"/v1/{account_name(account)}:testIamPermissions"
        command = f"gcloud iam service-accounts add-iam-policy-binding {account}"
        has = self.ask("iam.googleapis.com", path, ACT_AS)
        return granted(name, ACT_AS, has, f"{command} --member={member} --role=")


def granted(
    name: str, wanted: Mapping[str, str], has: Collection[str], grant: str
) -> DoctorFinding:
    """Return whether permissions are there. grant: the command that grants a role, without it."""
    missing = [permission for permission in wanted if permission not in has]
    if not missing:
        return DoctorFinding(name, "ok", f"granted: {', '.join(wanted)}")
    return DoctorFinding(
        name, "error", f"missing: {', '.join(missing)}", grant + wanted[missing[0]]
    )
