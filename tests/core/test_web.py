"""HTTP through the host's proxies and certificates, on real sockets."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from urllib3.exceptions import HTTPError

from builder.core import addresses, web
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
    hosts = {"registry.example": ["93.184.216.34"], "storage.example": ["151.101.1.1"]}
    hosts |= {"metadata.example": ["169.254.169.254"], "inside.example": ["10.0.0.8"]}
    hosts |= {"intranet.example": ["10.0.0.9"], "both.example": ["93.184.216.34", "10.0.0.9"]}

    def resolved(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 443)) for address in hosts.get(host, [host])]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    for place, target, reason in (
        ("registry.example", "https://storage.example/a", ""),
        ("registry.example", "http://registry.example/a", "in plain text"),
        ("registry.example", "https://metadata.example/", "private address 169.254.169.254"),
        ("registry.example", "https://127.0.0.1/", "private address 127.0.0.1"),
        ("registry.example", "https://inside.example/", "private address 10.0.0.8"),
        ("both.example", "https://inside.example/", "private address 10.0.0.8"),
        ("intranet.example", "https://inside.example/", ""),
        ("intranet.example", "https://metadata.example/", "private address 169.254.169.254"),
        ("intranet.example", "https://100.100.100.200/", "private address 100.100.100.200"),
    ):
        way = web._Way(target, f"https://{place}/a", {})
        if reason:
            with pytest.raises(OutsideError, match=reason):
                way.check()
        else:
            way.check()
    assert web.origin("https://Registry.Example:443/x") == web.origin("https://registry.example")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("93.184.216.34", False),
        ("2606:2800:220:1::1", False),
        ("64:ff9b::93.184.216.34", False),
        ("2002:5db8:d822::1", False),
        *(
            (text, True)
            for text in (
                "10.0.0.1", "127.0.0.1", "0.0.0.0", "169.254.169.254", "192.168.1.1", "100.64.0.1",
                "100.127.255.254", "192.0.0.192", "192.0.0.9", "198.18.0.1", "192.0.2.1",
                "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1",
                "::", "::1", "::127.0.0.1", "::169.254.169.254", "::ffff:10.0.0.1",
                "64:ff9b::169.254.169.254", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:a9fe:a9fe::1",
                "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1", "fc00::1", "fd00:ec2::254",
                "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "4000::1",
            )
        ),
    ],
)  # fmt: skip
def test_an_address_is_hidden_however_it_is_written(text: str, hidden: bool) -> None:
    address = addresses.parse(text)
    assert addresses.is_hidden(address) == hidden
    secret = ("169.254.", "a9fe", "192.0.0.192", "ec2", "fe80")
    assert addresses.tells_secrets(address) == any(part in text for part in secret)


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server gives a public address first, and a private one to whoever connects."""
    known, asked = socket.getaddrinfo, list[str]()

    def resolved(host: str, port: int, *more: Any, **options: Any) -> Any:
        if host != "moves.example":
            return known(host, port, *more, **options)
        asked.append(host)
        there = "93.184.216.34" if len(asked) == 1 else "127.0.0.2"
        return known(there, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(addresses, "is_hidden", lambda address: str(address) == "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as inside:
        place = f"http://moves.example:{inside.getsockname()[1]}/secret"
        answers = {"/away": (307, {"Location": place}, b"")}
        with serving(answers) as server, Client(proxied=False) as client:
            with pytest.raises(
                OutsideError, match=r"redirects to the private address 127\.0\.0\.2"
            ):
                client.request("GET", f"{server.address}/away", follow=True)
            assert len(asked) == 2, "once for the check, once for the connection"
            connection, _ = inside.accept()
            with connection:
                assert connection.recv(100) == b"", "nothing was sent"


PROXY, HERE = "http://proxy:3128", "https://a.example"


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, HERE, None),
        ({"HTTPS_PROXY": PROXY}, f"{HERE}/v2/", PROXY),
        ({"https_proxy": "proxy:3128"}, HERE, PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://a.example", None),
        ({"ALL_PROXY": PROXY}, "http://a.example", PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "b.example,.example"}, HERE, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "a.example:5000"}, f"{HERE}:5000", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*"}, HERE, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "b.example"}, HERE, PROXY),
    ],
)
def test_the_proxy_that_the_environment_names(
    environment: dict[str, str], url: str, expected: str | None
) -> None:
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
    assert error.fix.startswith("correct the name of the proxy, or, where it is right, check the")


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
