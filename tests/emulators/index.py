"""Files on loopback, as an index's server sends them, and what can go wrong with a download."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.emulators.web import LoopbackServer, QuietHandler, answering


class Files(LoopbackServer):
    """A server of `content` by path; it understands ranges.

    torn: how many answers from now on end in the middle. statuses: of the next answers, 200 for
    the file. ranges: whether a range is sent where one is wanted. requests: path and range of each.
    between: is called before each half of an answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.logins: list[str] = []
        self.torn = 0
        self.statuses: list[int] = []
        self.ranges = True
        self.between: Callable[[], None] = lambda: None

    def url(self, path: str) -> str:
        """The address of a file."""
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(QuietHandler):
    server: Files

    def do_GET(self) -> None:  # noqa: N802
        begins = self.headers.get("Range", "")
        self.server.requests.append((self.path, begins))
        self.server.logins.append(self.headers.get("Authorization", ""))
        content = self.server.content.get(self.path)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if content is None or status != 200:
            self.reply(404 if content is None else status)
            return
        begin = int(begins.removeprefix("bytes=").partition("-")[0]) if begins else 0
        ranged = self.server.ranges and begin > 0
        body = content[begin:] if ranged else content
        self.send_response(416 if ranged and not body else 206 if ranged else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        for number, piece in enumerate((body[:half], body[half:])):
            self.server.between()
            if number == 1 and self.server.torn:
                self.server.torn -= 1
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                self.wfile.write(piece)
                self.wfile.flush()


@contextlib.contextmanager
def serving() -> Iterator[Files]:
    """A server that is up for a block."""
    with answering(Files()) as server:
        yield server
