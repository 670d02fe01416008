"""A loopback proxy before a registry that goes wrong on purpose.

Requests pass through unchanged until a `Fault` fits; then the fault happens: an error status after
some bytes of the upload were read, a torn connection, an answer with other bytes. Without a
registry behind it, every request that no fault fits is a 404.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.emulators.web import LoopbackServer, QuietHandler, answering

CHUNK = 64 * 1024


@dataclass
class Fault:
    """What goes wrong, for which requests, how often.

    status: the answer instead of the registry's; None tears the connection. after: bytes of the
    request's body that are read (and sent on) before. times: how often, None for always.
    change: keeps the registry's answer but for its body. instead: asks the registry for another
    path. before: called first. happened: counts.
    """

    method: str
    path: str
    status: int | None = 500
    after: int = 0
    times: int | None = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    change: Callable[[bytes], bytes] | None = None
    instead: str | None = None
    before: Callable[[], None] | None = None
    happened: int = 0

    def fits(self, method: str, path: str) -> bool:
        """Whether it is this request's turn."""
        spent = self.times is not None and self.happened >= self.times
        return not spent and method == self.method and bool(re.search(self.path, unquote(path)))


class FaultProxy(LoopbackServer):
    """`host` is what an image reference names; `seen` holds every request line in order."""

    def __init__(
        self, registry: str | None = None, handler: type[QuietHandler] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler or FaultHandler)
        self.registry = registry
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.lock = threading.Lock()

    @property
    def host(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.server_address[1]}"

    def take(self, method: str, path: str) -> Fault | None:
        """The fault that happens to this request, counted."""
        with self.lock:
            self.seen.append(f"{method} {unquote(path)}")
            for fault in self.faults:
                if fault.fits(method, path):
                    fault.happened += 1
                    return fault
        return None

    def count(self, pattern: str) -> int:
        """How many requests fit."""
        return sum(bool(re.search(pattern, line)) for line in self.seen)


class FaultHandler(QuietHandler):
    server: FaultProxy

    def handle(self) -> None:
        if not isinstance(self.connection, ssl.SSLSocket):
            first = self.connection.recv(1, socket.MSG_PEEK)
            if first == b"\x16":  # a TLS hello: engines try that first, and know this answer
                self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                return
        super().handle()

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left and (data := self.rfile.read(min(left, CHUNK))):
            left -= len(data)
            yield data

    def _pass(self) -> None:
        fault = self.server.take(self.command, self.path)
        if fault and fault.before:
            fault.before()
        if fault and not fault.change and not fault.instead:
            self._fail(fault)
        elif self.server.registry is None:
            self._answer(404, {}, b"")
        else:
            self._forward(self.server.registry, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _pass  # noqa: N815

    def _fail(self, fault: Fault) -> None:
        read = 0
        if fault.after:
            for data in self._body():
                read += len(data)
                if read >= fault.after:
                    break
        self.close_connection = True
        if fault.status is None:
            self.cut()
            return
        self._answer(fault.status, {**fault.headers, "Connection": "close"}, fault.body)

    def _forward(self, registry: str, fault: Fault | None) -> None:
        upstream = http.client.HTTPConnection(registry, timeout=60)
        try:
            path = fault.instead if fault and fault.instead else self.path
            upstream.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
            chunked = "Transfer-Encoding" in self.headers
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    upstream.putheader(name, value)
            upstream.endheaders()
            for data in self._body():
                upstream.send(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
            if chunked:
                upstream.send(b"0\r\n\r\n")
            answer = upstream.getresponse()
            body = b"" if self.command == "HEAD" else answer.read()
            headers = dict(answer.getheaders())
            if fault and fault.change:
                body = fault.change(body)
                headers["Content-Length"] = str(len(body))
            self._answer(answer.status, headers, body)
        except OSError:
            self.close_connection = True
            self.connection.close()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "transfer-encoding":
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def faulty(registry: str | None = None, *faults: Fault) -> Iterator[FaultProxy]:
    """A running proxy before `registry` (HOST:PORT)."""
    proxy = FaultProxy(registry)
    proxy.faults.extend(faults)
    with answering(proxy):
        yield proxy
