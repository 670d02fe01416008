"""A registry with the referrers API, which no package of Debian has.

A proxy before docker-registry: it notes the subject of each manifest that is put, says so with
OCI-Subject, and lists them. Source: OCI distribution specification 1.1, "Listing Referrers".
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.registry_faults import FaultHandler, FaultProxy
from tests.emulators.web import answering

INDEX = "application/vnd.oci.image.index.v1+json"


class ReferrersProxy(FaultProxy):
    """`listed`: descriptors of what refers to a digest."""

    def __init__(self, registry: str) -> None:
        super().__init__(registry, _Referring)
        self.listed: dict[str, list[dict[str, Any]]] = defaultdict(list)


class _Referring(FaultHandler):
    server: ReferrersProxy

    def _body(self) -> Iterator[bytes]:
        self.sent = b""
        for piece in super()._body():
            self.sent += piece
            yield piece

    def _pass(self) -> None:
        address = urlsplit(self.path)
        if self.command == "GET" and "/referrers/" in address.path:
            self.server.take(self.command, self.path)
            self._list(unquote(address.path).rpartition("/")[2], parse_qs(address.query))
        else:
            super()._pass()

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _pass  # noqa: N815

    def _list(self, digest: str, query: dict[str, list[str]]) -> None:
        kinds = query.get("artifactType")
        manifests = [
            each
            for each in self.server.listed[digest]
            if not kinds or each["artifactType"] in kinds
        ]
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        filtered = {"OCI-Filters-Applied": "artifactType"} if kinds else {}
        data = json.dumps(content).encode()
        self._answer(200, {"Content-Type": INDEX, **filtered}, data)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if self.command == "PUT" and "/manifests/" in self.path and status == 201:
            content = json.loads(self.sent)
            if subject := content.get("subject"):
                self._note(subject["digest"], content)
                headers = {**headers, "OCI-Subject": subject["digest"]}
        super()._answer(status, headers, body)

    def _note(self, subject: str, content: dict[str, Any]) -> None:
        digest = f"sha256:{hashlib.sha256(self.sent).hexdigest()}"
        with self.server.lock:
            if all(each["digest"] != digest for each in self.server.listed[subject]):
                self.server.listed[subject].append(
                    {
                        "mediaType": content["mediaType"],
                        "digest": digest,
                        "size": len(self.sent),
                        "artifactType": content.get("artifactType"),
                        "annotations": content.get("annotations", {}),
                    }
                )


@contextmanager
def with_referrers(registry: str) -> Iterator[ReferrersProxy]:
    """The API before `registry` (HOST:PORT)."""
    proxy = ReferrersProxy(registry)
    with answering(proxy):
        yield proxy
