"""What the loopback services of Google share: REST, refusals and faults on demand, who may do what,
and Cloud Logging, whose entries come in pages, and as late and as often as the faults say.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf import json_format

from tests.emulators.web import QuietHandler, burst

_METHODS = re.compile(r".*(:testIamPermissions|/iam/testPermissions)")


class Refused(Exception):
    """An answer with an error: HTTP status, the API's own name for it, a message."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    bursts: (pattern of `METHOD path`, HTTP status, how often). cut_create: something is created,
    and the connection breaks before the answer, so many times. stay_queued: for ever. late_entries:
    so many of the newest log entries are not seen yet. double_entries: each is delivered twice.
    """

    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut_create: int = 0
    stay_queued: bool = False
    late_entries: int = 0
    double_entries: bool = False


class Service:
    """A project of one service: its log's entries, its faults, and the calls so far.

    missing: permissions that the caller lacks. entries_page: how many make a page.
    """

    entries_page = 1000

    def __init__(self, faults: Any) -> None:
        self.faults = faults
        self.lock = threading.RLock()
        self.missing: set[str] = set()
        self.entries: list[dict[str, Any]] = []
        self.calls: list[str] = []

    def burst(self, call: str) -> None:
        """Note a call, and refuse it where it is its turn."""
        self.calls.append(call)
        with self.lock:
            status = burst(self.faults.bursts, call)
        if status:
            raise Refused(status, "UNAVAILABLE", "The service is currently unavailable.")

    def logged(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the entries that fit a filter."""
        faults, start = self.faults, int(wanted.get("pageToken") or 0)
        with self.lock:
            seen = self.entries[: len(self.entries) - faults.late_entries]
            faults.late_entries = max(0, faults.late_entries - 1)
        entries = [entry for entry in seen if _fits(entry, wanted["filter"])]
        entries = [entry for entry in entries for _ in range(1 + faults.double_entries)]
        newest = wanted["orderBy"].endswith(" desc")
        entries.sort(key=lambda entry: datetime.fromisoformat(entry["timestamp"]), reverse=newest)
        end = start + min(int(wanted["pageSize"]), self.entries_page)
        more = {"nextPageToken": str(end)} if end < len(entries) else {}
        return {"entries": entries[start:end], **more}


def _fits(entry: dict[str, Any], text: str) -> bool:
    for name, operator, value in re.findall(r'([\w.]+)(>?=)"([^"]*)"', text):
        held: Any = entry
        for part in name.split("."):
            held = held.get(part, {})
        late = operator == ">=" and datetime.fromisoformat(held) < datetime.fromisoformat(value)
        if late or (operator == "=" and held != value):
            return False
    return True


class Handler(QuietHandler):
    """Answers for a service. `route` takes what is the service's own."""

    service: Any

    def route(self, path: str) -> None:
        raise Refused(404, "NOT_FOUND", f"no method at {path}")

    def _serve(self) -> None:
        self.body = self.content()
        parts = urlsplit(self.path)
        path, queries = unquote(parts.path), parse_qs(parts.query)
        self.query = {name: values[0] for name, values in queries.items()}
        try:
            self.service.burst(f"{self.command} {path}")
            if path == "/v2/entries:list":
                self.json(self.service.logged(json.loads(self.body)))
            elif _METHODS.fullmatch(path):
                asked = json.loads(self.body or b"{}").get("permissions") or queries["permissions"]
                held = [each for each in asked if each not in self.service.missing]
                self.json({"permissions": held})
            else:
                self.route(path)
        except Refused as refused:
            error = {"code": refused.code, "message": refused.message, "status": refused.status}
            self.json({"error": error}, refused.code)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def message(self, value: Any) -> None:
        """Answer with a message of the product."""
        with self.service.lock:
            text = type(value).to_json(value, use_integers_for_enums=False)
        self.reply(200, text.encode(), {"Content-Type": "application/json"})

    def read(self, kind: Any) -> Any:
        """Return the message in a request."""
        message = kind.pb(kind())
        try:
            json_format.Parse(self.body.decode(), message)
        except json_format.ParseError as error:
            what = f"Invalid JSON payload received. {error}"
            raise Refused(400, "INVALID_ARGUMENT", what) from None
        return kind.wrap(message)

    def created(self) -> bool:
        """Tell whether a create is answered; else its connection breaks before the answer."""
        with self.service.lock:
            self.service.faults.cut_create -= 1
            answered = self.service.faults.cut_create < 0
        if not answered:
            self.cut()
        return answered
