"""OSV on loopback: querybatch with pages, over a handful of advisories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.web import LoopbackServer, QuietHandler, answering

BAD = {
    ("PyPI", "jinja2", "2.10"): ["GHSA-462w-v97r-4m45", "PYSEC-2019-217"],
    ("Debian:12", "openssl", "3.0.0-1"): ["DEBIAN-CVE-2022-3602"],
    ("Debian:13", "openssl", "3.0.0-1"): ["DEBIAN-CVE-2022-3602"],
    ("PyPI", "pillow", "9.0.0"): ["PYSEC-2022-10"],
    ("Debian:12", "expat", "2.5.0-1"): ["DEBIAN-CVE-2023-52425"],
}


@dataclass
class Osv:
    """The service. known: what it knows; page: advisories a page; answer: replaces each answer;
    looked_up: the packages that it was asked about."""

    known: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: dict(BAD))
    page: int = 100
    answer: Callable[[list[Any]], tuple[int, bytes]] | None = None
    looked_up: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def result(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a query."""
        name = (query["package"]["ecosystem"], query["package"]["name"], query["version"])
        self.looked_up.append(name)
        ids, start = self.known.get(name, []), int(query.get("page_token") or 0)
        some = [{"id": id_, "modified": "2026-01-01T00:00:00Z"} for id_ in ids]
        end = start + self.page
        more = {"next_page_token": str(end)} if end < len(ids) else {}
        return ({"vulns": some[start:end]} if some else {}) | more


@contextmanager
def serving() -> Iterator[Osv]:
    """The service, for the duration of a test."""
    service = Osv()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            assert self.path == "/v1/querybatch"
            results = [service.result(query) for query in json.loads(self.content())["queries"]]
            status, data = 200, json.dumps({"results": results}).encode()
            self.reply(*(service.answer(results) if service.answer else (status, data)))

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        yield service
