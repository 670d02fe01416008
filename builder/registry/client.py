"""What the factory asks of a registry: manifests, blobs, tags, referrers.

Manifests and blobs are put and got, tags moved, artifacts found. Layers that an engine built travel
through the engine; those that the factory assembled travel here. The protocol is the OCI
distribution specification 1.1, with its fallback (the "referrers tag schema") for registries
without a referrers API, such as docker-registry 2.8. requests.py makes the requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Self
from urllib.parse import quote

from builder.core import web
from builder.core.errors import CheckFailed, FactoryError, OutsideError
from builder.core.events import ignore
from builder.core.retry import OnRetry, Retry, TransientError
from builder.core.web import Answer
from builder.registry import decoding
from builder.registry.credentials import Credentials
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
from builder.registry.names import Reference
from builder.registry.requests import FileBody, Requests

_PAGES: Final = 100
"""How many pages of a list are asked for."""

_NEXT: Final = re.compile(r"""<([^>]*)>[^,]*;\s*rel="?next\b""")
_ACCEPT: Final = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))


class Registry:
    """One registry host. A context manager: it keeps connections, and forgets tokens at the end.

    on_retry: gets a line for each request that is repeated.
    """

    def __init__(self, host: str, retry: Retry | None = None, on_retry: OnRetry = ignore) -> None:
        self.host = host
        self.retry = retry or Retry()
        self.on_retry = on_retry
        self._requests = Requests(host)
        self.address = self._requests.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()

    @property
    def credentials(self) -> Credentials | None:
        return self._requests.credentials

    # Manifests ----------------------------------------------------------------------------------

    def head(self, repository: str, target: str) -> str | None:
        """Return the digest that a tag or digest leads to, by one HEAD request; None for none."""
        response = self._ask("HEAD", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        if digest := decoding.digest(response.headers.get("Docker-Content-Digest")):
            return digest
        manifest = self.manifest(repository, target)
        return manifest.digest if manifest else None

    def manifest(self, repository: str, target: str) -> Manifest | None:
        """Return the manifest under a tag or digest; None where there is none.

        Raises CheckFailed where the bytes are not those that the digest names.
        """
        response = self._ask("GET", repository, f"manifests/{target}", accept=_ACCEPT)
        if response.status == 404:
            return None
        media_type = response.headers.get("Content-Type", "").split(";")[0].strip()
        manifest = Manifest(response.data, media_type)
        if not manifest.content:
            page = response.data.lstrip()[:1] == b"<"
            kind = "an HTML page" if page else "no JSON object" if response.data else "empty"
            raise decoding.malformed(f"a manifest of {repository}:{target}", kind)
        expected = target if ":" in target else response.headers.get("Docker-Content-Digest")
        if expected and expected != manifest.digest:
            raise self._other_bytes(repository, expected, manifest.digest)
        return manifest

    def put_manifest(self, repository: str, target: str, content: Manifest) -> bool:
        """Put a manifest under a tag or its digest. What it refers to must be there already.

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
        stored = response.headers.get("Docker-Content-Digest", content.digest)
        if stored != content.digest:
            raise self._other_bytes(repository, content.digest, stored)
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
        """Return a small blob (a configuration, a receipt).

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
        """Return an image's configuration. Raises what `blob` raises."""
        return configuration_in(self.blob(repository, image.config))

    def labels(self, repository: str, image: Manifest) -> dict[str, str]:
        """Return an image's labels; none for an index. Raises what `blob` raises."""
        return {} if image.is_index else labels_in(self.configuration(repository, image))

    @contextlib.contextmanager
    def stream(self, repository: str, blob: Descriptor) -> Iterator[Iterator[bytes]]:
        """Give a blob of any size, in chunks as they arrive.

        Raises CheckFailed where the blob is missing, and after the last chunk where its bytes are
        not those that the digest names; OutsideError where the connection breaks.
        """
        try:
            with self._stream(repository, blob) as chunks:
                yield chunks
        except TransientError as error:
            message = f"{error.why}, in the middle of a layer"
            raise OutsideError(message, "run this again") from error.__cause__

    def fetch(
        self, repository: str, blob: Descriptor, file: IO[bytes], progress: Callable[[int], object]
    ) -> None:
        """Write a blob of any size to a file. A download that breaks off starts again.

        progress: called with the bytes that are written. Raises what `stream` raises.
        """

        def download() -> None:
            file.seek(0)
            file.truncate()
            with self._stream(repository, blob) as chunks:
                for chunk in chunks:
                    file.write(chunk)
                    progress(file.tell())

        self.retry.run(download, self.on_retry)

    @contextlib.contextmanager
    def _stream(self, repository: str, blob: Descriptor) -> Iterator[Iterator[bytes]]:
        """Make one attempt of `stream`. Raises TransientError where another one may succeed."""

        def checked(chunks: Iterator[bytes]) -> Iterator[bytes]:
            actual, count = hashlib.sha256(), 0
            for chunk in chunks:
                actual.update(chunk)
                count += len(chunk)
                if count > blob.size:
                    raise self._other_bytes(repository, blob.digest, f"more than {blob.size} bytes")
                yield chunk
            if f"sha256:{actual.hexdigest()}" != blob.digest:
                raise self._other_bytes(repository, blob.digest, f"sha256:{actual.hexdigest()}")

        with self._requests.stream(repository, f"blobs/{blob.digest}", blob.size) as chunks:
            if chunks is None:
                raise self._lost(repository, blob.digest)
            yield checked(chunks)

    def has_blob(self, repository: str, digest: str) -> bool:
        """Tell whether this repository has the blob.

        A registry may answer with the address of the bytes. That address is not asked: one that is
        signed for GET refuses HEAD.
        """
        status = self._ask("HEAD", repository, f"blobs/{digest}").status
        return status == 200 or status in web.MOVED

    def check_blob(self, repository: str, blob: Descriptor) -> None:
        """Raise CheckFailed where the repository does not have this blob, or one of other size."""
        response = self._ask("HEAD", repository, f"blobs/{blob.digest}")
        if response.status == 404:
            raise self._lost(repository, blob.digest)
        size = response.headers.get("Content-Length")
        if response.status == 200 and size not in (None, str(blob.size)):
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
        progress: Callable[[int], object],
    ) -> bool:
        """Upload a blob of any size, unless it is there. Returns whether bytes were sent. An upload
        that breaks off starts again.

        file: gives the file of the blob, called where bytes have to be sent. progress:
        called with the bytes that are sent. Raises CheckFailed for other bytes.
        """
        if self.has_blob(repository, blob.digest):
            return False
        self._upload(repository, blob.digest, FileBody(file(), blob, progress))
        return True

    def _upload(self, repository: str, digest: str, body: bytes | FileBody) -> None:
        def upload() -> None:
            start = self._requests.send("POST", repository, "blobs/uploads/", right="write")
            place = self._location(repository, start)
            done = self._requests.send(
                "PUT",
                repository,
                f"{place}{'&' if '?' in place else '?'}digest={digest}",
                right="write",
                body=body,
                content_type="application/octet-stream",
            )
            if done.status in (404, 416):  # the registry has forgotten the session
                raise TransientError(f"{self.host}/{repository}: the registry lost the upload")

        self.retry.run(upload, self.on_retry)

    def check_write(self, repository: str) -> None:
        """Raise the error that a push would end with, before it sends gigabytes."""
        started = self._ask("POST", repository, "blobs/uploads/", right="write")
        with contextlib.suppress(TransientError, FactoryError):  # the session would expire
            place = self._location(repository, started)
            self._requests.send("DELETE", repository, place, right="write")

    def _location(self, repository: str, started: Answer) -> str:
        base = f"{self.address}/v2/{repository}/blobs/uploads/"
        if place := web.joined(base, started.headers.get("Location", "")):
            return place
        raise OutsideError(
            f"{self.host}/{repository}: the registry names no address to upload to",
            "look whether a proxy stands between, and whether the registry is up",
        )

    # Lists --------------------------------------------------------------------------------------

    def referrers(self, repository: str, digest: str, kind: str) -> tuple[Descriptor, ...]:
        """Return the artifacts of a kind that refer to a manifest: by the API, else by its tag."""
        listed: list[Descriptor] = []
        path = f"referrers/{digest}?artifactType={quote(kind, safe='')}"
        for page in self._pages(repository, path, OCI_INDEX):
            listed += Manifest(page.data, OCI_INDEX).manifests
        if not listed:  # no API, or the registry got one after the push
            index = self.manifest(repository, fallback_tag(digest))
            listed += index.manifests if index else ()
        return tuple(entry for entry in listed if self._type_of(repository, entry) == kind)

    def _type_of(self, repository: str, referrer: Descriptor) -> str | None:
        """Return an artifact's type. go-containerregistry lists that of its empty configuration."""
        if referrer.artifact_type not in (None, EMPTY_TYPE):
            return referrer.artifact_type
        with contextlib.suppress(
            decoding.MalformedError, CheckFailed
        ):  # anyone may attach anything
            if artifact := self.manifest(repository, referrer.digest):
                return decoding.text(artifact.content, "artifactType")
        return None

    def tags(self, repository: str, prefix: str) -> tuple[str, ...]:
        tags: list[str] = []
        for answer in self._pages(repository, f"tags/list?n=1000&last={quote(prefix, safe='')}"):
            page = decoding.texts(decoding.object_in(answer.data), "tags")
            tags += [tag for tag in page if tag.startswith(prefix)]
            if page and page[-1] > prefix and not page[-1].startswith(prefix):
                break  # tags come in the order of their letters
        return tuple(tags)

    def _pages(self, repository: str, path: str, accept: str = "*/*") -> Iterator[Answer]:
        """Yield the pages of a list; none where the registry has no such list.

        A page that leads to one before it is the last one.
        """
        address = f"{self.address}/v2/{repository}/{path}"
        read: set[str] = set()
        while len(read) < _PAGES:
            response = self._ask("GET", repository, address, accept=accept)
            if response.status != 200:
                return
            yield response
            read.add(address)
            following = _NEXT.search(response.headers.get("Link", ""))
            next_page = web.joined(address, following[1]) if following else None
            if next_page is None or next_page in read:
                return
            address = next_page

    # --------------------------------------------------------------------------------------------

    def _ask(self, method: str, repository: str, path: str, **request: Any) -> Answer:
        """Send a request, and repeat it after a transient error."""
        return self.retry.run(
            lambda: self._requests.send(method, repository, path, **request), self.on_retry
        )

    def _other_bytes(self, repository: str, expected: str, actual: str) -> CheckFailed:
        return CheckFailed(
            f"{self.host}/{repository}@{expected}: the registry has other bytes ({actual})",
            "do not use this image; look into the registry's storage, then push again",
        )

    def _lost(self, repository: str, digest: str) -> CheckFailed:
        return CheckFailed(
            f"{self.host}/{repository}@{digest}: the registry has lost this blob",
            "push the image again",
        )


def fallback_tag(digest: str) -> str:
    """Return the tag that lists referrers without the API ("referrers tag schema")."""
    return digest.replace(":", "-")
