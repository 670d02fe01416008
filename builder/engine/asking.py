"""One question to an engine, without Docker's SDK where it listens on a socket of this machine: the
SDK and what it imports take 50 ms."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

from builder.core import docker_sdk


class _Connection(http.client.HTTPConnection):
    """A connection to a socket of this machine."""

    def __init__(self, path: str, timeout: int) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(host: str, environment: Mapping[str, str], path: str, timeout: int) -> Any:
    """Return what an engine answers to a GET, None where it has no such thing.

    path: without the API's version, which is the engine's newest. timeout: in seconds. Raises
    OSError, ValueError or HTTPException where it does not answer, and what the SDK raises for an
    engine elsewhere.
    """
    if not host.startswith("unix://"):
        return _ask_by_sdk(docker_sdk.client(host, environment, timeout).api, path)
    with contextlib.closing(_Connection(host.removeprefix("unix://"), timeout)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = json.loads(answer.read() or "null")
    if answer.status == http.client.NOT_FOUND:
        return None
    if answer.status != http.client.OK:
        raise OSError(f"{answer.status}: {(content or {}).get('message', answer.reason)}")
    return content


def _ask_by_sdk(api: Any, path: str) -> Any:
    from docker.errors import NotFound

    try:
        return api._result(api._get(api.base_url + f"/v{api.api_version}{path}"), json=True)
    except NotFound:
        return None
