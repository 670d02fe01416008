"""The objects of a cluster, as etcd and the API server keep them: versions, labels, watches."""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


class Refused(Exception):  # noqa: N818
    """An answer with an error: HTTP status, reason, message; name: the object that it is about."""

    def __init__(self, code: int, reason: str, message: str, name: str = "") -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.name = code, reason, message, name


def now() -> str:
    """The time as the API server writes it: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Store:
    """All objects: by resource, namespace and name. Every change wakes those who wait."""

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    events: list[tuple[int, str, str, Object]] = field(default_factory=list)
    version: int = 100
    changed: threading.Condition = field(
        default_factory=lambda: threading.Condition(threading.RLock())
    )

    def get(self, resource: str, namespace: str, name: str) -> Object:
        with self.changed:
            found = self.objects.get((resource, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found', name)
            return copy.deepcopy(found)

    def list(
        self, resource: str, namespace: str = "", selector: str = "", behind: int = 0
    ) -> list[Object]:
        """The objects of a resource; behind: as they were so many changes ago."""
        with self.changed:
            there = self._before(behind) if behind else self.objects
            return [
                copy.deepcopy(one)
                for (kind, space, _), one in there.items()
                if kind == resource
                and namespace in ("", space)
                and matches(selector, one["metadata"].get("labels") or {})
            ]

    def _before(self, behind: int) -> dict[tuple[str, str, str], Object]:
        found: dict[tuple[str, str, str], Object] = {}
        for _, what, resource, value in self.events[:-behind]:
            key = (resource, value["metadata"].get("namespace", ""), value["metadata"]["name"])
            found[key] = value
            if what == "DELETED":
                del found[key]
        return found

    def create(self, resource: str, namespace: str, given: Object, dry: bool = False) -> Object:
        with self.changed:
            name = given["metadata"]["name"]
            if (resource, namespace, name) in self.objects:
                raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists', name)
            made = copy.deepcopy(given)
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            made["metadata"]["generation"] = 1
            if namespace:
                made["metadata"]["namespace"] = namespace
            if not dry:
                self._put("ADDED", resource, namespace, made)
            return copy.deepcopy(made)

    def update(self, resource: str, changed: Object) -> Object:
        """Replace an object; the caller holds what it was read as."""
        meta = changed["metadata"]
        with self.changed:
            key = (resource, meta.get("namespace", ""), meta["name"])
            if key not in self.objects:
                raise Refused(
                    404, "NotFound", f'{resource} "{meta["name"]}" not found', meta["name"]
                )
            if _same(self.objects[key], changed):
                return changed
            self._put("MODIFIED", resource, key[1], changed)
            return copy.deepcopy(changed)

    def remove(self, resource: str, found: Object) -> None:
        meta = found["metadata"]
        with self.changed:
            if self.objects.pop((resource, meta.get("namespace", ""), meta["name"]), None):
                self.version += 1
                meta["resourceVersion"] = str(self.version)
                self.events.append((self.version, "DELETED", resource, copy.deepcopy(found)))
                self.changed.notify_all()

    def forget(self, *resources: str) -> None:
        """Leave nothing of these resources, and no events: another cluster, for a test."""
        with self.changed:
            self.objects = {k: v for k, v in self.objects.items() if k[0] not in resources}
            self.events.clear()

    def _put(self, kind: str, resource: str, namespace: str, value: Object) -> None:
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        stored = copy.deepcopy(value)
        self.objects[resource, namespace, value["metadata"]["name"]] = stored
        self.events.append((self.version, kind, resource, copy.deepcopy(stored)))
        self.changed.notify_all()

    def watch(self, since: int, stop: threading.Event, seconds: float) -> Iterator[Any]:
        """Events after a version: (version, kind, resource, object); None now and then."""
        last = since
        left = seconds
        while not stop.is_set() and left > 0:
            with self.changed:
                new = [one for one in self.events if one[0] > last]
                if not new:
                    self.changed.wait(0.1)
                    left -= 0.1
            for one in new:
                last = one[0]
                yield one


def _same(one: Object, other: Object) -> bool:
    def bare(value: Object) -> Object:
        meta = {k: v for k, v in value["metadata"].items() if k != "resourceVersion"}
        return {**value, "metadata": meta}

    return bare(one) == bare(other)


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels fit `a=b,c,d in (e,f),!g`."""
    for term in re.split(r",(?![^(]*\))", selector):
        term = term.strip()
        if not term:
            continue
        if inside := re.fullmatch(r"(\S+) +(in|notin) +\((.*)\)", term):
            values = [one.strip() for one in inside[3].split(",")]
            if (labels.get(inside[1]) in values) != (inside[2] == "in"):
                return False
        elif "!=" in term:
            name, _, value = term.partition("!=")
            if labels.get(name) == value:
                return False
        elif "=" in term:
            name, _, value = term.replace("==", "=").partition("=")
            if labels.get(name) != value:
                return False
        elif term.startswith("!") == (term.lstrip("!") in labels):
            return False
    return True


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386), done."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for name, one in patch.items():
        if one is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), one)
    return result
