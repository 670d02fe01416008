"""Who may do what: the IAM methods of the services that a build or a job needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_METHODS = re.compile(r".*(:testIamPermissions|/iam/testPermissions)")


class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, the API's own name for it, a message."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


@dataclass
class Access:
    """Answers of one project. Everything is allowed until a test takes something away.

    missing: permissions that the caller lacks.
    """

    missing: set[str] = field(default_factory=set)

    def answers(self, path: str) -> bool:
        return _METHODS.fullmatch(path) is not None

    def answer(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> Any:
        if path.endswith(("estIamPermissions", "/testPermissions")):
            wanted = body.get("permissions") or query["permissions"]
            return {"permissions": [each for each in wanted if each not in self.missing]}
        raise Refused(404, "NOT_FOUND", path)
