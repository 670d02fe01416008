"""Requests to a cluster's API server, and its refusals in the factory's words.

The official Python client loads in two seconds and takes 126 MB; these few requests need neither.
Reads are repeated where a connection breaks. What changes something is sent once, and again only
where the server was too busy to begin: 429, mostly with Retry-After. Source: kubernetes, apiserver,
filters/maxinflight.go; client-go, rest/with_retry.go.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import urlencode

from builder.core import web
from builder.core.errors import OutsideError
from builder.core.retry import Passing, Retry
from builder.jobs.places.kubernetes.kubeconfig import Access, Identity
from builder.jobs.places.protocol import LostAnswer

MOST: Final = 1 << 28
"""Bytes of one answer."""
PAGE: Final = 500
AGAIN: Final = Retry(attempts=4, first=0.3, longest=10.0)
JOBSETS: Final = "jobset.x-k8s.io/v1alpha2"
MERGE: Final = "application/merge-patch+json"
_PASSING: Final = (429, 500, 502, 503, 504)
_BUSY: Final = (429,)
_UNKNOWN: Final = (500, 502, 504)
"""After these the API server, or a proxy before it, may have done what was asked for."""


class ClusterRefused(OutsideError):  # noqa: N818 - the cluster's word
    """The API server said no. code: its HTTP status; reason: its own word, such as Forbidden;
    after: seconds that it asks to wait, None where it asks for nothing."""

    def __init__(
        self, message: str, fix: str, code: int, reason: str, after: float | None = None
    ) -> None:
        super().__init__(message, fix)
        self.code, self.reason, self.after = code, reason, after


def _repeated(
    ask: Callable[[], web.Answer], codes: Collection[int], lost: bool = True
) -> web.Answer:
    """The answer of a request, which is made again after a refusal with one of these codes; with
    `lost` also where the answer got lost, because twice does no harm."""

    def attempt() -> web.Answer:
        try:
            return ask()
        except LostAnswer as error:
            if not lost:
                raise
            raise Passing(error.message, final=error) from error
        except ClusterRefused as error:
            if error.code not in codes:
                raise
            raise Passing(error.message, after=error.after, final=error) from error

    return AGAIN.run(attempt)


@dataclass(frozen=True)
class Api:
    """One cluster's API server."""

    access: Access

    # --- paths ---

    def path(self, version: str, resource: str, name: str = "", namespace: str = "") -> str:
        """The path of a resource in a namespace, by default in that of the context."""
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        inside = f"{root}/namespaces/{namespace or self.access.namespace}/{resource}"
        return f"{inside}/{name}" if name else inside

    # --- reading ---

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """One object. Raises ClusterRefused, OutsideError."""
        return self._object(self._read(path, query))

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """All objects of a list, page by page."""
        found: list[dict[str, Any]] = []
        rest = ""
        while True:
            more = {"limit": str(PAGE), **({"continue": rest} if rest else {})}
            page = self.get(path, **query, **more)
            found += page.get("items") or []
            rest = (page.get("metadata") or {}).get("continue") or ""
            if not rest:
                return found

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """The lines of a text, such as a pod's log."""
        text = self._read(path, query).data.decode(errors="replace")
        return iter(text.split("\n")[:-1] if text.endswith("\n") else text.split("\n"))

    def _read(self, path: str, query: Mapping[str, str]) -> web.Answer:
        return _repeated(lambda: self._asked("GET", path, query), _PASSING)

    # --- changing ---

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """Create an object; a field that the server does not know is refused.

        Raises LostAnswer where it may have been created, ClusterRefused, OutsideError.
        """
        query = {"fieldValidation": "Strict", **query}
        ask = partial(self._asked, "POST", path, query, body, "application/json")
        try:
            return self._object(_repeated(ask, _BUSY, lost=False))
        except ClusterRefused as error:
            if error.code in _UNKNOWN:
                raise LostAnswer(error.message, error.fix) from error
            raise

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change some fields of an object. The same change may be sent again."""
        return self._object(_repeated(lambda: self._asked("PATCH", path, {}, body, MERGE), _BUSY))

    # --- the request itself ---

    @cached_property
    def _asking(self) -> list[tuple[Identity, web.Client]]:
        """Who asks, and over which connections; emptied where the credentials have expired."""
        return []

    def _connected(self) -> tuple[Identity, web.Client]:
        if not self._asking:
            who = self.access.credentials()
            secure = self.access.server.startswith("https://")
            trust = self.access.trust(who) if secure else None
            self._asking.append((who, web.Client(context=trust)))
        return self._asking[0]

    def _asked(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        kind: str = "",
    ) -> web.Answer:
        """One request. Raises LostAnswer where the connection broke after it was sent."""
        for again in (False, True):
            who, client = self._connected()
            headers = {"Accept": "application/json", **who.headers}
            if kind:
                headers["Content-Type"] = kind
            url = f"{self.access.server}{path}" + (f"?{urlencode(query)}" if query else "")
            sent = None if body is None else json.dumps(body).encode()
            answer = self._answer(client, method, url, headers, sent)
            if answer.status != 401 or again or not self.access.expires:
                break
            self._asking.clear()
        if answer.status >= 400:
            raise self._refused(answer, path)
        return answer

    def _answer(
        self,
        client: web.Client,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> web.Answer:
        from urllib3 import exceptions

        try:
            return client.answer(method, url, most=MOST, headers=headers, body=body)
        except exceptions.HTTPError as error:
            unsent = (exceptions.NewConnectionError, exceptions.ConnectTimeoutError)
            kind = OutsideError if isinstance(error, unsent) else LostAnswer
            if isinstance(error, exceptions.SSLError):
                kind = OutsideError
            raise kind(
                f"{self.access.server} cannot be reached: {_why(error)}",
                f"look whether it is up: kubectl{self._context} version",
            ) from error

    @property
    def _context(self) -> str:
        return f" --context {self.access.context}" if self.access.context else ""

    def _object(self, answer: web.Answer) -> dict[str, Any]:
        try:
            found = json.loads(answer.data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OutsideError(
                f"{self.access.server} is no API server: its answer is no JSON",
                f"look at the server of the context: kubectl{self._context} cluster-info",
            )
        return found

    # --- refusals ---

    def _refused(self, answer: web.Answer, path: str) -> ClusterRefused:
        """What a status and its text mean."""
        told: Any = None
        with contextlib.suppress(ValueError):
            told = json.loads(answer.data)
        told = told if isinstance(told, dict) else {}
        text = str(told.get("message") or answer.data.decode(errors="replace")).strip()
        words = " ".join(text.split())[:600] or answer.reason
        reason, code = str(told.get("reason") or ""), answer.status
        what, fix = self._meant(code, words, path, bool((told.get("details") or {}).get("name")))
        after = answer.headers.get("Retry-After") or ""
        return ClusterRefused(what, fix, code, reason, float(after) if after.isdigit() else None)

    def _meant(self, code: int, words: str, path: str, named: bool) -> tuple[str, str]:
        check = f"kubectl{self._context} auth can-i --list -n {self.access.namespace}"
        match code:
            case 401:
                return (
                    f"the credentials are not accepted: {words}",
                    f"log in again: {check} tries it",
                )
            case 403:
                return (
                    f"not allowed: {words}",
                    "builder job doctor names the command that grants it",
                )
            case 404 if JOBSETS in path and not named and "namespaces" not in words:
                return (
                    f"the cluster knows no JobSet: {words}",
                    "install JobSet 0.10.1 or later there: docs/kubernetes.md",
                )
            case 404:
                return f"not found: {words}", "builder job list --on kubernetes shows all"
            case 409:
                return f"conflict: {words}", "run the same command again"
            case 400 | 413 | 422:
                return (
                    f"refused: {words}",
                    "correct the job; builder job render --to jobset shows it",
                )
            case 429:
                return (
                    f"too many requests: {words}",
                    "wait a little, then run the same command again",
                )
            case _:
                return (
                    f"the cluster's error {code}: {words}",
                    "run the same command again: it finds the job if it was made",
                )


def _why(error: Exception) -> str:
    """The cause in few words; urllib3's own text begins with its connection."""
    text = str(getattr(error, "reason", None) or error)
    return re.sub(r"^\S*Connection(?:Pool)?\(.*?\): |^<.*?>: ", "", text)
