"""Files on loopback, as an index's server sends them, and what can go wrong with a download."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence

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


def simple(
    path: str,
    wheels: Mapping[tuple[str, str], Sequence[str]],
    days: Mapping[str, str] | None = None,
) -> dict[str, tuple[int, dict[str, str], bytes]]:
    """Return the answers of an index below `path` (PEP 691): its wheels by name and version, each
    with what it requires. days: when a version was uploaded."""
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
    rows: dict[str, list[dict[str, object]]] = {}
    for (name, version), requires in wheels.items():
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            info = f"{name.replace('-', '_')}-{version}.dist-info"
            lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
            lines += [f"Requires-Dist: {each}" for each in requires]
            archive.writestr(f"{info}/METADATA", "\n".join([*lines, ""]))
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
            archive.writestr(f"{info}/RECORD", "")
        content = buffer.getvalue()
        answers[f"{path}/{file}"] = (200, {}, content)
        digest = hashlib.sha256(content).hexdigest()
        row: dict[str, object] = {"filename": file, "hashes": {"sha256": digest}}
        row["url"] = f"{path}/{file}".replace("+", "%2B")
        row |= {"upload-time": days[version]} if days else {}
        rows.setdefault(name, []).append(row)
    answers |= {key.replace("+", "%2B"): answer for key, answer in answers.items()}
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    for name, files in rows.items():
        versions = [version for other, version in wheels if other == name]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": versions, "files": files}
        answers[f"{path}/{name}/"] = (200, kind, json.dumps(page).encode())
    return answers
