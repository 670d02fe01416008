"""A server on loopback that answers by path: a status, headers, a body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulators.web import LoopbackServer, QuietHandler, answering


class Server(LoopbackServer):
    """Answers by path: a status, headers, a body. `seen`: method, path and headers of each request.

    CONNECT is answered with `tunnel`; what would go through the tunnel does not get far.
    """

    def __init__(self, answers: dict[str, tuple[int, dict[str, str], bytes]], tunnel: int = 200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.tunnel = tunnel
        self.sent = 0
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    server: Server

    def answer(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        status, headers, body = self.server.answers.get(self.path, (404, {}, b""))
        self.reply(status, body, headers)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

    def do_CONNECT(self) -> None:  # noqa: N802
        self.server.seen.append(("CONNECT", self.path, dict(self.headers)))
        self.send_response(self.server.tunnel)
        self.end_headers()
        self.close_connection = True


@contextmanager
def serving(
    answers: dict[str, tuple[int, dict[str, str], bytes]] | None = None, tunnel: int = 200
) -> Iterator[Server]:
    with answering(Server(answers or {}, tunnel)) as server:
        yield server
