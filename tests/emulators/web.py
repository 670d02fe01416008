"""The HTTP server under every emulator."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
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
