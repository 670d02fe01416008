"""Who may do what: Service Usage, and the IAM methods of the services that a build needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_METHODS = re.compile(
    r".*(:testIamPermissions|:getIamPolicy|/services:batchGet|/iam(/.*)?|/consumerQuotaMetrics)"
    r"|/v1/projects/[^/:]+"
)


class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, the API's own name for it, a message."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


@dataclass
class Access:
    """Answers of one project. Everything is allowed until a test takes something away.

    disabled: APIs. missing: permissions that the caller lacks. bindings: path -> role -> members;
    a path that is not there may not be read. number: the project's, None where it may not be read.
    limits: quota metric -> region ("" for all) -> limit.
    """

    disabled: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    bindings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    number: str | None = None
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answers(self, path: str) -> bool:
        return _METHODS.fullmatch(path) is not None

    def answer(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> Any:
        self.asked.append(path)
        if path.endswith(":batchGet"):
            names = query["names"]
            states = {name: name.rpartition("/")[2] in self.disabled for name in names}
            return {
                "services": [
                    {"name": name, "state": "DISABLED" if off else "ENABLED"}
                    for name, off in states.items()
                ]
            }
        if path.endswith(("estIamPermissions", "/testPermissions")):
            wanted = body.get("permissions") or query["permissions"]
            return {"permissions": [each for each in wanted if each not in self.missing]}
        if path.endswith("/consumerQuotaMetrics"):
            return self._quota(int(query.get("pageToken", ["0"])[0] or 0))
        if re.fullmatch(r"/v1/projects/[^/:]+", path) and self.number:
            return {"projectNumber": self.number}
        if path not in self.bindings:
            raise Refused(403, "PERMISSION_DENIED", f"no getIamPolicy on {path}")
        policy = self.bindings[path].items()
        return {"bindings": [{"role": role, "members": members} for role, members in policy]}

    def _quota(self, start: int) -> dict[str, Any]:
        """One metric a page, as Service Usage v1beta1 tells them."""
        metrics = [
            {
                "metric": f"aiplatform.googleapis.com/{name}",
                "consumerQuotaLimits": [
                    {
                        "quotaBuckets": [
                            {"effectiveLimit": str(limit)}
                            | ({"dimensions": {"region": region}} if region else {})
                            for region, limit in limits.items()
                        ]
                    }
                ],
            }
            for name, limits in self.limits.items()
        ]
        more = {"nextPageToken": str(start + 1)} if start + 1 < len(metrics) else {}
        return {"metrics": metrics[start : start + 1], **more}
