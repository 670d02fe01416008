"""The metadata server that steps reach in Cloud Build, with the Google login of the caller.

It is off unless the caller asks for it: with it, a step can do whatever the caller may do in Google
Cloud. It answers only containers on the build's network. Source of the addresses and answers:
docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys.
"""

import ipaddress
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cloudbuild_local.errors import BuildError, InputError, OutsideError

HOST = "metadata.google.internal"
LOGIN = "run: gcloud auth application-default login"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ROOT = "/computeMetadata/v1"
_ACCOUNTS = f"{_ROOT}/instance/service-accounts"


@dataclass(frozen=True)
class Caller:
    """Whose login the steps get. number: of the project. token: returns a valid access token, and
    for how many seconds it is valid."""

    project: str
    number: str
    email: str
    token: Callable[[], tuple[str, int]]


def caller(project: str, number: str) -> Caller:
    """Return the caller's own login on this machine. Raises OutsideError if there is none."""
    try:
        import google.auth
        import google.auth.transport.requests
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        fix = "pip install 'cloudbuild-local[metadata]'"
        raise InputError("--metadata needs google-auth", fix) from None
    lock = threading.Lock()
    try:
        login: Any = google.auth.default(scopes=[SCOPE])[0]
    except (GoogleAuthError, OSError, ValueError) as error:
        raise OutsideError(f"no login to Google: {error}".splitlines()[0], LOGIN) from None

    def token() -> tuple[str, int]:
        try:
            with lock:
                if not login.valid:
                    login.refresh(google.auth.transport.requests.Request())
        except GoogleAuthError as error:
            raise OutsideError(f"no token for the steps: {error}".splitlines()[0], LOGIN) from None
        left = login.expiry and login.expiry.replace(tzinfo=UTC) - datetime.now(UTC)
        return str(login.token), int(left.total_seconds()) if left else 3600

    token()  # a login that does not work is reported before the build begins
    email = getattr(login, "service_account_email", "") or getattr(login, "account", "")
    return Caller(project, number, email or "default", token)


class MetadataServer(ThreadingHTTPServer):
    """Answers the containers of one network, from its gateway, until `close`."""

    def __init__(self, caller: Caller, network: str, gateway: str) -> None:
        """Begin to answer. network: such as 10.200.1.0/24. gateway: this machine's address on it.

        Raises OutsideError if this machine does not have that address.
        """
        self.caller, self.gateway = caller, gateway
        self.network = ipaddress.ip_network(network)
        try:
            try:
                super().__init__((gateway, 80), _Request)
            except PermissionError:  # an ordinary user may not use the port of Cloud Build
                super().__init__((gateway, 0), _Request)
        except OSError as error:
            what = f"no metadata server at {gateway}: {error.strerror}"
            raise OutsideError(what, "--metadata needs the engine of this machine") from None
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    @property
    def hosts(self) -> tuple[str, ...]:
        """NAME:ADDRESS for the containers' /etc/hosts."""
        return (f"{HOST}:{self.gateway}", f"metadata:{self.gateway}")

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that lead Google's libraries here: nothing answers at 169.254.169.254."""
        port = "" if self.server_port == 80 else f":{self.server_port}"
        return (
            f"GCE_METADATA_HOST={HOST}{port}",
            f"GCE_METADATA_IP={self.gateway}{port}",
            f"GCE_METADATA_ROOT={HOST}{port}",
        )

    def close(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        address, url = self.client_address[0], urlsplit(self.path)
        # This machine itself asks from the gateway's address: another user's program could.
        if address == self.server.gateway or (
            ipaddress.ip_address(address) not in self.server.network
        ):
            self._answer(403, "only containers of the build are answered")
        elif self.headers.get("Metadata-Flavor") != "Google" and url.path != "/":
            self._answer(403, "the header Metadata-Flavor: Google is missing")
        else:
            try:
                value = answer(self.server.caller, url.path, parse_qs(url.query))
            except BuildError as error:
                self._answer(503, error.message)
            else:
                self._answer(404 if value is None else 200, value)

    def _answer(self, status: int, value: Any) -> None:
        is_text = isinstance(value, str)
        body = (value if is_text else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/text" if is_text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the log is the build's."""


def answer(caller: Caller, path: str, query: Mapping[str, list[str]]) -> Any:
    """Return the server's answer: a text, an object for JSON, or None for an unknown path."""
    path = path.rstrip("/")
    account: dict[str, Any] = {"aliases": ["default"], "email": caller.email, "scopes": [SCOPE]}
    accounts = {"default": account, caller.email: account}
    recursive = query.get("recursive", [""])[0].lower() == "true"
    texts = {
        "": "computeMetadata/\n",
        _ROOT: "instance/\nproject/\nuniverse/\n",
        f"{_ROOT}/project/project-id": caller.project,
        f"{_ROOT}/project/numeric-project-id": caller.number,
        f"{_ROOT}/universe/universe-domain": "googleapis.com",
        f"{_ROOT}/universe/universe_domain": "googleapis.com",  # as Python's library writes it
        _ACCOUNTS: accounts if recursive else "".join(f"{name}/\n" for name in accounts),
    }
    folder, _, name = path.removeprefix(f"{_ACCOUNTS}/").partition("/")
    if path in texts or folder not in accounts:
        return texts.get(path)
    if name == "token":
        token, seconds = caller.token()
        return {"access_token": token, "expires_in": seconds, "token_type": "Bearer"}
    if not name:
        return account if recursive else "aliases\nemail\nscopes\ntoken\n"
    value = account.get(name)
    return "".join(f"{item}\n" for item in value) if isinstance(value, list) else value
