"""Who may do what: Service Usage, and the IAM methods of the services that a build needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_METHODS = re.compile(r".*(:testIamPermissions|:getIamPolicy|/services:batchGet|/iam(/.*)?)")


@dataclass
class Access:
    """Answers of one project. Everything is allowed until a test takes something away.

    disabled: APIs. missing: permissions that the caller lacks. bindings: path -> role -> members;
    a path that is not there may not be read.
    """

    disabled: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    bindings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answers(self, path: str) -> bool:
        return _METHODS.fullmatch(path) is not None

    def answer(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> Any:
        from tests.emulators.cloud_build import Refused

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
            return {"permissions": [one for one in wanted if one not in self.missing]}
        if path not in self.bindings:
            raise Refused(403, "PERMISSION_DENIED", f"no getIamPolicy on {path}")
        policy = self.bindings[path].items()
        return {"bindings": [{"role": role, "members": members} for role, members in policy]}
