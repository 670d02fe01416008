"""The HTTP server under every emulator."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class LoopbackServer(ThreadingHTTPServer):
    """Answers each request in a thread of its own; these end with the process.

    A client that goes away in the middle is part of many tests. It leaves no traceback on stderr,
    which by then may belong to another test.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class QuietHandler(BaseHTTPRequestHandler):
    """Answers over HTTP/1.1, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer in two writes takes 40 ms

    def log_message(self, format: str, *args: object) -> None:
        pass

    def content(self) -> bytes:
        """Read the body of a request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, data: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        """Answer; a HEAD without the body."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def cut(self) -> None:
        """Break the connection, as a broken line would: with a reset."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def json(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def burst(bursts: list[tuple[str, int, int]], call: str) -> int | None:
    """Return the status with which a call is refused, None where it is not its turn.

    bursts: (pattern of `METHOD path`, HTTP status, how often), which this counts down.
    """
    for number, (pattern, status, count) in enumerate(bursts):
        if count and re.search(pattern, call):
            bursts[number] = (pattern, status, count - 1)
            return status
    return None


@contextlib.contextmanager
def answering(server: Server) -> Iterator[Server]:
    """A server that answers requests inside of the block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
