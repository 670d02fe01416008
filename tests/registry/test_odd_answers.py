"""Whatever a registry sends: an answer, or an error of our own; never a fault of the factory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from urllib3 import HTTPHeaderDict
from urllib3.exceptions import HTTPError

from builder.core import parallel, web
from builder.core.errors import CheckFailed, FactoryError, OutsideError
from builder.core.retry import Retry
from builder.pipeline import verify
from builder.prove import receipts
from builder.registry import Reference, Registry, client, decoding, manifests
from builder.registry.manifests import Descriptor
from tests.emulators.answers import Handler, serving
from tests.prove.test_receipts import receipt
from tests.registry.making import coded, docker_config

ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**30, "", "x", "../../etc/passwd", "\ud800", "\x1b[31m", "\n"),
    *([], {}, [None], [[]], [{}], ["x"], {"x": None}, {"digest": []}, {"digest": "sha256:../.."}),
]
TEXTS = [
    *("", "x", "0", "-1", "9" * 400, "²", "٣", "Sun, 06 Nov 99999 08:49:37 GMT", "http://[", "//"),
    *("file:///etc/passwd", "http://a:99999/", "https:///x", "\t", 'Bearer realm="http://["'),
    *(
        'Bearer realm="x y"',
        "Basic",
        "</v2/x>; rel=next",
        "<http://[>; rel=next",
        "a;b;c",
        "sha256:/",
    ),
]
_RUN = Retry.run
QUICK = Retry(attempts=2, first=0.0, longest=0.0)
WHERE = Reference("127.0.0.1:1", "team/image", "v1")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value, and of the value itself."""
    inside: Any = enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        inside = value.items()
    return [
        path,
        *(path_inside for key, value in inside for path_inside in places(value, (*path, key))),
    ]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = new
    return value


class Paper:
    """A registry on paper: documents, one of them changed, and what refers to them fits again."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.victim = draw(st.sampled_from(["config", "image", "receipt", "artifact", "list"]))
        config = self.put("config", json.loads(manifests.configuration(
            {"architecture": "amd64", "os": "linux"},
            {"Labels": {"a": "b"}, "Env": ["A=b"], "Cmd": ["bash"]},
            [manifests.Added("sha256:1", "tests")], 0,
        )))  # fmt: skip
        layer = Descriptor.of(manifests.OCI_LAYER_GZIP, b"layer")
        image = json.loads(
            manifests.image(Descriptor.of(manifests.OCI_CONFIG, config), [layer]).data
        )
        self.image = self.put("image", image)
        whole = manifests.Manifest(self.image, manifests.OCI_MANIFEST).descriptor
        proof = self.put("receipt", json.loads(receipts.dump(receipt(digest=whole.digest))))
        content = Descriptor.of(verify.RECEIPT_TYPE, proof)
        made = manifests.artifact(verify.RECEIPT_TYPE, content, {"a": "b"}, whole)
        artifact = self.put("artifact", json.loads(made.data))
        entry = {**manifests.Manifest(artifact, manifests.OCI_MANIFEST).descriptor.json(),
                 "artifactType": verify.RECEIPT_TYPE, "annotations": {"a": "b"}}  # fmt: skip
        listed = self.put("list", {"schemaVersion": 2, "manifests": [entry]})
        self.answers = {
            manifests.digest_of(document): document for document in (config, proof, artifact)
        }
        self.answers |= {"v1": self.image, "base-1": self.image, "referrers": listed}

    def put(self, name: str, value: Any) -> bytes:
        if name == self.victim:
            path = self.draw(st.sampled_from(places(value)))
            value = changed(value, path, self.draw(st.sampled_from(ODD)))
        return json.dumps(value).encode()

    def answer(self, method: str, url: str, **_: object) -> web.Answer:
        """In the place of web.Client.answer."""
        headers = HTTPHeaderDict({"Content-Type": manifests.OCI_MANIFEST})
        if self.draw(st.integers(0, 9)) == 0:
            names = ("Location", "Link", "Retry-After", "WWW-Authenticate", "Docker-Content-Digest")
            for name in (*names, "Content-Type"):
                headers[name] = self.draw(st.sampled_from(TEXTS))
            status = self.draw(st.sampled_from([200, 401, 403, 404, 416, 429, 500]))
            return web.Answer(
                status, "odd", headers, json.dumps(self.draw(st.sampled_from(ODD))).encode()
            )
        if method in ("POST", "PUT"):
            headers["Location"] = "/v2/team/image/blobs/uploads/1"
            return web.Answer(201, "", headers, b"")
        words = url.partition("?")[0].split("/")
        content = self.answers.get("referrers" if "referrers" in words else words[-1])
        return web.Answer(404 if content is None else 200, "", headers, content or b"")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_answer_is_a_fault_of_the_factory(data: st.DataObject) -> None:
    paper = Paper(data.draw)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("DOCKER_CONFIG", folder)
        docker_config(Path(folder), {"auths": {WHERE.host: {"auth": coded()}}})
        patch.setattr(web.Client, "answer", lambda _, *words, **how: paper.answer(*words, **how))
        patch.setattr(Retry, "run", lambda _, attempt, on_retry: _RUN(QUICK, attempt, on_retry))
        # Hypothesis draws in this thread only
        patch.setattr(parallel, "each", lambda work, items: tuple(map(work, items)))
        for ask in (
            lambda: verify.proven(Registry(WHERE.host, QUICK), WHERE, verify.of_any_version, None),
            lambda: Registry(WHERE.host, QUICK).labels("x", manifests.Manifest(paper.image, "")),
            lambda: Registry(WHERE.host, QUICK).head("team/image", "v1"),
        ):
            try:
                ask()
            except FactoryError as error:
                assert error.exit_code in (2, 3, 4)
                assert "\x1b" not in error.message


def test_an_endless_answer_is_cut_off() -> None:
    bomb = {"Content-Encoding": "gzip"}, gzip.compress(bytes(64 << 20))
    answers = {
        "/v2/x/manifests/y": (200, {}, bytes(decoding.LARGEST + 1)),
        "/v2/x/manifests/packed": (200, *bomb),
    }
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        for tag in ("y", "packed"):
            with pytest.raises(OutsideError, match="more than 4194304 bytes"):
                there.manifest("x", tag)


def test_a_byte_now_and_then_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DEADLINE", 0.2)
    over = threading.Event()

    class Drip(Handler):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            while not over.wait(0.02):
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return

        do_GET = answer  # noqa: N815

    with serving() as server, web.Client() as there:
        server.RequestHandlerClass = Drip
        with pytest.raises(OutsideError, match=r"more than 0 s"):
            there.answer("GET", f"{server.address}/", most=1000)
        over.set()


class Endless(Handler):
    """A registry whose blobs have no end, and which sends one header after the other for ever."""

    def do_HEAD(self) -> None:  # noqa: N802
        super().answer()

    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers() if "blobs" in self.path else self.flush_headers()
        piece = bytes(1 << 20) if "blobs" in self.path else b"X-A: b\r\n"
        with contextlib.suppress(OSError):
            for _ in range(200):
                self.wfile.write(piece)
                self.server.sent += len(piece)
                time.sleep(0.01)
        self.close_connection = True


def test_a_blob_ends_at_its_size_and_headers_at_the_time_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blob = Descriptor(manifests.OCI_LAYER_GZIP, f"sha256:{'a' * 64}", 1024)
    with serving({f"/v2/x/blobs/{blob.digest}": (200, {}, b"")}) as server:
        server.RequestHandlerClass, server.sent = Endless, 0
        with Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
            with pytest.raises(CheckFailed, match="more than 1024 bytes"):
                there.fetch("x", blob, io.BytesIO(), lambda _: None)
            assert server.sent < 20 << 20
        with web.Client(read=0.2) as client, pytest.raises(HTTPError, match="timed out"):
            client.request("GET", f"{server.address}/page")


def test_what_is_no_manifest_is_told_as_that() -> None:
    answers = {
        "/v2/x/manifests/empty": (200, {}, b""),
        "/v2/x/manifests/page": (200, {"Content-Type": "text/html"}, b"\n<!doctype html>Log in"),
    }
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        with pytest.raises(OutsideError, match="a manifest of x:empty that is empty"):
            there.manifest("x", "empty")
        with pytest.raises(OutsideError, match="a manifest of x:page that is an HTML page"):
            there.manifest("x", "page")


@pytest.mark.parametrize(("following", "pages"), [("referrers/again", 2), ("referrers/{}", 5)])
def test_pages_in_a_circle_or_without_an_end_end(
    monkeypatch: pytest.MonkeyPatch, following: str, pages: int
) -> None:
    monkeypatch.setattr(client, "_PAGES", 5)

    class Pages(Handler):
        def do_GET(self) -> None:  # noqa: N802
            page = {"Link": f"</v2/x/{following.format(len(self.server.seen))}>; rel=next"}
            if "referrers" in self.path:
                self.server.answers[self.path] = (200, page, b'{"manifests": []}')
            self.answer()

    with serving() as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        server.RequestHandlerClass = Pages
        assert there.referrers("x", manifests.digest_of(b""), "a/b") == ()
        assert len(server.seen) == pages + 1  # and the tag of a registry without the API


def test_an_address_that_is_none_is_asked_once() -> None:
    for place in ("file:///etc/passwd", "http://[", "http://a:99999/", "https:///"):
        answers = {"/v2/x/blobs/uploads/": (202, {"Location": place}, b"")}
        with (
            serving(answers) as server,
            Registry(f"127.0.0.1:{server.server_port}", QUICK) as there,
        ):
            with pytest.raises(OutsideError, match="names no address to upload to"):
                there.put_blob("x", b"content")
            assert [method for method, *_ in server.seen] == ["HEAD", "POST"]


def test_neither_an_upload_nor_a_page_leads_to_a_metadata_server() -> None:
    place = "http://169.254.169.254/computeMetadata/v1/"
    answers = {
        "/v2/x/blobs/uploads/": (202, {"Location": place}, b""),
        "/v2/x/tags/list?n=1000&last=v": (200, {"Link": f"<{place}>; rel=next"}, b"{}"),
    }
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        for ask in (lambda: there.put_blob("x", b"content"), lambda: there.tags("x", "v")):
            with pytest.raises(OutsideError, match="private address 169"):
                ask()
