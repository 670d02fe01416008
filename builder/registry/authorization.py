"""The Authorization header of a request.

The header is none, a password (Basic) or a token (Bearer). A registry answers 401 to a request that
lacks it, with a challenge that says which one it takes (OCI distribution specification;
distribution's "token authentication").
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode, urlsplit

from builder.core.errors import OutsideError
from builder.core.web import Answer, joined
from builder.registry import decoding
from builder.registry.credentials import Credentials, credentials_for
from builder.registry.names import Reference, is_loopback
from builder.registry.refusals import Right, bad_credentials, not_logged_in


class Authorization:
    """Obtains and keeps the headers for one host, by repository and right.

    Docker's credentials for the host are looked up when the registry first asks for some.
    send: sends one request, as `Requests.call` does.
    """

    def __init__(self, host: str, send: Callable[..., Answer]) -> None:
        self.host = host
        self._send = send
        self._headers: dict[tuple[str, Right], str] = {}

    @functools.cached_property
    def credentials(self) -> Credentials | None:
        return credentials_for(self.host)

    def header(self, repository: str, right: Right) -> dict[str, str]:
        """Return the header of a request; empty before the registry asked for one."""
        known = self._headers.get((repository, right))
        return {"Authorization": known} if known else {}

    def answer(self, challenge: Sequence[str], repository: str, right: Right) -> None:
        """Obtain what a challenge (the values of WWW-Authenticate) asks for.

        Raises OutsideError where docker has no credentials, or the registry refuses them.
        """
        schemes = {
            scheme.lower(): words
            for scheme, words in re.findall(
                r"(?i)\b(basic|bearer)\s+(.*?)(?=,\s*(?:basic|bearer)\s|$)", ", ".join(challenge)
            )
        }
        known = self.credentials
        if "bearer" in schemes:
            words = dict(re.findall(r'(\w+)="([^"]*)"', schemes["bearer"]))
            header = f"Bearer {self._token(words, repository, right)}"
        elif "basic" in schemes and known and known.username:
            header = f"Basic {known.basic}"
        else:
            raise not_logged_in(Reference(self.host, repository), right)
        self._headers[repository, right] = header

    def refusal(self, repository: str, right: Right) -> OutsideError:
        if self.credentials:
            return bad_credentials(self.host, self.credentials)
        return not_logged_in(Reference(self.host, repository), right)

    def _token(self, words: Mapping[str, str], repository: str, right: Right) -> str:
        known = self.credentials
        realm = words.get("realm", "")
        address = urlsplit(joined("", realm) or "")
        loopback = is_loopback(self.host)
        if address.scheme != "https" and not (loopback and is_loopback(address.netloc)):
            raise OutsideError(
                f"{self.host} wants credentials sent to {realm or 'no address'}, in plain text",
                "ask the registry's owner for a token service with TLS",
            )
        send = functools.partial(
            self._send, named_by=f"{'http' if loopback else 'https'}://{self.host}"
        )
        actions = "pull" if right == "read" else "pull,push"
        scope = words.get("scope") or f"repository:{repository}:{actions}"
        most = decoding.LARGEST_MESSAGE
        query = {"service": words.get("service", ""), "scope": scope}
        if known and known.identity_token:
            form = query | {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "training-image-factory",
            }
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = send(
                "POST", realm, headers=headers, body=urlencode(form).encode(), most=most
            )
        else:
            headers = {"Authorization": f"Basic {known.basic}"} if known else {}
            url = f"{realm}{'&' if address.query else '?'}{urlencode(query)}"
            response = send("GET", url, headers=headers, most=most)
        if not 200 <= response.status < 300:
            raise self.refusal(repository, right)
        token = decoding.token(response.data)
        if token is None:
            raise OutsideError(
                f"{self.host}: {realm} answered without a token", "check whether the registry is up"
            )
        return token
