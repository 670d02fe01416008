"""Loopback Cloud Logging, and what else a job's service is asked by REST: buckets and access.

Entries come in pages; the newest may come late, and each twice, as the faults of the service say.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf import json_format
from google.rpc import error_details_pb2

from tests.emulators import access
from tests.emulators.web import QuietHandler


class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, the API's own name for it, a message.

    reason: of the ErrorInfo among the details of the error, such as SERVICE_DISABLED.
    """

    def __init__(self, code: int, status: str, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.status, self.message, self.reason = code, status, message, reason

    @property
    def details(self) -> list[error_details_pb2.ErrorInfo]:
        detail = error_details_pb2.ErrorInfo(reason=self.reason, domain="googleapis.com")
        return [detail] if self.reason else []


def written(when: datetime) -> str:
    """Return a moment as the APIs write it."""
    return when.isoformat().replace("+00:00", "Z")


class Handler(QuietHandler):
    """Answers for a service: the entries of its jobs' logs, its buckets, and who may do what."""

    service: Any

    def _serve(self) -> None:
        self.body = self.content()
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            self.service.burst(f"{self.command} {path}")
            if path == "/v2/entries:list":
                self._entries()
            elif bucket := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
                self._bucket(bucket[1])
            elif self.service.access.answers(path):
                query, body = parse_qs(parts.query), json.loads(self.body or b"{}")
                self.json(self.service.access.answer(path, query, body))
            else:
                raise Refused(404, "NOT_FOUND", f"no method at {path}")
        except (Refused, access.Refused) as refused:
            error: dict[str, Any] = {"code": refused.code, "message": refused.message}
            error["status"] = refused.status
            error["details"] = [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo"}
                | json_format.MessageToDict(each)
                for each in getattr(refused, "details", ())
            ]
            self.json({"error": error}, refused.code)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _entries(self) -> None:
        """Entries of one job, in pages."""
        wanted = json.loads(self.body)
        text = wanted.get("filter", "")
        job = re.search(r'resource\.labels\.job_id="([^"]+)"', text)
        task = re.search(r'resource\.labels\.task_name="([^"]+)"', text)
        since = re.findall(r'\b(timestamp|receiveTimestamp)>="([^"]+)"', text)
        faults = self.service.faults
        with self.service.lock:
            seen = self.service.entries[: len(self.service.entries) - faults.late_entries]
            faults.late_entries = max(0, faults.late_entries - 1)
        entries = [
            each
            for each in seen
            if job and each["resource"]["labels"]["job_id"] == job[1]
            if task is None or each["resource"]["labels"]["task_name"] == task[1]
            if all(
                datetime.fromisoformat(each[field]) >= datetime.fromisoformat(begin)
                for field, begin in since
            )
        ]
        if faults.double_entries:
            entries = [each for each in entries for _ in range(2)]
        entries.sort(key=lambda each: datetime.fromisoformat(each["timestamp"]))
        start = int(wanted.get("pageToken") or 0)
        end = start + min(int(wanted.get("pageSize") or 50), self.service.entries_page)
        more = {"nextPageToken": str(end)} if end < len(entries) else {}
        self.json({"entries": entries[start:end], **more})

    def _bucket(self, name: str) -> None:
        if name not in self.service.buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        location, kind = self.service.buckets[name]
        known = {"kind": "storage#bucket", "id": name, "name": name}
        self.json({**known, "location": location.upper(), "locationType": kind})
