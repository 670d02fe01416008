"""The engine's socket that steps get: a proxy that translates names (names.py).

It speaks HTTP/1.1 as Docker's clients do. A connection carries one request: the proxy asks the
engine to close it after the answer. A connection that is upgraded (`docker run -i`, `docker exec`,
BuildKit) and the body of every stream pass through unchanged.
"""

import contextlib
import http.client
import json
import secrets
import socket
import socketserver
import threading
import weakref
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO

from cloudbuild_local.runner.names import Names

_CHUNK = 1 << 16


class Proxy:
    """A proxy at a socket of its own, until `close`."""

    def __init__(self, socket: str, engine: str, names: Names) -> None:
        """Begin to answer. socket: the path of the new socket. engine: that of the engine's own."""
        self.socket = socket
        self._server = _Server(socket, engine, names)
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        """End what is under way, and remove the socket."""
        self._server.shutdown()
        self._server.end()
        self._server.server_close()
        Path(self.socket).unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, path: str, engine: str, names: Names) -> None:
        super().__init__(path, _Connection)
        self.engine, self.names = engine, names
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def upstream(self) -> socket.socket:
        """Return a connection to the engine."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.engine)
        self._open.add(connection)
        return connection

    def end(self) -> None:
        """End what is still under way."""
        _end(*self._open)

    def handle_error(self, request: object, client_address: object) -> None:
        """Do nothing: a step's program or the engine went away, and the other side sees the end."""


class _Connection(socketserver.StreamRequestHandler):
    """One request of a step."""

    server: _Server

    def handle(self) -> None:
        words = self.rfile.readline(_CHUNK).decode("latin-1").split()
        if len(words) != 3:
            return
        method, target, version = words
        headers = http.client.parse_headers(self.rfile)
        names = self.server.names
        body = b""
        if "upgrade" not in headers.get("Connection", "").lower():
            if "json" in headers.get("Content-Type", ""):
                body = _body(self.rfile, headers)
                if body.strip():
                    body = json.dumps(names.body(method, target, json.loads(body))).encode()
                _sized(headers, body)
            del headers["Connection"], headers["Expect"]
            headers["Connection"] = "close"
        translated = names.target(method, target, unnamed=f"unnamed_{secrets.token_hex(4)}")
        with self.server.upstream() as engine, engine.makefile("rb") as answer:
            engine.sendall(_head(f"{method} {translated} {version}", headers) + body)
            pump = threading.Thread(target=_pump, args=[self.rfile, engine])
            pump.start()
            try:
                self._answer(method, target, answer)
            finally:
                _end(self.connection, engine)
                pump.join()

    def _answer(self, method: str, target: str, answer: BinaryIO) -> None:
        names = self.server.names
        status = answer.readline(_CHUNK).decode("latin-1").rstrip("\r\n")
        if not status:
            return
        headers = http.client.parse_headers(answer)
        if headers["Builder-Version"]:  # a worker's engine builds without BuildKit by default
            headers.replace_header("Builder-Version", "1")
        refused = int(status.split()[1]) >= 400
        has_names = refused or names.has_names(target)
        if not has_names or method == "HEAD" or "json" not in headers.get("Content-Type", ""):
            self.connection.sendall(_head(status, headers))
            _pump(answer, self.connection)
            return
        body = _body(answer, headers)
        body = names.restored(body) if refused else names.answer(target, body)
        _sized(headers, body)
        self.connection.sendall(_head(status, headers) + body)


def _head(first: str, headers: Message) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _sized(headers: Message, body: bytes) -> None:
    """Set the headers to the length of this body."""
    del headers["Transfer-Encoding"], headers["Content-Length"]
    headers["Content-Length"] = str(len(body))


def _body(stream: Any, headers: Message) -> bytes:
    """Read the whole body of a request, or of an answer after which the connection is closed."""
    if "chunked" not in headers.get("Transfer-Encoding", ""):
        length = headers["Content-Length"]
        return bytes(stream.read(int(length) if length else -1))
    body = bytearray()
    while size := int(stream.readline(_CHUNK).partition(b";")[0], 16):
        body += stream.read(size)
        stream.readline(_CHUNK)
    while stream.readline(_CHUNK).strip():
        pass  # trailers
    return bytes(body)


def _pump(source: Any, target: socket.socket) -> None:
    """Copy to the end of the stream, then shut down the other side for writing."""
    with contextlib.suppress(OSError, ValueError):
        while chunk := source.read1(_CHUNK):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _end(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
