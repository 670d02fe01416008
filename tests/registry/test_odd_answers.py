"""Whatever a registry sends: an answer, or an error of our own; never a fault of the factory."""

from __future__ import annotations

import contextlib
import gzip
import io
import threading
import time

import pytest
from urllib3.exceptions import HTTPError

from builder.core import web
from builder.core.errors import CheckFailed, OutsideError
from builder.core.retry import Retry
from builder.registry import Registry, client, decoding, manifests
from builder.registry.manifests import Descriptor
from tests.emulators.answers import Handler, serving

QUICK = Retry(attempts=2, first=0.0, longest=0.0)


def test_an_endless_answer_is_cut_off_and_what_is_no_manifest_is_told_as_that() -> None:
    bomb = {"Content-Encoding": "gzip"}, gzip.compress(bytes(64 << 20))
    answers = {
        "/v2/x/manifests/y": (200, {}, bytes(decoding.LARGEST + 1)),
        "/v2/x/manifests/packed": (200, *bomb),
        "/v2/x/manifests/empty": (200, {}, b""),
        "/v2/x/manifests/page": (200, {"Content-Type": "text/html"}, b"\n<!doctype html>Log in"),
    }
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        for tag, reason in (
            ("y", "more than 4194304 bytes"),
            ("packed", "more than 4194304 bytes"),
            ("empty", "a manifest of x:empty that is empty"),
            ("page", "a manifest of x:page that is an HTML page"),
        ):
            with pytest.raises(OutsideError, match=reason):
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
    blob = Descriptor(manifests.OCI_LAYER_ZSTD, f"sha256:{'a' * 64}", 1024)
    with serving({f"/v2/x/blobs/{blob.digest}": (200, {}, b"")}) as server:
        server.RequestHandlerClass, server.sent = Endless, 0
        with Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
            with pytest.raises(CheckFailed, match="more than 1024 bytes"):
                there.fetch("x", blob, io.BytesIO(), lambda _: None)
            assert server.sent < 20 << 20
        with web.Client(read=0.2) as client, pytest.raises(HTTPError, match="timed out"):
            client.request("GET", f"{server.address}/page")


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


def test_an_address_that_is_none_is_asked_once_and_none_leads_to_a_metadata_server() -> None:
    for place in ("file:///etc/passwd", "http://[", "http://a:99999/", "https:///"):
        answers = {"/v2/x/blobs/uploads/": (202, {"Location": place}, b"")}
        with (
            serving(answers) as server,
            Registry(f"127.0.0.1:{server.server_port}", QUICK) as there,
        ):
            with pytest.raises(OutsideError, match="names no address to upload to"):
                there.put_blob("x", b"content")
            assert [method for method, *_ in server.seen] == ["HEAD", "POST"]
    place = "http://169.254.169.254/computeMetadata/v1/"
    answers = {
        "/v2/x/blobs/uploads/": (202, {"Location": place}, b""),
        "/v2/x/tags/list?n=1000&last=v": (200, {"Link": f"<{place}>; rel=next"}, b"{}"),
    }
    with serving(answers) as server, Registry(f"127.0.0.1:{server.server_port}", QUICK) as there:
        for ask in (lambda: there.put_blob("x", b"content"), lambda: there.tags("x", "v")):
            with pytest.raises(OutsideError, match="private address 169"):
                ask()
