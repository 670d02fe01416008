"""One request to a registry: authorized, bounded, and with each refusal as one error of one line.

A busy registry (429, 5xx), a connection that breaks or times out, a name server that stumbles: each
is a TransientError, which the caller may try again. Everything else is an OutsideError.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from builder.core import web
from builder.core.errors import CheckFailed, OutsideError
from builder.core.retry import TransientError
from builder.core.web import Answer
from builder.registry import decoding, refusals
from builder.registry.authorization import Authorization
from builder.registry.credentials import Credentials
from builder.registry.manifests import Descriptor
from builder.registry.names import DOCKER_HUB, DOCKER_HUB_API, Reference, is_loopback
from builder.registry.refusals import Right

if TYPE_CHECKING:
    import urllib3

_SETTLES: Final = 600.0
"""Seconds that a registry may take to look through a blob which it was sent whole."""
_PIECE: Final = 1 << 18

_UNSETTLED: Final = re.compile(r"(MANIFEST_)?BLOB_UNKNOWN|DIGEST_INVALID")


@dataclass(frozen=True)
class FileBody:
    """A blob in a file, as the body of a request. It can be sent again, from its start."""

    path: Path
    blob: Descriptor
    progress: Callable[[int], object]
    """Called with the number of bytes that were given out."""

    def __len__(self) -> int:
        return self.blob.size

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces. The last one is only given out where all have the blob's digest, so
        that a registry never gets other bytes whole. Raises CheckFailed where they have not."""
        actual = hashlib.sha256()
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                actual.update(piece)
                if file.tell() >= self.blob.size:
                    break
                yield piece
                self.progress(file.tell())
        if f"sha256:{actual.hexdigest()}" != self.blob.digest:
            raise CheckFailed(
                f"{self.path}: its bytes are not those of {self.blob.digest}",
                "remove this file: it is made or fetched again",
            )
        yield piece
        self.progress(self.blob.size)


class Requests:
    """The requests to one registry host. It keeps connections and tokens."""

    def __init__(self, host: str) -> None:
        self.host = host
        loopback = is_loopback(host)
        api = DOCKER_HUB_API if host == DOCKER_HUB else host
        self.address = f"{'http' if loopback else 'https'}://{api}"
        # no proxy stands between a machine and itself
        self._http = web.Client(proxied=not loopback)
        self._authorization = Authorization(host, self.call)

    def close(self) -> None:
        self._http.close()

    @property
    def credentials(self) -> Credentials | None:
        return self._authorization.credentials

    def send(
        self,
        method: str,
        repository: str,
        path: str,
        *,
        right: Right = "read",
        accept: str = "*/*",
        body: bytes | FileBody | None = None,
        content_type: str | None = None,
    ) -> Answer:
        """Return the answer to one request: one that succeeded, a redirect of HEAD, or a 4xx that
        says no to a question.

        path: below the repository, or a whole address that the registry gave. Raises
        TransientError where another attempt may succeed.
        """
        url = path if "://" in path else f"{self.address}/v2/{repository}/{path}"
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        if body is not None:
            headers["Content-Length"] = str(len(body))
        own = web.origin(url) == web.origin(self.address)
        if not own and urlsplit(self.address).scheme == "https" != urlsplit(url).scheme:
            raise OutsideError(
                f"{self.host} wants this sent in plain text, to {refusals.shown(url)}",
                "tell the registry its own address with https (X-Forwarded-Proto of its proxy)",
            )
        request: dict[str, Any] = {
            "body": body,
            "follow": method == "GET",
            "named_by": "" if own else self.address,
        }

        def ask() -> Answer:
            known = self._authorization.header(repository, right) if own else {}
            return self.call(method, url, headers=headers | known, **request)

        response = ask()
        if response.status == 401 and own:
            challenge = response.headers.getlist("WWW-Authenticate")
            self._authorization.answer(challenge, repository, right)
            response = ask()
            sent = self._authorization.header(repository, right)["Authorization"]
            if response.status == 401 and sent.startswith("Basic "):
                raise self._authorization.refusal(repository, right)
        if _is_answer(method, path, response.status, right):
            return response
        if method == "PUT" and (word := _UNSETTLED.search(refusals.message(response))):
            # what was just put, by this push or another one, is not visible everywhere yet
            raise TransientError(
                f"{self.host}/{repository}: the registry answered {word[0]} to PUT"
            )
        raise self._refusal(response, repository, right)

    @contextlib.contextmanager
    def stream(self, repository: str, path: str, size: int) -> Iterator[Iterator[bytes] | None]:
        """Give the body of a GET in chunks as they arrive; None for a 404.

        size: the bytes that are expected, for a bound of time. Raises TransientError where another
        attempt may succeed, also while the chunks are read.
        """
        from urllib3.exceptions import HTTPError

        url = f"{self.address}/v2/{repository}/{path}"
        try:
            with contextlib.ExitStack() as stack:

                def ask() -> urllib3.BaseHTTPResponse:
                    headers = self._authorization.header(repository, "read")
                    asked = self._http.request("GET", url, headers=headers, follow=True)
                    return stack.enter_context(asked)

                if (response := ask()).status == 401:
                    stack.close()
                    self.send("HEAD", repository, path)  # obtains the right to read, or renews it
                    response = ask()
                answer = Answer(response.status, response.reason or "", response.headers, b"")
                if response.status in refusals.BUSY:
                    raise refusals.busy(self.host, "GET", answer, self.credentials)
                if response.status != 404 and not 200 <= response.status < 300:
                    raise self._refusal(answer, repository, "read")
                seconds = web.DEADLINE + size / web.SLOWEST
                yield None if response.status == 404 else web.body_of(response, url, seconds)
        except HTTPError as error:
            raise refusals.broken(error, url) from error

    def call(
        self, method: str, url: str, *, most: int = decoding.LARGEST, **request: Any
    ) -> Answer:
        """Send a request, of which `web.Client.request` has the words. Raises TransientError where
        another attempt may succeed."""
        from urllib3.exceptions import HTTPError

        wait = _SETTLES if isinstance(request.get("body"), FileBody) else None
        try:
            response = self._http.answer(method, url, most=most, wait=wait, **request)
        except HTTPError as error:
            raise refusals.broken(error, url) from None
        if response.status in refusals.BUSY:
            raise refusals.busy(self.host, method, response, self.credentials)
        return response

    def _refusal(self, response: Answer, repository: str, right: Right) -> OutsideError:
        words = refusals.message(response) or response.reason or ""
        reference = Reference(self.host, repository)
        return refusals.refusal(reference, response.status, words, right, self.credentials)


def _is_answer(method: str, path: str, status: int, right: Right) -> bool:
    """Tell whether a status answers what was asked, even if it says no."""
    if 200 <= status < 300 or (method == "HEAD" and status in web.MOVED):
        return True
    if right == "read" and ("referrers/" in path or status == 404):
        return status in (400, 404, 405, 406)
    return method == "PUT" and "/uploads/" in path and status in (404, 416)
