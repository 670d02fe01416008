"""Requests to a cluster's API server, and what its refusals mean.

The connection is the official client's; objects are plain values here. It repeats reads where a
connection breaks or a server is busy. A request that creates is never repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from builder.core.errors import OutsideError
from builder.jobs.backends.kubernetes.access import Access
from builder.jobs.backends.protocol import LostAnswer

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, ApiException

JOBSETS: Final = "jobset.x-k8s.io/v1alpha2"
PAGE: Final = 500
_MAYBE_DONE: Final = (500, 502, 504)
"""After these the API server, or a proxy before it, may have done what it was asked for."""

_REPEATED: Final = "run the same command again: it finds the job if it was created"
_CORRECT: Final = ("refused", "correct the job; builder job render --on kubernetes shows it")
_REFUSALS: Final = {
    401: (
        "the credentials are not accepted",
        "log in again: {kubectl} auth can-i --list -n {namespace} tries it",
    ),
    403: ("not allowed", "builder doctor --on kubernetes names the command that grants it"),
    404: ("not found", "builder job list --on kubernetes shows all"),
    409: ("conflict", "run the same command again"),
    429: ("too many requests", "wait a little, then run the same command again"),
}
"""What a status means, and the way out. Any other below 500 is about the job."""

Object = dict[str, Any]


class ClusterRefused(OutsideError):  # noqa: N818 - the cluster's word
    """The API server refused. code: its HTTP status; reason: its own word, such as Forbidden."""

    def __init__(self, message: str, fix: str, code: int, reason: str) -> None:
        super().__init__(message, fix)
        self.code, self.reason = code, reason


@dataclass
class Client:
    """One cluster's API server. Its calls raise ClusterRefused, and OutsideError where the server
    cannot be reached."""

    access: Access

    @cached_property
    def _connection(self) -> ApiClient:
        return self.access.connect()

    def path(self, version: str, resource: str, name: str = "", namespace: str = "") -> str:
        """Return the path of a resource in a namespace, by default in that of the context."""
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        inside = f"{root}/namespaces/{namespace or self.access.namespace}/{resource}"
        return f"{inside}/{name}" if name else inside

    def get(self, path: str, **query: str) -> Object:
        """Return one object."""
        return self._object(self._send("GET", path, query))

    def items(self, path: str, **query: str) -> list[Object]:
        """Return all objects of a list, page by page."""
        items: list[Object] = []
        query["limit"] = str(PAGE)
        while True:
            page = self.get(path, **query)
            items += page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return items

    def text(self, path: str, **query: str) -> str:
        """Return a text, such as a pod's log."""
        return self._send("GET", path, query).decode(errors="replace")

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Create an object; the server refuses a field that it does not know.

        Raises LostAnswer where the object may have been created.
        """
        query = {"fieldValidation": "Strict", **query}
        try:
            return self._object(self._send("POST", path, query, body))
        except ClusterRefused as error:
            if error.code in _MAYBE_DONE:
                raise LostAnswer(error.message, error.fix) from error
            raise

    def delete(self, path: str, **query: str) -> None:
        """Delete an object."""
        self._send("DELETE", path, query)

    # --- the request itself -----------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the answer's body."""
        from kubernetes.client import ApiException
        from urllib3 import exceptions

        connection, login = self._connection, dict[str, str]()
        connection.update_params_for_auth(login, [], ["BearerToken"])
        headers = {name: value.strip() for name, value in login.items()}  # a file ends with a line
        try:
            answer = connection.rest_client.request(
                method,
                f"{self.access.server}{path}",
                query_params=query,
                headers={"Accept": "application/json", **headers},
                body=body,
                _request_timeout=(20, 60),
            )
        except ApiException as error:
            if error.status:
                raise self._refused(error, path) from None
            raise self._unreachable(OutsideError, error.reason) from None  # of TLS
        except exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            unsent = (
                exceptions.NewConnectionError,
                exceptions.ConnectTimeoutError,
                exceptions.SSLError,
                exceptions.ProxyError,
            )
            kind = OutsideError if isinstance(cause, unsent) else LostAnswer
            raise self._unreachable(kind, cause) from error
        return bytes(answer.data)

    def _unreachable(self, kind: type[OutsideError], cause: object) -> OutsideError:
        why = str(cause).splitlines()[-1].rpartition(">: ")[2]
        what = f"{self.access.server} cannot be reached: {why}"
        return kind(what, f"look whether it is up: {self._kubectl} version")

    @property
    def _kubectl(self) -> str:
        return f"kubectl --context {self.access.context}"

    def _object(self, data: bytes) -> Object:
        answer = _parsed(data)
        if answer is None:
            what = f"{self.access.server} is no API server: its answer is no JSON"
            raise OutsideError(what, f"look at it: {self._kubectl} cluster-info")
        return answer

    def _refused(self, answer: ApiException, path: str) -> ClusterRefused:
        """Return what a status and its text mean."""
        status = _parsed(answer.body) or {}
        text = str(status.get("message") or answer.body.decode(errors="replace"))
        words = " ".join(text.split())[:600] or str(answer.reason)
        error = (f"the cluster's error {answer.status}", _REPEATED)
        what, fix = _REFUSALS.get(answer.status, error if answer.status >= 500 else _CORRECT)
        unknown = JOBSETS in path and not (status.get("details") or {}).get("name")
        if answer.status == 404 and unknown and "namespaces" not in words:
            what = "the cluster knows no JobSet"
            fix = "install JobSet 0.10.1 or later there: docs/kubernetes.md"
        fix = fix.format(kubectl=self._kubectl, namespace=self.access.namespace)
        reason = str(status.get("reason") or "")
        return ClusterRefused(f"{what}: {words}", fix, answer.status, reason)


def _parsed(data: bytes) -> Object | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
