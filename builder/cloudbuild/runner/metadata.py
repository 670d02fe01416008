"""The metadata server that steps see in the hosted service, with the login of the caller.

Off unless it is asked for: with it, a step can do whatever the caller may do in Google Cloud. It
answers only containers on the build's network. Source of the addresses and answers:
docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from builder.core import googleapi
from builder.core.errors import FactoryError, OutsideError

HOST = "metadata.google.internal"
_FLAVOR = "Metadata-Flavor"
_ROOT = "/computeMetadata/v1"


@dataclass(frozen=True)
class Token:
    """An access token, for so many seconds."""

    text: str
    seconds: int


@dataclass(frozen=True)
class Caller:
    """Whose login the steps get. number: the project's. token: a new or still valid token."""

    project: str
    number: str
    email: str
    token: Callable[[], Token]


def caller(project: str, number: str) -> Caller:
    """The caller's own login on this machine. Raises OutsideError if there is none."""
    import google.auth.transport.requests
    from google.auth.exceptions import GoogleAuthError

    found, _ = googleapi.credentials()
    lock = threading.Lock()

    def token() -> Token:
        try:
            with lock:
                if not found.valid:
                    found.refresh(google.auth.transport.requests.Request())
        except GoogleAuthError as error:
            said = googleapi.first_line(error)
            raise OutsideError(f"no token for the steps: {said}", googleapi.LOGIN) from None
        left = found.expiry and found.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
        return Token(str(found.token), int(left.total_seconds()) if left else 3600)

    token()  # a login that does not work is told before the build begins
    email = getattr(found, "service_account_email", "") or getattr(found, "account", "")
    return Caller(project, number, email or "default", token)


class MetadataServer:
    """Answers the containers of one network, from its gateway, until `close`."""

    def __init__(self, caller: Caller, network: str, gateway: str) -> None:
        """network: such as 10.200.1.0/24. gateway: this machine's address on it.

        Raises OutsideError if this machine does not have that address.
        """
        try:
            server = _MetadataHTTP((gateway, 80), _Request)
        except PermissionError:  # an ordinary user may not use the port of the hosted service
            server = _MetadataHTTP((gateway, 0), _Request)
        except OSError as error:
            raise OutsideError(
                f"no metadata server at {gateway}: {error.strerror}",
                "--metadata needs the engine of this machine",
            ) from None
        server.caller, server.network = caller, ipaddress.ip_network(network)
        self.gateway, self.port = gateway, server.server_port
        self._server = server
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()

    @property
    def hosts(self) -> tuple[str, ...]:
        """NAME:ADDRESS for the containers' /etc/hosts."""
        return (f"{HOST}:{self.gateway}", f"metadata:{self.gateway}")

    @property
    def environment(self) -> tuple[str, ...]:
        """What tells Google's libraries where the server is: 169.254.169.254 is not there."""
        port = "" if self.port == 80 else f":{self.port}"
        return (
            f"GCE_METADATA_HOST={HOST}{port}",
            f"GCE_METADATA_IP={self.gateway}{port}",
            f"GCE_METADATA_ROOT={HOST}{port}",
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _MetadataHTTP(ThreadingHTTPServer):
    caller: Caller
    network: ipaddress.IPv4Network | ipaddress.IPv6Network


class _Request(BaseHTTPRequestHandler):
    server: _MetadataHTTP

    def do_GET(self) -> None:
        address = self.client_address[0]
        # This machine itself asks from the gateway's address: another user's program could.
        if address == self.server.server_address[0] or (
            ipaddress.ip_address(address) not in self.server.network
        ):
            self._answer(403, "only containers of the build are answered")
            return
        if self.headers.get(_FLAVOR) != "Google" and self.path != "/":
            self._answer(403, f"the header {_FLAVOR}: Google is missing")
            return
        url = urlsplit(self.path)
        try:
            found = answer(self.server.caller, url.path, parse_qs(url.query))
        except FactoryError as error:
            self._answer(503, error.message)
            return
        if found is None:
            self._answer(404, f"{url.path}: not known here")
        elif isinstance(found, str):
            self._answer(200, found)
        else:
            self._answer(200, json.dumps(found), "application/json")

    def _answer(self, status: int, text: str, kind: str = "application/text") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header(_FLAVOR, "Google")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the log is the build's."""


def answer(caller: Caller, path: str, query: Mapping[str, list[str]]) -> Any:
    """What the server says at a path: a text, an object for JSON, or None if it has nothing."""
    path = path.rstrip("/")
    account = {"aliases": ["default"], "email": caller.email, "scopes": [googleapi.SCOPE]}
    accounts = {"default": account, caller.email: account}
    begin = f"{_ROOT}/instance/service-accounts"
    recursive = query.get("recursive", [""])[0].lower() == "true"
    folder, _, name = path.removeprefix(f"{begin}/").partition("/")
    texts = {
        "": "computeMetadata/\n",
        _ROOT: "instance/\nproject/\nuniverse/\n",
        f"{_ROOT}/project/project-id": caller.project,
        f"{_ROOT}/project/numeric-project-id": caller.number,
        f"{_ROOT}/universe/universe-domain": "googleapis.com",
        f"{_ROOT}/universe/universe_domain": "googleapis.com",  # as Python's library writes it
    }
    if path in texts:
        return texts[path]
    if path == begin:
        return accounts if recursive else "".join(f"{one}/\n" for one in accounts)
    if not path.startswith(f"{begin}/") or folder not in accounts:
        return None
    if name == "token":
        token = caller.token()
        return {"access_token": token.text, "expires_in": token.seconds, "token_type": "Bearer"}
    if not name:
        return account if recursive else "aliases\nemail\nscopes\ntoken\n"
    found = account.get(name)
    return "".join(f"{one}\n" for one in found) if isinstance(found, list) else found
