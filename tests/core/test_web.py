"""HTTP through the host's proxies and certificates, on real sockets."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from unittest.mock import patch

import pytest
from urllib3.exceptions import HTTPError

from builder.core import web
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.retry import Retry
from builder.core.web import Client, proxy_of
from builder.registry import Registry
from tests.emulators import tls
from tests.emulators.answers import Handler, serving

QUICK = Retry(attempts=2, first=0.01)
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has no proxy."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def basic(words: str) -> str:
    return "Basic " + base64.b64encode(words.encode()).decode()


def test_an_answer_of_any_status_is_an_answer_and_one_connection_serves_many_requests() -> None:
    ports = set()

    class Counting(Handler):
        def answer(self) -> None:
            ports.add(self.client_address[1])
            super().answer()

        do_GET = do_PUT = answer  # noqa: N815

    with serving({"/here": (200, {}, b"yes")}) as server, Client() as client:
        server.RequestHandlerClass = Counting
        assert client.answer("GET", f"{server.address}/here", most=9).data == b"yes"
        assert client.answer("GET", f"{server.address}/gone", most=9).status == 404
        assert client.answer("PUT", f"{server.address}/here", most=9, body=b"x").status == 200
    assert len(ports) == 1


def test_redirects_are_followed_to_an_end_and_credentials_not_to_another_host() -> None:
    known = {"Authorization": "Bearer x"}
    answers = {"/a": (307, {"Location": "b?c=1"}, b""), "/b?c=1": (200, {}, b"there")}
    answers["/loop"] = (302, {"Location": "/loop"}, b"")
    with serving({"/blob": (200, {}, b"bytes")}) as storage:
        answers["/away"] = (307, {"Location": f"{storage.address}/blob"}, b"")
        with serving(answers) as server, Client() as client:
            assert client.request("GET", f"{server.address}/a").status == 307
            answer = client.request("GET", f"{server.address}/a", headers=known, follow=True)
            assert answer.data == b"there"
            assert server.seen[-1][2]["Authorization"] == "Bearer x"
            answer = client.request("GET", f"{server.address}/away", headers=known, follow=True)
            assert answer.data == b"bytes"
            assert "Authorization" not in storage.seen[0][2]
            server.seen.clear()
            with pytest.raises(OutsideError, match=r"127.*: an answer of more than 5 redir"):
                client.request("GET", f"{server.address}/loop", follow=True)
            assert len(server.seen) == 1 + web.REDIRECTS
            client.request("HEAD", server.address.replace("//", "//me:p%40ss@") + "/a")
            assert server.seen[-1][2]["Authorization"] == basic("me:p@ss")


def test_a_redirect_leads_neither_to_plain_http_nor_into_a_private_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = {"registry.example": "203.0.113.5", "storage.example": "198.51.100.7"}
    hosts |= {"metadata.example": "169.254.169.254", "inside.example": "10.0.0.8"}
    hosts |= {"intranet.example": "10.0.0.9", "mapped.example": "::ffff:169.254.169.254"}

    def addresses(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (hosts.get(host, host), 443))]

    monkeypatch.setattr(web.socket, "getaddrinfo", addresses)
    monkeypatch.setattr(web, "_is_private", lambda address: address.packed[0] in (10, 127))
    for place, target, reason in (
        ("https://registry.example/a", "https://storage.example/a", ""),
        ("https://registry.example/a", "http://registry.example/a", "in plain text"),
        ("https://registry.example/a", "https://metadata.example/", "169.254.169.254"),
        ("https://registry.example/a", "https://127.0.0.1/", "private address 127.0.0.1"),
        ("https://registry.example/a", "https://inside.example/", "private address 10.0.0.8"),
        ("https://intranet.example/a", "https://inside.example/", ""),
        ("https://intranet.example/a", "https://metadata.example/", "169.254.169.254"),
        ("https://intranet.example/a", "https://mapped.example/", "169.254.169.254"),
    ):
        if reason:
            with pytest.raises(OutsideError, match=reason):
                web.check_redirect(place, target)
        else:
            web.check_redirect(place, target)
    assert web.origin("https://Registry.Example:443/x") == web.origin("https://registry.example")


def test_the_proxy_that_the_environment_names() -> None:
    proxy, here = "http://proxy:3128", "https://a.example"
    for environment, url, expected in (
        ({}, here, None),
        ({"HTTPS_PROXY": proxy}, f"{here}/v2/", proxy),
        ({"https_proxy": "proxy:3128"}, here, proxy),
        ({"HTTPS_PROXY": proxy}, "http://a.example", None),
        ({"ALL_PROXY": proxy}, "http://a.example", proxy),
        ({"ALL_PROXY": proxy, "NO_PROXY": "b.example,.example"}, here, None),
        ({"ALL_PROXY": proxy, "NO_PROXY": "a.example:5000"}, f"{here}:5000", None),
        ({"ALL_PROXY": proxy, "NO_PROXY": "*"}, here, None),
        ({"ALL_PROXY": proxy, "NO_PROXY": "b.example"}, here, proxy),
    ):
        with patch.dict("os.environ", environment):
            assert proxy_of(url) == expected


def test_both_kinds_of_address_go_through_their_proxy_unless_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving({"http://a.example/x": (200, {}, b"by proxy")}) as proxy, Client() as client:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address.replace("//", "//me:p%40ss@"))
        with pytest.raises(HTTPError):  # behind this proxy is nothing that speaks TLS
            client.request("GET", "https://registry.example:5000/v2/")
        method, path, headers = proxy.seen[0]
        assert (method, path) == ("CONNECT", "registry.example:5000")
        assert headers["Proxy-Authorization"] == basic("me:p@ss")
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        assert client.request("GET", "http://a.example/x").data == b"by proxy"
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving({"/": (200, {}, b"")}) as server, Client(proxied=False) as client:
        assert client.request("GET", f"{server.address}/").status == 200


def test_a_proxy_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(proxy: str) -> FactoryError:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with Registry("registry.example", QUICK) as there, pytest.raises(FactoryError) as caught:
            there.head("x", "y")
        return caught.value

    for status in (403, 407, 502):  # asking again would not help
        with serving(tunnel=status) as proxy:
            error = refused(proxy.address)
        known = f"registry.example: the proxy refused: Tunnel connection failed: {status}"
        assert known in error.message and "tried" not in error.message
        assert "HTTPS_PROXY" in error.fix
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert "through HTTPS_PROXY" in (message := refused(address).message)
    assert "Connection refused" in message and message.endswith("(tried 2 times)")
    error = refused("socks5://proxy:1080")
    assert isinstance(error, InputError) and "socks5://proxy" in error.message
    assert "NO_PROXY" in error.fix

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = refused("http://proxy.invalid:3128")
    assert "registry.example through HTTPS_PROXY: no such host" in error.message
    assert error.fix == "correct the name of the proxy"


def test_a_host_that_does_not_listen_says_nothing_or_breaks_off_is_an_error() -> None:
    class Torn(Handler):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True

        do_GET = answer  # noqa: N815

    with Client(read=0.05) as client:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            with pytest.raises(HTTPError, match="timed out"):
                client.request("GET", address)
        with pytest.raises(HTTPError, match="Connection refused"):
            client.request("GET", address)
    with serving() as server, Client() as client:
        server.RequestHandlerClass = Torn
        with pytest.raises(HTTPError, match="IncompleteRead"):
            client.answer("GET", f"{server.address}/", most=99)


def test_a_named_host_may_show_any_certificate(tmp_path: Path) -> None:
    with serving({"/": (200, {}, b"yes")}) as server:
        tls.encrypt(server, tls.certificate(tmp_path))
        host = f"127.0.0.1:{server.server_port}"
        with Client(unchecked=("127.0.0.1:1",)) as client, pytest.raises(HTTPError, match="VERIFY"):
            client.request("GET", f"https://{host}/")
        with Client(unchecked=(host,)) as client:
            assert client.request("GET", f"https://{host}/").data == b"yes"
    meant = ("index.example", "index.example:8443", "https://index.example:8443", "*")
    others = ("index.example:443", "http://index.example", "example", "index.example:port")
    for named in (*meant, *others):
        url = "https://index.example:8443/simple/one.whl"
        assert web.matches_host(named, url) is (named in meant)
