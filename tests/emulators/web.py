"""The HTTP server under every emulator."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """Answers each request in a thread of its own; these end with the process.

    A client that goes away in the middle is part of many tests. It leaves no traceback on stderr,
    which by then may belong to another test.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
