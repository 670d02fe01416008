"""The requests that the factory makes to a registry itself.

Manifests and blobs are put and got, tags moved, receipts put beside an image. Layers that an engine
built travel through the engine; those that the factory assembled go to and fro here. The protocol
is the OCI distribution specification 1.1, with its fallback (the "referrers tag schema") for
registries without a referrers API, such as docker-registry 2.8.

A busy registry (429, 5xx), a connection that breaks or times out, a name server that stumbles: each
is tried again, a bounded number of times. Everything else is one OutsideError of one line.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode, urljoin, urlsplit

from builder.core import web
from builder.core.errors import CheckFailed, FactoryError, OutsideError
from builder.core.retry import Passing, Retry, Said, silent
from builder.core.web import Answer
from builder.registry import decoding, refusals
from builder.registry.authorization import Authorization
from builder.registry.body import FileBody
from builder.registry.manifests import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    EMPTY_TYPE,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    configuration_in,
    digest_of,
    labels_in,
)
from builder.registry.names import DOCKER_HUB, DOCKER_HUB_API, Reference, is_loopback
from builder.registry.refusals import Right

if TYPE_CHECKING:
    from builder.registry.credentials import Credentials

_PAGES: Final = 100
"""How many pages of referrers are asked for."""

_SETTLES: Final = 600.0
"""Seconds that a registry may take to look through a blob which it was sent whole."""

_NEXT: Final = re.compile(r"""<([^>]*)>[^,]*;\s*rel="?next\b""")
_UNSETTLED: Final = re.compile(r"(MANIFEST_)?BLOB_UNKNOWN|DIGEST_INVALID")
_ACCEPT: Final = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))


class Registry:
    """One registry host. A context manager: it holds connections, and forgets tokens at the end.

    said: gets a line for each request that is tried again.
    """

    def __init__(self, host: str, retry: Retry | None = None, said: Said = silent) -> None:
        self.host = host
        self.retry = retry or Retry()
        self.said = said
        loopback = is_loopback(host)
        api = DOCKER_HUB_API if host == DOCKER_HUB else host
        self.address = f"{'http' if loopback else 'https'}://{api}"
        # no proxy stands between a machine and itself
        self._http = web.Client(proxied=not loopback)
        self._authorization = Authorization(host, self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def credentials(self) -> Credentials | None:
        """What docker knows for this host."""
        return self._authorization.credentials

    # Manifests ----------------------------------------------------------------------------------

    def head(self, repository: str, target: str) -> str | None:
        """The digest that a tag or digest leads to; None where there is none. One HEAD request."""
        response = self._ask("HEAD", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        if digest := decoding.digest(response.headers.get("Docker-Content-Digest")):
            return digest
        found = self.manifest(repository, target)
        return found.digest if found else None

    def manifest(self, repository: str, target: str) -> Manifest | None:
        """The manifest under a tag or digest; None where there is none.

        Raises CheckFailed where the bytes are not those that the digest names.
        """
        response = self._ask("GET", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        media_type = response.headers.get("Content-Type", "").split(";")[0].strip()
        found = Manifest(response.data, media_type)
        expected = target if ":" in target else response.headers.get("Docker-Content-Digest")
        if expected and expected != found.digest:
            raise self._other_bytes(repository, expected, found.digest)
        return found

    def put_manifest(self, repository: str, target: str, content: Manifest) -> bool:
        """Put a manifest under a tag or its digest; what it refers to must be there already.

        Returns whether the registry itself took note of the manifest's `subject` (OCI-Subject).
        """
        response = self._ask(
            "PUT",
            repository,
            f"manifests/{target}",
            right="write",
            body=content.data,
            content_type=content.media_type,
        )
        said = response.headers.get("Docker-Content-Digest", content.digest)
        if said != content.digest:
            raise self._other_bytes(repository, content.digest, said)
        return "OCI-Subject" in response.headers

    def lead(self, to: Reference, manifest: Manifest) -> None:
        """Put a manifest under a tag, and read back where the tag leads. Raises CheckFailed."""
        assert to.tag is not None
        self.put_manifest(to.repository, to.tag, manifest)
        after = self.head(to.repository, to.tag)
        if after != manifest.digest:
            raise CheckFailed(
                f"{to}: moved to {manifest.digest}, but the registry says {after}",
                "someone else moved it at the same time: look who, and run this again",
            )

    # Blobs --------------------------------------------------------------------------------------

    def blob(self, repository: str, blob: Descriptor) -> bytes:
        """A small blob (a configuration, a receipt).

        Raises CheckFailed where it is missing, too large, or has other bytes.
        """
        if blob.size > decoding.LARGEST:
            raise CheckFailed(
                f"{self.host}/{repository}@{blob.digest}: {blob.size} bytes, "
                f"more than {decoding.LARGEST}",
                "this is not an image that the factory pushed",
            )
        response = self._ask("GET", repository, f"blobs/{blob.digest}")
        if response.status == 404:
            raise self._lost(repository, blob.digest)
        if (actual := digest_of(response.data)) != blob.digest:
            raise self._other_bytes(repository, blob.digest, actual)
        return response.data

    def configuration(self, repository: str, image: Manifest) -> dict[str, Any]:
        """An image's configuration. Raises what `blob` raises."""
        return configuration_in(self.blob(repository, image.config))

    def labels(self, repository: str, image: Manifest) -> dict[str, str]:
        """An image's labels; none for an index. Raises what `blob` raises."""
        if image.is_index:
            return {}
        return labels_in(self.configuration(repository, image))

    @contextlib.contextmanager
    def stream(self, repository: str, blob: Descriptor) -> Iterator[Iterator[bytes]]:
        """A blob of any size, in chunks as they arrive.

        Raises CheckFailed where the blob is missing, and at the end of the last chunk where its
        bytes are not those that the digest names; OutsideError where the connection breaks.
        """
        try:
            with self._stream(repository, blob) as chunks:
                yield chunks
        except Passing as error:
            raise OutsideError(
                f"{error.why}, in the middle of a layer", "run this again"
            ) from error.__cause__

    def fetch(
        self, repository: str, blob: Descriptor, file: IO[bytes], got: Callable[[int], object]
    ) -> None:
        """Write a blob of any size to a file. A download that breaks off starts again.

        got: called with the bytes that are written. Raises what `stream` raises.
        """

        def download() -> None:
            file.seek(0)
            file.truncate()
            with self._stream(repository, blob) as chunks:
                for chunk in chunks:
                    file.write(chunk)
                    got(file.tell())

        self.retry.run(download, self.said)

    @contextlib.contextmanager
    def _stream(self, repository: str, blob: Descriptor) -> Iterator[Iterator[bytes]]:
        """One attempt of `stream`. Raises Passing where another one may succeed."""
        from urllib3.exceptions import HTTPError

        if not self.has_blob(repository, blob.digest):  # also obtains the right to read
            raise self._lost(repository, blob.digest)
        url = f"{self.address}/v2/{repository}/blobs/{blob.digest}"
        seen = hashlib.sha256()

        def chunks() -> Iterator[bytes]:
            count = 0
            for chunk in response.stream(1 << 20):
                seen.update(chunk)
                count += len(chunk)
                if count <= blob.size:
                    yield chunk
            if (actual := f"sha256:{seen.hexdigest()}") != blob.digest:
                raise self._other_bytes(repository, blob.digest, actual)

        headers = self._authorization.header(repository, "read")
        try:
            with self._http.request(
                "GET", url, headers=headers, follow=True, stream=True
            ) as response:
                answer = Answer(response.status, response.reason or "", response.headers, b"")
                if response.status in refusals.BUSY:
                    raise refusals.busy(self.host, "GET", answer, self.credentials)
                if response.status == 404:  # where the registry thought that its bytes are
                    raise self._lost(repository, blob.digest)
                if not 200 <= response.status < 300:
                    raise self._refused(answer, repository, "read")
                yield chunks()
        except HTTPError as error:
            raise refusals.broken(error, url) from error

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether this repository has the blob; a registry may answer with the place of its bytes.

        That place is not asked: an address that is signed for GET refuses HEAD.
        """
        status = self._ask("HEAD", repository, f"blobs/{digest}").status
        return status == 200 or status in web.MOVED

    def check_blob(self, repository: str, blob: Descriptor) -> None:
        """Raise CheckFailed where the repository does not have this blob, or one of other size."""
        answer = self._ask("HEAD", repository, f"blobs/{blob.digest}")
        if answer.status == 404:
            raise self._lost(repository, blob.digest)
        size = answer.headers.get("Content-Length")
        if answer.status == 200 and size not in (None, str(blob.size)):
            raise self._other_bytes(repository, f"{blob.size} bytes", f"{size} bytes")

    def put_blob(self, repository: str, data: bytes, *, new: bool = False) -> Descriptor:
        """Upload small content, unless it is there. An upload that breaks off starts again.

        new: it was just made, so the registry is not asked first.
        """
        digest = digest_of(data)
        if new or not self.has_blob(repository, digest):
            self._upload(repository, digest, data)
        return Descriptor("application/octet-stream", digest, len(data))

    def put_file(
        self,
        repository: str,
        blob: Descriptor,
        file: Callable[[], Path],
        sent: Callable[[int], object],
        also_in: str | None = None,
    ) -> bool:
        """Upload a blob of any size, unless it is there. Returns whether bytes were sent. An upload
        that breaks off starts again.

        file: gives the file of the blob, called where bytes have to be sent. also_in: a repository
        of this registry that may have the blob; the registry takes it from there if it can. sent:
        called with the bytes that are sent. Raises CheckFailed where the file has other bytes.
        """
        if self.has_blob(repository, blob.digest):
            return False
        if also_in and self._mounts(repository, blob.digest, also_in):
            return False
        self._upload(repository, blob.digest, FileBody(file(), blob, sent))
        return True

    def _mounts(self, repository: str, digest: str, also_in: str) -> bool:
        query = urlencode({"mount": digest, "from": also_in})
        start = self._ask("POST", repository, f"blobs/uploads/?{query}", right="write")
        if start.status != 201:
            self._cancel(repository, start)
        return start.status == 201

    def _upload(self, repository: str, digest: str, body: bytes | FileBody) -> None:
        def upload() -> None:
            start = self._once("POST", repository, "blobs/uploads/", right="write")
            place = self._location(repository, start)
            done = self._once(
                "PUT",
                repository,
                f"{place}{'&' if '?' in place else '?'}digest={digest}",
                right="write",
                body=body,
                content_type="application/octet-stream",
            )
            if done.status in (404, 416):  # the registry has forgotten the session
                raise Passing(f"{self.host}/{repository}: the registry lost the upload")

        self.retry.run(upload, self.said)

    def check_write(self, repository: str) -> None:
        """Raise the error that a push would end with, before it sends gigabytes."""
        self._cancel(repository, self._ask("POST", repository, "blobs/uploads/", right="write"))

    def _cancel(self, repository: str, started: Answer) -> None:
        with contextlib.suppress(Passing, FactoryError):  # polite only: the session would expire
            self._once("DELETE", repository, self._location(repository, started), right="write")

    def _location(self, repository: str, started: Answer) -> str:
        asked = f"{self.address}/v2/{repository}/blobs/uploads/"
        if place := web.joined(asked, started.headers.get("Location", "")):
            return place
        raise OutsideError(
            f"{self.host}/{repository}: the registry names no address to upload to",
            "look whether a proxy stands between, and whether the registry is up",
        )

    # Referrers ----------------------------------------------------------------------------------

    def referrers(self, repository: str, digest: str, kind: str) -> tuple[Descriptor, ...]:
        """The artifacts of a kind that refer to a manifest: by the API, else by its tag."""
        found: list[Descriptor] = []
        place: str | None = f"referrers/{digest}?artifactType={quote(kind, safe='')}"
        for _ in range(_PAGES):
            if not place:
                break
            response = self._ask("GET", repository, place, accept=OCI_INDEX)
            if response.status != 200:
                break
            found += Manifest(response.data, OCI_INDEX).manifests
            place = self._next(repository, place, response)
        if not found:  # no API, or the registry got one after the push
            listed = self.manifest(repository, fallback_tag(digest))
            found += listed.manifests if listed else ()
        return tuple(one for one in found if self._type_of(repository, one) == kind)

    def _type_of(self, repository: str, referrer: Descriptor) -> str | None:
        """An artifact's type. go-containerregistry lists the type of its empty configuration."""
        if referrer.artifact_type not in (None, EMPTY_TYPE):
            return referrer.artifact_type
        made = self.manifest(repository, referrer.digest)
        return decoding.text(made.content, "artifactType") if made else None

    def tags(self, repository: str, prefix: str) -> tuple[str, ...]:
        """The repository's tags that begin with `prefix`."""
        found: list[str] = []
        place: str | None = f"tags/list?n=1000&last={quote(prefix, safe='')}"
        for _ in range(_PAGES):
            if not place:
                break
            response = self._ask("GET", repository, place)
            if response.status != 200:
                break
            page = decoding.texts(decoding.object_in(response.data), "tags")
            found += [tag for tag in page if tag.startswith(prefix)]
            place = self._next(repository, place, response)
            if page and page[-1] > prefix and not page[-1].startswith(prefix):
                break  # tags come in the order of their letters
        return tuple(found)

    def _next(self, repository: str, place: str, response: Answer) -> str | None:
        """The address of the next page of a list; None after the last."""
        following = _NEXT.search(response.headers.get("Link", ""))
        asked = f"{self.address}/v2/{repository}/"
        return web.joined(urljoin(asked, place), following[1]) if following else None

    # One request --------------------------------------------------------------------------------

    def _ask(self, method: str, repository: str, place: str, **how: Any) -> Answer:
        return self.retry.run(lambda: self._once(method, repository, place, **how), self.said)

    def _once(
        self,
        method: str,
        repository: str,
        place: str,
        *,
        right: Right = "read",
        accept: str = "*/*",
        body: bytes | FileBody | None = None,
        content_type: str | None = None,
    ) -> Answer:
        """One attempt. The answer's status is below 300; of a HEAD also a redirect; where it may
        say no, also 4xx.

        place: a path below the repository, or a whole address that the registry gave.
        """
        url = place if "://" in place else f"{self.address}/v2/{repository}/{place}"
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        if body is not None:
            headers["Content-Length"] = str(len(body))
        own = urlsplit(url)[:2] == urlsplit(self.address)[:2]
        if not own and urlsplit(self.address).scheme == "https" != urlsplit(url).scheme:
            raise OutsideError(
                f"{self.host} wants this sent in plain text, to {refusals.shown(url)}",
                "tell the registry its own address with https (X-Forwarded-Proto of its proxy)",
            )

        def send() -> Answer:
            shown = self._authorization.header(repository, right) if own else {}
            return self._call(
                method, url, headers=headers | shown, body=body, follow=method == "GET"
            )

        response = send()
        if response.status == 401 and own:
            challenge = response.headers.getlist("WWW-Authenticate")
            self._authorization.answer(challenge, repository, right)
            response = send()
            shown = self._authorization.header(repository, right)["Authorization"]
            if response.status == 401 and shown.startswith("Basic "):
                raise self._authorization.refused(repository, right)
        if _succeeded(response):
            return response
        if method == "HEAD" and response.status in web.MOVED:
            return response
        question = right == "read" and ("referrers/" in place or response.status == 404)
        if question and response.status in (400, 404, 405, 406):
            return response
        upload = method == "PUT" and "/uploads/" in url
        if upload and response.status in (404, 416):
            return response
        if method == "PUT" and (said := _UNSETTLED.search(refusals.message(response))):
            # what was just put, by this push or another one, is not visible everywhere yet
            raise Passing(f"{self.host}/{repository}: the registry answered {said[0]} to PUT")
        raise self._refused(response, repository, right)

    def _call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | FileBody | None = None,
        follow: bool = False,
        most: int = decoding.LARGEST,
    ) -> Answer:
        """A request on the wire. Raises Passing where another attempt may succeed."""
        from urllib3.exceptions import HTTPError

        wait = _SETTLES if isinstance(body, FileBody) else None
        try:
            response = self._http.answer(
                method, url, headers=headers, body=body, follow=follow, most=most, wait=wait
            )
        except HTTPError as error:
            raise refusals.broken(error, url) from None
        if response.status in refusals.BUSY:
            raise refusals.busy(self.host, method, response, self.credentials)
        return response

    def _refused(self, response: Answer, repository: str, right: Right) -> OutsideError:
        said = refusals.message(response) or response.reason or ""
        where = Reference(self.host, repository)
        return refusals.refused(where, response.status, said, right, self.credentials)

    def _other_bytes(self, repository: str, expected: str, actual: str) -> CheckFailed:
        return refusals.other_bytes(f"{self.host}/{repository}", expected, actual)

    def _lost(self, repository: str, digest: str) -> CheckFailed:
        return CheckFailed(
            f"{self.host}/{repository}@{digest}: the registry has lost this blob",
            "push the image again",
        )


def fallback_tag(digest: str) -> str:
    """Where referrers are listed without the API (OCI distribution 1.1, "referrers tag schema")."""
    return digest.replace(":", "-")


def _succeeded(response: Answer) -> bool:
    return 200 <= response.status < 300
