"""HTTP with the certificates and proxies of this host, over connections that are kept.

It uses urllib3, which loads in a third of the time of a larger client: most of the time from a
changed line of code to a pushed image is Python's loading.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urljoin, urlsplit

from builder.core import addresses
from builder.core.addresses import Address
from builder.core.errors import InputError, OutsideError

if TYPE_CHECKING:
    import urllib3

REDIRECTS: Final = 5
"""How many redirects of one request are followed."""
THREADS: Final = 8
"""How many connections to a host are kept for the next requests."""
DEADLINE: Final = 300.0
"""Seconds that the body of one answer may take."""
SLOWEST: Final = 50_000
"""Bytes a second that a large body has to arrive with, on top of DEADLINE."""
_PIECE: Final = 1 << 18
"""Bytes of a body that are waited for. TLS brings 16 KiB at a time: what is done for each piece
would cost more than the bytes."""
MOVED: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Answer:
    """A whole answer: its body was read within bounds of size and time."""

    status: int
    reason: str
    headers: urllib3.HTTPHeaderDict
    data: bytes


@dataclass(kw_only=True, eq=False)
class Client:
    """Connections to any number of hosts, for any number of threads; a context manager."""

    proxied: bool = True
    """Whether the environment's proxies are used."""
    connect: float = 20.0
    read: float = 60.0
    """`connect` and `read`: seconds to wait for a connection, and for each piece of an answer."""
    context: ssl.SSLContext | None = None
    """Whose certificates are trusted, and which one is shown; None for what `trust` returns."""
    unchecked: Collection[str] = ()
    """Hosts (see `matches_host`) that may show any certificate: only for content that is compared
    with a known checksum."""
    _pools: dict[tuple[str, str | None, bool], urllib3.PoolManager] = field(
        default_factory=dict, init=False
    )
    _peers: dict[str, Address] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use. A later request opens a new one."""
        for pool in self._pools.values():
            pool.clear()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        follow: bool = False,
        wait: float | None = None,
        named_by: str = "",
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer of any status, whose body the caller reads (`body_of`).

        With `follow`, it is the answer after all redirects. User and password of an address are
        sent as Basic. A redirect to another host gets no Authorization header: the addresses that
        registries redirect to carry their own. A body in pieces needs a Content-Length among
        `headers`. wait: seconds to wait for the answer's headers, where `read` is too short.
        named_by: the address whose answer named this one, as a redirect does; "" for none.
        Raises urllib3's HTTPError where there is no answer, InputError for a proxy that cannot be
        used, OutsideError for a redirect to plain http, into a private network, or in a circle.
        """
        import urllib3

        # each piece of a body has to be taken within the time for a connection
        timeout = urllib3.Timeout(
            connect=max(self.connect, self.read) if wait else self.connect, read=wait or self.read
        )
        sent = {"User-Agent": "training-image-factory", **(headers or {})}
        for _ in range(1 + REDIRECTS * follow):
            bare, login = without_login(url)
            if login:
                sent["Authorization"] = f"Basic {login}"
            way = _Way(bare, named_by, self._peers)
            way.check()
            before = _WAY.set(way)
            try:
                response = self._pool(bare).request(
                    method,
                    bare,
                    headers=sent,
                    body=body,
                    redirect=False,
                    retries=False,
                    timeout=timeout,
                    preload_content=False,
                    decode_content=False,
                )
            finally:
                _WAY.reset(before)
            target = joined(url, response.headers.get("Location") or "")
            if not (follow and target and response.status in MOVED):
                return response
            response.close()
            named_by, url = bare, target
            if origin(url) != origin(bare):
                sent.pop("Authorization", None)
        raise _endless(url, f"{REDIRECTS} redirects")

    def answer(
        self,
        method: str,
        url: str,
        *,
        most: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        follow: bool = False,
        wait: float | None = None,
        named_by: str = "",
    ) -> Answer:
        """Return what `request` does, with a body of at most `most` bytes, within DEADLINE.

        Raises OutsideError for a body beyond that.
        """
        data = bytearray()
        with self.request(
            method, url, headers=headers, body=body, follow=follow, wait=wait, named_by=named_by
        ) as response:
            for piece in body_of(response, url, DEADLINE, decode=True):
                data += piece
                if len(data) > most:
                    raise _endless(url, f"{most} bytes")
        return Answer(response.status, response.reason or "", response.headers, bytes(data))

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return self.context or trust()

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the connections to this address, through its proxy where it has one."""
        import urllib3

        scheme, proxy = urlsplit(url).scheme, proxy_of(url) if self.proxied else None
        blind = scheme == "https" and any(matches_host(host, url) for host in self.unchecked)
        if (scheme, proxy, blind) not in self._pools:
            options: dict[str, Any] = {"maxsize": THREADS}
            if proxy or scheme == "https":  # reading certificates takes time
                options["ssl_context"] = _blind() if blind else self._trust
            pool = (
                _proxy_manager(proxy, options, self._trust)
                if proxy
                else urllib3.PoolManager(**options)
            )
            pool.pool_classes_by_scheme = _pool_classes()
            self._pools[scheme, proxy, blind] = pool
        return self._pools[scheme, proxy, blind]


# --- bounds of time -------------------------------------------------------------------------------


class _Limit:
    """Shuts a socket down after so many seconds, so that who reads from it gets no more of it.

    A time-out of the socket itself begins again with each byte.
    """

    def __init__(self, seconds: float, shut_down: Callable[[], object]) -> None:
        self.passed = False
        self._shut_down = shut_down
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _pass(self) -> None:
        self.passed = True
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # it ended just now
            self._shut_down()


def body_of(
    response: urllib3.BaseHTTPResponse, url: str, seconds: float, *, decode: bool = False
) -> Iterator[bytes]:
    """Yield an answer's body in pieces. decode: whether to undo Content-Encoding.

    Raises OutsideError where it takes longer than `seconds`, urllib3's HTTPError where it breaks.
    """
    from urllib3.exceptions import HTTPError

    with _Limit(seconds, response.shutdown) as limit:
        try:
            while piece := response.read(_PIECE, decode_content=decode):
                yield piece
        except HTTPError:
            if not limit.passed:
                raise
    if limit.passed:
        raise _endless(url, f"{seconds:.0f} s")


def _endless(url: str, bound: str) -> OutsideError:
    return OutsideError(
        f"{urlsplit(url).netloc.rpartition('@')[2]}: an answer of more than {bound}",
        "look whether the address is right, and what the server sends there",
    )


@cache
def _pool_classes() -> dict[str, Any]:
    """Return urllib3's classes, with all headers of an answer within the time for one read."""
    from urllib3 import connectionpool

    def bounded(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def request(self, *arguments: Any, **options: Any) -> Any:
                if self.sock is None:
                    self.connect()
                if (way := _WAY.get()) and not self.proxy:
                    way.connected(self.sock.getpeername()[0])
                return super().request(*arguments, **options)

            def getresponse(self) -> Any:
                shut_down = functools.partial(self.sock.shutdown, socket.SHUT_RD)
                with _Limit(self.timeout, shut_down) as limit:
                    try:
                        return super().getresponse()
                    finally:
                        if limit.passed:  # what came until then may look like all headers
                            raise TimeoutError

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    http, https = connectionpool.HTTPConnectionPool, connectionpool.HTTPSConnectionPool
    return {"http": bounded(http), "https": bounded(https)}


# --- certificates ---------------------------------------------------------------------------------


def trust(cafile: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of `cafile`, else those of this host.

    The host trusts those of SSL_CERT_FILE, else the system's, else certifi's. Takes 30 ms.
    """
    paths = ssl.get_default_verify_paths()
    if cafile is None and not (paths.cafile or paths.capath):
        import certifi

        cafile = certifi.where()
    return ssl.create_default_context(cafile=cafile)


def matches_host(host: str, url: str) -> bool:
    """Return whether HOST, HOST:PORT, a URL of either, or `*` for every host, is that of `url`.

    The same words as uv's `--allow-insecure-host` (uv-configuration, trusted_host.rs) and pip's
    `--trusted-host`.
    """
    target, named = urlsplit(url), urlsplit(host if "://" in host else f"//{host}")
    try:
        port = named.port or target.port
    except ValueError:  # no number: uv has said so
        return False
    known = (named.scheme or target.scheme, named.hostname, port)
    return host == "*" or known == (target.scheme, target.hostname, target.port)


def _blind() -> ssl.SSLContext:
    """Return a context that takes any certificate, without a warning at each request."""
    import urllib3

    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# --- addresses ------------------------------------------------------------------------------------


def joined(base: str, place: str) -> str | None:
    """Return the http or https address that `place` means on a page at `base`; None for others."""
    try:
        whole = urljoin(base, place)
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return whole if place and usable and whole.isprintable() else None


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address that `joined` takes, however they are written."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").rstrip("."), port


@dataclass(frozen=True)
class _Way:
    """What one request may connect to."""

    url: str
    """What the caller asked for."""
    named_by: str
    """The address whose host named it, "" for the caller's own."""
    peers: dict[str, Address]
    """Host -> the address that it had at last."""

    def check(self) -> None:
        """Raise OutsideError where an answer leads to plain http instead of https, or from a public
        host into a network that only this machine can see."""
        if not self.named_by:
            return
        (scheme, old, _), (new_scheme, host, port) = origin(self.named_by), origin(self.url)
        if scheme == "https" != new_scheme:
            raise self._bad_redirect(f"{host} in plain text")
        for address in addresses.of(host, port) if host != old else ():
            self._check(address)

    def connected(self, text: str) -> None:
        """Take the address that the host had, which a name server may have changed since the check.
        Raises OutsideError as `check` does."""
        address = addresses.parse(text)
        if self.named_by:
            self._check(address)
        self.peers[origin(self.url)[1]] = address

    def _check(self, address: Address) -> None:
        _, host, port = origin(self.named_by)
        if host == origin(self.url)[1]:
            return
        old = {self.peers[host]} if host in self.peers else addresses.of(host, port)
        inside = bool(old) and all(map(addresses.is_hidden, old))
        hidden = addresses.is_hidden(address) and not inside
        if address not in old and (hidden or addresses.tells_secrets(address)):
            raise self._bad_redirect(f"the private address {address}")

    def _bad_redirect(self, where: str) -> OutsideError:
        host = origin(self.named_by)[1]
        return OutsideError(
            f"{host} redirects to {where}", f"do not trust this answer: look who answers for {host}"
        )


_WAY: ContextVar[_Way | None] = ContextVar("way", default=None)


def without_login(url: str) -> tuple[str, str]:
    """Return an address without user and password, and these encoded for Basic ("" for none)."""
    parts = urlsplit(url)
    if not parts.username:
        return url, ""
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return bare, basic(unquote(parts.username), unquote(parts.password or ""))


def basic(username: str, password: str) -> str:
    """Return user and password as an Authorization header has them after `Basic`."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()


# --- proxies --------------------------------------------------------------------------------------


def proxy_of(url: str) -> str | None:
    """Return the address of the proxy that the environment names for `url`, None for none."""
    from urllib.request import getproxies, proxy_bypass

    proxies, target = getproxies(), urlsplit(url)
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(target.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _proxy_manager(
    proxy: str, options: Mapping[str, Any], trusted: ssl.SSLContext
) -> urllib3.ProxyManager:
    import urllib3

    address = urlsplit(proxy)
    if address.scheme not in ("http", "https"):
        raise InputError(
            f"the environment names the proxy {address.scheme}://{address.hostname}, whose kind "
            "is not supported",
            "name an http:// or https:// proxy in HTTPS_PROXY, or leave the host out in NO_PROXY",
        )
    bare, login = without_login(proxy)
    headers = {"Proxy-Authorization": f"Basic {login}"} if login else {}
    return urllib3.ProxyManager(bare, proxy_headers=headers, proxy_ssl_context=trusted, **options)
