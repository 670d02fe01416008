"""HTTP through the host's proxies and certificates, on real sockets."""

from __future__ import annotations

import base64
import socket
from pathlib import Path

import pytest
from urllib3.exceptions import HTTPError

from builder.core import web
from builder.core.errors import InputError, OutsideError
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


def test_an_answer_of_any_status_is_an_answer() -> None:
    with serving({"/here": (200, {}, b"yes")}) as server, Client() as client:
        assert client.request("GET", f"{server.address}/here").data == b"yes"
        assert client.request("GET", f"{server.address}/gone").status == 404


def test_one_connection_serves_many_requests() -> None:
    ports = set()

    class Counting(Handler):
        def answer(self) -> None:
            ports.add(self.client_address[1])
            super().answer()

        do_GET = do_PUT = answer  # noqa: N815

    with serving({"/": (200, {}, b"")}) as server, Client() as client:
        server.RequestHandlerClass = Counting
        for method in ("GET", "PUT", "GET"):
            client.request(method, f"{server.address}/", body=b"x" if method == "PUT" else None)
    assert len(ports) == 1


def test_what_listens_nowhere_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Client() as client, pytest.raises(HTTPError, match="Connection refused"):
        client.request("GET", f"http://127.0.0.1:{port}/")


def test_a_redirect_is_followed_where_that_is_asked_for() -> None:
    answers = {"/a": (307, {"Location": "b?c=1"}, b""), "/b?c=1": (200, {}, b"there")}
    with serving(answers) as server, Client() as client:
        assert client.request("GET", f"{server.address}/a").status == 307
        known = {"Authorization": "Bearer x"}
        answer = client.request("GET", f"{server.address}/a", headers=known, follow=True)
        assert answer.data == b"there"
        assert server.seen[-1][2]["Authorization"] == "Bearer x"


def test_credentials_do_not_follow_to_another_host() -> None:
    with serving({"/blob": (200, {}, b"bytes")}) as storage:
        away = {"/v2/blob": (307, {"Location": f"{storage.address}/blob"}, b"")}
        with serving(away) as server, Client() as client:
            known = {"Authorization": "Bearer x"}
            answer = client.request("GET", f"{server.address}/v2/blob", headers=known, follow=True)
        assert answer.data == b"bytes"
        assert "Authorization" not in storage.seen[0][2]


def test_a_redirect_leads_neither_to_plain_http_nor_into_a_private_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = {"registry.example": "203.0.113.5", "storage.example": "198.51.100.7"}
    hosts |= {"metadata.example": "169.254.169.254", "inside.example": "10.0.0.8"}
    hosts |= {"intranet.example": "10.0.0.9"}

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
    ):
        if reason:
            with pytest.raises(OutsideError, match=reason):
                web.check_redirect(place, target)
        else:
            web.check_redirect(place, target)
    assert web.origin("https://Registry.Example:443/x") == web.origin("https://registry.example")


def test_redirects_without_an_end_end() -> None:
    with serving({"/a": (302, {"Location": "/a"}, b"")}) as server, Client() as client:
        assert client.request("GET", f"{server.address}/a", follow=True).status == 302
        assert len(server.seen) == 1 + web.REDIRECTS


def test_user_and_password_of_an_address_are_sent_as_basic() -> None:
    with serving({"/simple": (200, {}, b"")}) as server, Client() as client:
        client.request("HEAD", server.address.replace("//", "//me:p%40ss@") + "/simple")
        method, path, headers = server.seen[0]
        assert (method, path, headers["Authorization"]) == ("HEAD", "/simple", basic("me:p@ss"))


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://a.example/v2/", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://a.example/v2/", "http://proxy:3128"),
        ({"https_proxy": "proxy:3128"}, "https://a.example", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://a.example", None),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://a.example", "http://proxy:3128"),
        (
            {"ALL_PROXY": "http://proxy", "NO_PROXY": "b.example,.example"},
            "https://a.example",
            None,
        ),
        (
            {"ALL_PROXY": "http://proxy", "NO_PROXY": "a.example:5000"},
            "https://a.example:5000",
            None,
        ),
        ({"ALL_PROXY": "http://proxy", "NO_PROXY": "*"}, "https://a.example", None),
        (
            {"ALL_PROXY": "http://proxy", "NO_PROXY": "b.example"},
            "https://a.example",
            "http://proxy",
        ),
    ],
)
def test_the_proxy_that_the_environment_names(
    environment: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(url) == expected


def test_a_proxy_is_asked_for_a_tunnel_with_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy, Client() as client:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address.replace("//", "//me:p%40ss@"))
        with pytest.raises(HTTPError):  # behind this proxy is nothing that speaks TLS
            client.request("GET", "https://registry.example:5000/v2/")
        method, path, headers = proxy.seen[0]
        assert (method, path) == ("CONNECT", "registry.example:5000")
        assert headers["Proxy-Authorization"] == basic("me:p@ss")


def test_a_plain_address_goes_through_its_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"http://a.example/x": (200, {}, b"by proxy")}) as proxy, Client() as client:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        assert client.request("GET", "http://a.example/x").data == b"by proxy"
        assert client.request("GET", "http://a.example/x").status == 200


def test_no_proxy_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving({"/": (200, {}, b"")}) as server, Client(proxied=False) as client:
        assert client.request("GET", f"{server.address}/").status == 200


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_refuses_is_one_line(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    retries: list[str] = []
    with (
        serving(tunnel=status) as proxy,
        Registry("registry.example", QUICK, retries.append) as there,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        with pytest.raises(OutsideError) as caught:
            there.head("x", "y")
    refused = f"registry.example: the proxy refused: Tunnel connection failed: {status}"
    assert refused in caught.value.message
    assert "HTTPS_PROXY" in caught.value.fix
    assert retries == []  # asking again would not help


def test_a_proxy_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free.getsockname()[1]}")
    with (
        Registry("registry.example", QUICK) as there,
        pytest.raises(
            OutsideError, match=r"through HTTPS_PROXY: .*Connection refused.* \(tried 2 times\)"
        ),
    ):
        there.head("x", "y")


def test_a_proxy_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    with Registry("registry.example", QUICK) as there, pytest.raises(OutsideError) as caught:
        there.head("x", "y")
    assert "registry.example through HTTPS_PROXY: no such host" in caught.value.message
    assert caught.value.fix == "correct the name of the proxy"


def test_a_proxy_of_another_kind_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy:1080")
    with (
        Registry("registry.example", QUICK) as there,
        pytest.raises(InputError, match="socks5://proxy") as caught,
    ):
        there.head("x", "y")
    assert "NO_PROXY" in caught.value.fix


def test_a_host_that_says_nothing_is_given_up_on() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(read=0.05) as client,
        pytest.raises(HTTPError, match="timed out"),
    ):
        client.request("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/")


def test_a_page_that_breaks_off_is_an_error() -> None:
    class Torn(Handler):
        def answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True

        do_GET = answer  # noqa: N815

    with serving() as server, Client() as client:
        server.RequestHandlerClass = Torn
        with pytest.raises(HTTPError, match="IncompleteRead"):
            client.request("GET", f"{server.address}/")
        with pytest.raises(HTTPError, match="IncompleteRead"):
            list(client.request("GET", f"{server.address}/", stream=True).stream(2))


def test_a_named_host_may_show_any_certificate(tmp_path: Path) -> None:
    with serving({"/": (200, {}, b"yes")}) as server:
        tls.encrypt(server, tls.certificate(tmp_path))
        host = f"127.0.0.1:{server.server_port}"
        for unchecked in ((), ("127.0.0.1:1",)):
            with Client(unchecked=unchecked) as client, pytest.raises(HTTPError, match="VERIFY"):
                client.request("GET", f"https://{host}/")
        with Client(unchecked=(host,)) as client:
            assert client.request("GET", f"https://{host}/").data == b"yes"


@pytest.mark.parametrize(
    ("named", "is_meant"),
    [
        ("index.example", True),
        ("index.example:8443", True),
        ("https://index.example:8443", True),
        ("*", True),
        ("index.example:443", False),
        ("http://index.example", False),
        ("example", False),
        ("index.example:port", False),
    ],
)
def test_hosts_whose_certificates_are_not_looked_at(named: str, is_meant: bool) -> None:
    assert web.matches_host(named, "https://index.example:8443/simple/one.whl") is is_meant
