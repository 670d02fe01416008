"""What errors of Google's client libraries mean: one line of what is wrong, one of the way out."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.errors import FactoryError, OutsideError

if TYPE_CHECKING:
    import requests
    from google.api_core.retry import Retry

QUOTA_PROJECT = "run: gcloud auth application-default set-quota-project PROJECT"
LOGIN = "run: gcloud auth application-default login"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_PLUGIN = "Getting metadata from plugin failed"
"""How gRPC tells an error of the credentials: as a service that is not available."""
_BROKEN = re.compile(r"ConnectionPool|Connection aborted|Max retries|timed? ?out", re.I)
_NO_QUOTA_PROJECT = re.compile(r"requires a quota project|end user credentials", re.I)
_DISABLED = re.compile(r"has not been used in project|SERVICE_DISABLED|is disabled", re.I)


@dataclass(frozen=True)
class Advice:
    """What a person should do about an error of one service.

    api: the service's own API. Each other field is the second line of one kind of error:
    forbidden: not allowed; missing: not found; quota: too many requests, or no quota left;
    refused: a wrong request; precondition: the wrong moment for it; unreachable: no connection,
    and any other error.
    """

    api: str
    forbidden: str
    missing: str
    quota: str
    refused: str
    precondition: str
    unreachable: str


def explained(error: BaseException, what: str, advice: Advice) -> FactoryError:
    """The factory's error for any error of Google's clients. what: the thing that was asked for."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, OAuthError, RefreshError, TransportError

    if isinstance(error, FactoryError):
        return error
    said = first_line(error)
    match error:
        case TransportError():
            found = "the service cannot be reached", advice.unreachable
        case RefreshError() | OAuthError() | exceptions.Unauthorized():
            found = "the credentials are not accepted", _login()
        case exceptions.ServiceUnavailable() if bad_credentials(error):
            found = "the credentials are not accepted", _login()
        case GoogleAuthError():
            found = "no credentials", _login()
        case exceptions.Forbidden() if _NO_QUOTA_PROJECT.search(str(error)):
            found = "the credentials name no quota project", QUOTA_PROJECT
        case exceptions.Forbidden() | exceptions.NotFound() if _DISABLED.search(str(error)):
            found = _disabled(str(error), advice.api)
        case exceptions.Forbidden():
            found = "not allowed", advice.forbidden
        case exceptions.NotFound():
            found = "not found", advice.missing
        case exceptions.ResourceExhausted():
            found = "no quota left", advice.quota
        case exceptions.TooManyRequests():
            found = "too many requests, or no quota left", advice.quota
        case exceptions.FailedPrecondition():
            found = "refused", advice.precondition
        case exceptions.BadRequest() | exceptions.PreconditionFailed():
            found = "refused", advice.refused
        case exceptions.ServerError() | exceptions.RetryError():
            found = "the service cannot be reached", advice.unreachable
        case exceptions.GoogleAPICallError():
            found = "the service's error", advice.unreachable
        case _:
            found = "the service cannot be reached", advice.unreachable
    return OutsideError(f"{what}: {found[0]}: {said}", found[1])


def _disabled(text: str, api: str) -> tuple[str, str]:
    project = re.search(r"(?:in project |project=)([a-z0-9.:-]+)", text)
    named = re.search(r"([a-z]+\.googleapis\.com)", text)
    name = named[1] if named else api
    where = f" --project {project[1]}" if project else ""
    return f"the API {name} is not enabled", f"run: gcloud services enable {name}{where}"


@contextlib.contextmanager
def explaining(what: str, advice: Advice, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise the errors of Google's clients as the factory's, except those of the types `but`."""
    import requests
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except but:
        raise
    except (GoogleAPIError, GoogleAuthError, requests.RequestException, ConnectionError) as error:
        raise explained(error, what, advice) from error


def passing() -> tuple[type[Exception], ...]:
    """The errors of a broken connection or a busy service: another attempt may succeed."""
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


def reading() -> Retry:
    """How a call that changes nothing is repeated after a passing error: for up to two minutes."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type

    again = if_exception_type(*(one for one in passing() if one is not exceptions.RetryError))
    return Retry(
        predicate=lambda error: again(error) and not bad_credentials(error),
        initial=0.2,
        maximum=15.0,
        multiplier=2.0,
        timeout=120.0,
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without the address that REST puts before it."""
    from google.auth.exceptions import GoogleAuthError

    text = str(getattr(error, "message", "") or error)
    if isinstance(error, GoogleAuthError) and error.args:  # others are details for programs
        text = str(error.args[0])
    text = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) https?://\S+: ", "", text)
    found = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return found[:300] or type(error).__name__


# --- credentials ----------------------------------------------------------------------------------


def credentials() -> tuple[Any, str | None]:
    """This machine's credentials, and the project that they name.

    Raises OutsideError where there are none, or where they cannot be read or used.
    """
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

    file = os.environ.get(KEY_FILE)
    try:
        found, project = google.auth.default(scopes=[SCOPE])
        return found, project
    except TransportError as error:
        what = f"the service of the credentials cannot be reached: {first_line(error)}"
        raise OutsideError(what, "try again; " + _login()) from error
    except (AttributeError, LookupError, TypeError) as error:  # a file of another shape
        named = f"{KEY_FILE}={file}" if file else "the file of this machine's credentials"
        raise OutsideError(f"{named}: it does not hold credentials", _login()) from error
    except (GoogleAuthError, OSError, ValueError) as error:
        said = first_line(error)
        if file:
            what = f"{KEY_FILE}={file}: {said}"
        elif isinstance(error, DefaultCredentialsError) and "not valid" not in said.lower():
            what = "there are no credentials for Google Cloud"
        else:
            what = f"the credentials for Google Cloud cannot be used: {said}"
        raise OutsideError(what, _login()) from error


def session(credentials: Any) -> requests.Session:
    """Plain HTTPS with credentials; anonymous ones are for an emulator, beside every proxy."""
    import requests
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    if isinstance(credentials, AnonymousCredentials):
        found = requests.Session()
        found.trust_env = False
        return found
    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]


def bad_credentials(error: BaseException) -> bool:
    """Whether gRPC says "unavailable" where the credentials are refused."""
    text = str(error)
    return _PLUGIN in text and not _BROKEN.search(text)


def _login() -> str:
    if os.environ.get(KEY_FILE):
        return f"renew the file that {KEY_FILE} names; or unset it and {LOGIN}"
    return LOGIN


# --- names of things ------------------------------------------------------------------------------

_OF_A_PROJECT = re.compile(r"[^@]+@([a-z][a-z0-9-]*)((?:\.[a-z0-9-]+)*)\.iam\.gserviceaccount\.com")
_DEFAULT = re.compile(
    r"(\d+)-compute@developer\.gserviceaccount\.com|(\d+)@cloudbuild\.gserviceaccount\.com"
    r"|([a-z0-9.-]+)@appspot\.gserviceaccount\.com"
)


def account_name(address: str) -> str:
    """The full name of a service account: projects/PROJECT/serviceAccounts/ADDRESS.

    The default accounts of Compute Engine, Cloud Build and App Engine begin with their project's
    number or id. A domain's project, acme.com:p, is p.acme.com in an address. `-` lets the service
    find the project of any other address.
    """
    project = "-"
    if found := _OF_A_PROJECT.fullmatch(address):
        domain = found[2].removeprefix(".")
        project = f"{domain}:{found[1]}" if domain else found[1]
    elif found := _DEFAULT.fullmatch(address):
        project = next(one for one in found.groups() if one)
    return f"projects/{project}/serviceAccounts/{address}"
