"""Planted vulnerable pins are found; what could not be looked up is a failure.

The service on loopback speaks OSV's querybatch with a handful of advisories.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import CheckFailed, OutsideError
from builder.core.project import find_root
from builder.lock import model
from builder.trust import advisories
from builder.trust.advisories import PackageVersion
from tests.emulators.web import LoopbackServer

ROOT = find_root(Path(__file__).parent)
BAD = {
    ("PyPI", "jinja2", "2.10"): ["GHSA-462w-v97r-4m45", "PYSEC-2019-217"],
    ("Debian:12", "openssl", "3.0.0-1"): ["DEBIAN-CVE-2022-3602"],
    ("PyPI", "pillow", "9.0.0"): ["PYSEC-2022-10"],
    ("Debian:12", "expat", "2.5.0-1"): ["DEBIAN-CVE-2023-52425"],
}


@dataclass
class Osv:
    """The service. known: what it knows; page: advisories a page; answer: replaces each answer."""

    known: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: dict(BAD))
    page: int = 100
    answer: Callable[[list[Any]], tuple[int, bytes]] | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def result(self, query: dict[str, Any]) -> dict[str, Any]:
        """What it says to one query."""
        name = (query["package"]["ecosystem"], query["package"]["name"], query["version"])
        self.asked.append(name)
        ids, start = self.known.get(name, []), int(query.get("page_token") or 0)
        some = [{"id": one, "modified": "2026-01-01T00:00:00Z"} for one in ids]
        end = start + self.page
        more = {"next_page_token": str(end)} if end < len(ids) else {}
        return ({"vulns": some[start:end]} if some else {}) | more


@pytest.fixture
def osv() -> Iterator[Osv]:
    service = Osv()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/querybatch"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            results = [service.result(one) for one in json.loads(body)["queries"]]
            status, data = 200, json.dumps({"results": results}).encode()
            if service.answer:
                status, data = service.answer(results)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PLANTED = (
    PackageVersion("Debian:12", "expat", "2.5.0-1"),
    PackageVersion("Debian:12", "zlib", "1:1.2.13.dfsg-1"),
    PackageVersion("PyPI", "keras", "3.15.1"),
    PackageVersion("PyPI", "pillow", "9.0.0"),
)


def test_planted_pins_are_found_and_nothing_else(osv: Osv) -> None:
    found = advisories.look_up(PLANTED, osv.address)
    assert [(one.package.name, one.ids) for one in found] == [
        ("expat", ("DEBIAN-CVE-2023-52425",)),
        ("pillow", ("PYSEC-2022-10",)),
    ]


def test_every_page_is_read(osv: Osv) -> None:
    osv.page = 1
    osv.known["PyPI", "pillow", "9.0.0"] = ["A-1", "A-2", "A-3"]
    found = advisories.look_up(PLANTED, osv.address)
    assert found[-1].ids == ("A-1", "A-2", "A-3")


@pytest.mark.parametrize("target", ["v100", "cpu", "tpu"])
def test_every_locked_package_is_asked_about(osv: Osv, target: str) -> None:
    lock = model.read(ROOT, target)
    assert advisories.look_up(advisories.packages(lock), osv.address) == ()
    names = {(ecosystem, name) for ecosystem, name, _ in osv.asked}
    assert {("PyPI", pin.name) for pin in lock.packages.values()} <= names
    assert ("Debian:12", "expat") in names and ("Debian:12", "glibc") in names
    assert not any(version.endswith("+b1") for _, _, version in osv.asked)


def test_a_service_without_data_is_a_failure(osv: Osv) -> None:
    """A mirror that answers and knows nothing would call everything clean."""
    for gone, ecosystem in ((("PyPI", "jinja2", "2.10"), "PyPI"),
                            (("Debian:12", "openssl", "3.0.0-1"), "Debian:12")):  # fmt: skip
        osv.known = {name: ids for name, ids in BAD.items() if name != gone}
        with pytest.raises(OutsideError, match=f"it has no advisories of {ecosystem}"):
            advisories.look_up(PLANTED, osv.address)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda results: (503, b"busy"), "it answered 503"),
        (lambda results: (404, b""), "it answered 404"),
        (lambda results: (200, b"<html>a proxy's page</html>"), "not one result for each package"),
        (lambda results: (200, json.dumps({"results": results[1:]}).encode()), "not one result"),
        (lambda results: (200, b'{"results": null}'), "not one result"),
        (lambda results: (200, json.dumps({"results": [{"vulns": [{}]}] * len(results)}).encode()),
         "not one result"),
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_a_failure(
    osv: Osv, answer: Callable[[list[Any]], tuple[int, bytes]], says: str
) -> None:
    osv.answer = answer
    with pytest.raises(OutsideError, match=f"nothing was looked up.*{says}"):
        advisories.look_up(PLANTED, osv.address)


def test_no_network_is_a_failure() -> None:
    with pytest.raises(OutsideError, match="nothing was looked up") as caught:
        advisories.look_up(PLANTED, "http://127.0.0.1:9")
    assert caught.value.exit_code == 3


def test_the_command_names_the_package_and_its_targets(
    osv: Osv, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    clean = CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address])
    assert clean.exit_code == 0 and "nothing is known against them" in clean.output
    keras = model.read(root, "cpu").packages["keras"]
    osv.known["PyPI", "keras", keras.version] = ["GHSA-planted"]
    found = CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address])
    assert isinstance(found.exception, CheckFailed) and found.exception.exit_code == 4
    assert f"keras {keras.version} (PyPI): GHSA-planted; in a100, cpu" in found.output
