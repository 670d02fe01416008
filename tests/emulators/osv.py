"""OSV on loopback: querybatch with pages, and the advisories themselves, a handful of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.emulators.web import LoopbackServer, answering

BAD = {
    ("PyPI", "jinja2", "2.10"): ["GHSA-462w-v97r-4m45", "PYSEC-2019-217"],
    ("Debian:12", "openssl", "3.0.0-1"): ["DEBIAN-CVE-2022-3602"],
    ("PyPI", "pillow", "9.0.0"): ["PYSEC-2022-10"],
    ("Debian:12", "expat", "2.5.0-1"): ["DEBIAN-CVE-2023-52425"],
}


@dataclass
class Osv:
    """The service. known: what it knows; details: an advisory's other fields, by its id; page:
    advisories a page; answer: replaces each answer."""

    known: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: dict(BAD))
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    page: int = 100
    answer: Callable[[list[Any]], tuple[int, bytes]] | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def result(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a query."""
        name = (query["package"]["ecosystem"], query["package"]["name"], query["version"])
        self.asked.append(name)
        ids, start = self.known.get(name, []), int(query.get("page_token") or 0)
        some = [{"id": id_, "modified": "2026-01-01T00:00:00Z"} for id_ in ids]
        end = start + self.page
        more = {"next_page_token": str(end)} if end < len(ids) else {}
        return ({"vulns": some[start:end]} if some else {}) | more


@contextmanager
def serving() -> Iterator[Osv]:
    """The service, for the duration of a test."""
    service = Osv()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/querybatch"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            results = [service.result(query) for query in json.loads(body)["queries"]]
            status, data = 200, json.dumps({"results": results}).encode()
            if service.answer:
                status, data = service.answer(results)
            self.answer(status, data)

        def do_GET(self) -> None:
            name = self.path.removeprefix("/v1/vulns/")
            details = service.details.get(name)
            status, fields = (200, details) if details else (404, {})
            self.answer(status, json.dumps({"id": name, **fields}).encode())

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        yield service
