"""The engine's socket as steps see it: a proxy that translates names (names.py).

It speaks HTTP/1.1 as Docker's clients do. A connection carries one request: the engine is asked to
close it after the answer. A connection that is upgraded (`docker run -i`, `docker exec`, BuildKit)
and the body of every stream pass as they are.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import shutil
import socket
import socketserver
import tempfile
import threading
import weakref
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO

from builder.cloudbuild.runner.names import Names
from builder.engine import containers

_PLACE = "cloudbuild_"
_CHUNK = 1 << 16


class Proxy:
    """A context manager: the socket is there within it. socket: its path."""

    def __init__(self, engine: str, owner: str) -> None:
        """engine: the path of the engine's own socket. owner: as containers.owner says it."""
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PLACE}{owner.replace(':', '_')}_"))
        self.socket = str(self.folder / "s")
        self.engine = engine
        self._server: _Server | None = None

    def serve(self, names: Names) -> None:
        """Begin to answer, by these names."""
        self._server = _Server(self.socket, self.engine, names)
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.end()
            self._server.server_close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep() -> None:
    """Remove the sockets of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PLACE}*"):
        owner = folder.name.removeprefix(_PLACE).split("_", 3)  # the last, random part may have _
        if len(owner) == 4 and containers.is_gone(":".join(owner[:3])):
            shutil.rmtree(folder, ignore_errors=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, path: str, engine: str, names: Names) -> None:
        super().__init__(path, _Connection)
        self.engine, self.names = engine, names
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def upstream(self) -> socket.socket:
        """A connection to the engine."""
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.connect(self.engine)
        self._open.add(there)
        return there

    def end(self) -> None:
        """End what is still under way."""
        _end(*self._open)

    def handle_error(self, request: object, client_address: object) -> None:
        """A program of a step that went away, or an engine that did: the other side sees the
        end."""


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
        asked = names.target(method, target, unnamed=f"unnamed_{secrets.token_hex(4)}")
        with self.server.upstream() as there, there.makefile("rb") as answer:
            there.sendall(_head(f"{method} {asked} {version}", headers) + body)
            pump = threading.Thread(target=_pump, args=[self.rfile, there])
            pump.start()
            try:
                self._answer(method, target, answer)
            finally:
                _end(self.connection, there)
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
        told = refused or names.is_told(target)
        if not told or method == "HEAD" or "json" not in headers.get("Content-Type", ""):
            self.connection.sendall(_head(status, headers))
            _pump(answer, self.connection)
            return
        body = _body(answer, headers)
        body = names.shown(body) if refused else names.answer(target, body)
        _sized(headers, body)
        self.connection.sendall(_head(status, headers) + body)


def _head(first: str, headers: Message) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _sized(headers: Message, body: bytes) -> None:
    """Let the headers say the length of this body."""
    del headers["Transfer-Encoding"], headers["Content-Length"]
    headers["Content-Length"] = str(len(body))


def _body(stream: Any, headers: Message) -> bytes:
    """The whole body of a request or of an answer after which the connection is closed."""
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
    """Copy to the end of the stream, and tell the other side that it was the end."""
    with contextlib.suppress(OSError, ValueError):
        while chunk := source.read1(_CHUNK):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _end(*connections: socket.socket) -> None:
    for one in connections:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
