"""The errors for a registry that refuses and a connection that breaks: one line and a fix.

A TransientError may be tried again; everything else is an OutsideError.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from builder.core.errors import OutsideError
from builder.core.retry import TransientError
from builder.core.web import Answer, joined
from builder.registry import decoding
from builder.registry.names import ARTIFACT_REGISTRY, DOCKER_HUB, GCR, Reference, login_command

if TYPE_CHECKING:
    from urllib3.exceptions import HTTPError

    from builder.registry.credentials import Credentials

Right = Literal["read", "write"]

BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""The statuses of transient errors."""

_GCLOUD_USERS: Final = frozenset(
    {"_dcgcloud_token", "oauth2accesstoken", "_json_key", "_json_key_base64"}
)
"""Names that stand for whichever account a token or key belongs to."""


def refusal(
    reference: Reference, status: int, text: str, right: Right, known: Credentials | None
) -> OutsideError:
    """Return the error of a refusal that no waiting will change.

    status: of the answer, 0 where only the words are known. text: those words. right: what was
    asked for. known: the credentials that the registry was shown.
    """
    host, words = reference.host, text.lower()
    if "immutab" in words or "cannot be overwritten" in words:
        return OutsideError(
            f"{reference}: the tag exists and this repository's tags are immutable: {text}",
            "push under a new tag, or let the repository's owner switch immutable tags off",
        )
    if "quota" in words or "insufficient storage" in words or status == 507:
        return OutsideError(
            f"{reference}: over the quota of {host}: {text}",
            "delete images that nobody uses, or ask for a larger quota",
        )
    missing = status == 404 or "name_unknown" in words or "name unknown" in words
    if missing and right == "write" and (error := _no_google_repository(reference)):
        return error
    if missing:
        return OutsideError(f"{reference}: not there: {text}", "correct the name, or create it")
    if known is None and status in (401, 403):
        return not_logged_in(reference, right)
    if status in (401, 403) or "denied" in words:
        return _denied(reference, text, right, known)
    answer = f"answered {status}" if status else "refused"
    return OutsideError(
        f"{reference}: {host} {answer}{f': {text}' if text else ''}",
        "see the registry's log for the reason",
    )


def not_logged_in(reference: Reference, right: Right) -> OutsideError:
    return OutsideError(
        f"not logged in to {reference.host}: {right} access to {reference.repository} needs a "
        "login",
        f"run: {login_command(reference.host)}",
    )


def bad_credentials(host: str, known: Credentials) -> OutsideError:
    return OutsideError(
        f"{host} refused the credentials of {known.username or 'the stored token'}"
        f" (found in {known.source})",
        f"they may have expired; run: {login_command(host)}",
    )


def busy(host: str, method: str, response: Answer, known: Credentials | None) -> TransientError:
    """Return the error of an answer with one of the statuses of BUSY."""
    text = message(response)
    fix = ""
    if response.status == 429:
        fix = "wait, or ask the registry's owner for a larger quota"
        if host == DOCKER_HUB and not known:
            fix = "log in, anonymous requests are limited: run: docker login"
    return TransientError(
        f"{host} answered {response.status} {response.reason}"
        f" to {method}{f': {text}' if text else ''}",
        fix,
        _retry_after(response.headers.get("Retry-After", "")),
    )


def broken(error: HTTPError, url: str) -> Exception:
    """Return the error of a request without an answer.

    It is a TransientError, or an OutsideError where waiting changes nothing.
    """
    from urllib3.exceptions import NewConnectionError, ProxyError, TimeoutError

    host = urlsplit(url).netloc
    causes = list(_chain(error))
    reason = str(causes[-1] or error).strip() or type(error).__name__
    if "Tunnel connection failed" in reason:
        return OutsideError(
            f"{host}: the proxy refused: {reason}", "check HTTPS_PROXY and NO_PROXY"
        )
    if by_proxy := any(isinstance(cause, ProxyError) for cause in causes):
        host += " through HTTPS_PROXY"
    for cause in causes:
        if final := _final(cause, host, by_proxy):
            return final
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return TransientError(f"{host} gave no answer in time ({type(error).__name__})")
    return TransientError(f"{host}: the connection failed: {reason}")


def shown(url: str) -> str:
    """Return scheme and host of an address that a registry gave: the rest may be a signature."""
    parts = urlsplit(joined("", url) or "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:100]


def message(response: Answer) -> str:
    """Return the registry's own words on one line, "" where it has none."""
    try:
        errors = decoding.objects(decoding.object_in(response.data), "errors")
    except OutsideError:
        errors = []
    words = [f"{error.get('code', '')} {error.get('message') or ''}".strip() for error in errors]
    if not words and "text/plain" in response.headers.get("Content-Type", ""):
        words = [response.data.decode(errors="replace")]
    text = " ".join("; ".join(words)[:3000].split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]


def _no_google_repository(reference: Reference) -> OutsideError | None:
    """Return the error where a project lacks the repository; None for hosts but Google's."""
    host = ARTIFACT_REGISTRY.fullmatch(reference.host)
    if host is None:
        return None
    project, name, *_ = reference.repository.split("/")
    return OutsideError(
        f"{reference.host}: project {project} has no repository {name}",
        f"run: gcloud artifacts repositories create {name} --repository-format=docker"
        f" --location={host['location']} --project={project}",
    )


def _denied(
    reference: Reference, text: str, right: Right, known: Credentials | None
) -> OutsideError:
    who = (known.username if known else "") or "you"
    if who in _GCLOUD_USERS:
        who = "this account"
    fix = f"ask the owner for the right to {right} {reference.name}, or log in as another user"
    if ARTIFACT_REGISTRY.fullmatch(reference.host) or GCR.fullmatch(reference.host):
        role = "writer" if right == "write" else "reader"
        fix = f"ask for roles/artifactregistry.{role} on it; a missing repository is denied, too"
    return OutsideError(
        f"{reference.host}: {who} may not {right} {reference.repository}: {text}", fix
    )


def _final(cause: BaseException, host: str, by_proxy: bool) -> OutsideError | None:
    """Return the error of a cause that no waiting will mend; None for any other."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return OutsideError(
            f"{host}: its TLS certificate is not trusted: {cause.verify_message}",
            "add the CA to the system's bundle or name it in SSL_CERT_FILE;"
            f" for the engine: /etc/docker/certs.d/{host}/ca.crt",
        )
    if isinstance(cause, ssl.SSLError) and re.search(
        r"WRONG_VERSION_NUMBER|RECORD_LAYER|HTTP_REQUEST|UNKNOWN_PROTOCOL", str(cause)
    ):
        return OutsideError(
            f"{host} does not speak TLS; plain http is for loopback addresses only",
            "give the registry a certificate, or reach it through 127.0.0.1",
        )
    if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
        return OutsideError(
            f"{host}: no such host ({cause.strerror})",
            f"correct the name of the {'proxy' if by_proxy else 'registry'}, or, where it is right,"
            " check the network and the name server of this machine",
        )
    return None


def _retry_after(value: str) -> float | None:
    """Return seconds, from a number or a date; None for anything else."""
    try:
        if value.strip().isdigit():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: urllib3 passes one on as an argument, Python as a cause."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        inside = (part for part in cause.args if isinstance(part, BaseException))
        cause = next(inside, None) or cause.__cause__ or cause.__context__
