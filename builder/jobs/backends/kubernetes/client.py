"""Requests to a cluster's API server, and what its refusals mean.

The connection is the official client's, without its thousand models of objects, which take half a
second to load: objects are plain values here. urllib3 repeats reads where a connection breaks, and
creating only where the server was too busy to begin. Source: kubernetes, apiserver,
filters/maxinflight.go; client-go, rest/with_retry.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from builder.core.errors import OutsideError
from builder.jobs.backends.kubernetes.access import Access
from builder.jobs.backends.protocol import LostAnswer

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from urllib3 import BaseHTTPResponse, Retry

JOBSETS: Final = "jobset.x-k8s.io/v1alpha2"
LARGEST: Final = 1 << 28
"""Bytes of one answer."""
PAGE: Final = 500
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
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
    cannot be reached.

    _connection: None before the first request, and after its credentials expired.
    """

    access: Access
    _connection: ApiClient | None = None

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
            return self._object(self._send("POST", path, query, body, _JSON))
        except ClusterRefused as error:
            if error.code in _MAYBE_DONE:
                raise LostAnswer(error.message, error.fix) from error
            raise

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Change some fields of an object. The same change may be sent again."""
        return self._object(self._send("PATCH", path, {}, body, _MERGE))

    # --- the request itself -----------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        kind: str = "",
    ) -> bytes:
        """Return the answer's body. Credentials of a plugin or a file may have expired: where the
        server does not accept them, they are asked for again, once."""
        url = f"{self.access.server}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": _JSON, **({"Content-Type": kind} if kind else {})}
        sent = None if body is None else json.dumps(body).encode()
        for last in (False, True):
            self._connection = self._connection or self.access.connect()
            answer, data = self._answer(self._connection, method, url, headers, sent)
            if answer.status != 401 or last:
                break
            self._connection = None
        if answer.status >= 400:
            raise self._refused(answer, data, path)
        return data

    def _answer(
        self,
        connection: ApiClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> tuple[BaseHTTPResponse, bytes]:
        from urllib3 import Timeout, exceptions

        settings = connection.configuration.auth_settings().values()
        login = {setting["key"]: setting["value"] for setting in settings}
        try:
            answer = connection.rest_client.pool_manager.request(
                method,
                url,
                body=body,
                headers={**headers, **login},
                timeout=Timeout(connect=20, read=60),
                retries=_retries(method),
                redirect=False,
                preload_content=False,
            )
            data = answer.read(LARGEST + 1)
        except (exceptions.HTTPError, OSError) as error:
            cause = getattr(error, "reason", None) or error
            unsent = (
                exceptions.NewConnectionError,
                exceptions.ConnectTimeoutError,
                exceptions.SSLError,
                exceptions.ProxyError,
            )
            raise (OutsideError if isinstance(cause, unsent) else LostAnswer)(
                f"{self.access.server} cannot be reached: {str(cause).rpartition('>: ')[2]}",
                f"look whether it is up: {self._kubectl} version",
            ) from error
        if len(data) > LARGEST:
            what = f"{self.access.server}: an answer of more than {LARGEST} bytes"
            raise OutsideError(what, f"look what it sends: {self._kubectl} cluster-info")
        return answer, data

    @property
    def _kubectl(self) -> str:
        return f"kubectl --context {self.access.context}" if self.access.context else "kubectl"

    def _object(self, data: bytes) -> Object:
        answer = _parsed(data)
        if answer is None:
            what = f"{self.access.server} is no API server: its answer is no JSON"
            raise OutsideError(what, f"look at it: {self._kubectl} cluster-info")
        return answer

    def _refused(self, answer: BaseHTTPResponse, data: bytes, path: str) -> ClusterRefused:
        """Return what a status and its text mean."""
        status = _parsed(data) or {}
        text = str(status.get("message") or data.decode(errors="replace"))
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


def _retries(method: str) -> Retry:
    """Return when a request is repeated: one that creates only where it was not begun."""
    from urllib3 import Retry

    creates = method == "POST"
    return Retry(
        total=3,
        read=False if creates else 3,
        status_forcelist=(429,) if creates else (429, 500, 502, 503, 504),
        allowed_methods=None,
        backoff_factor=0.3,
        retry_after_max=10,
        raise_on_status=False,
    )


def _parsed(data: bytes) -> Object | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
