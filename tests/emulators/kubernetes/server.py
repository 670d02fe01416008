"""The API server on loopback: discovery, objects, watches, logs, refusals."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.kubernetes.objects import Object, Objects, Refused, matches
from tests.emulators.web import LoopbackServer, answering
from tests.jobs import jobset_rules

JOBSETS, CORE, KUEUE = "jobset.x-k8s.io/v1alpha2", "v1", "kueue.x-k8s.io/v1beta1"
RESOURCES: dict[str, dict[str, str]] = {
    CORE: {
        **{"pods": "Pod", "namespaces": "Namespace", "nodes": "Node", "secrets": "Secret"},
        "serviceaccounts": "ServiceAccount",
    },
    "batch/v1": {"jobs": "Job"},
    JOBSETS: {"jobsets": "JobSet"},
    KUEUE: {"localqueues": "LocalQueue"},
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews": "SelfSubjectAccessReview"},
}
"""What is served: group and version -> resource -> kind."""
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<ns>[^/]+)(?=/))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log))?"
)


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    bursts: (pattern of `METHOD path`, HTTP status, how often). cut: a JobSet is created, and the
    connection breaks before the answer, so many times. forbidden: patterns of refused requests.
    token: the only one that is accepted. missing: groups and versions that are not installed.
    blind: lists show nothing, as one from an old resourceVersion may.
    """

    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut: int = 0
    forbidden: list[str] = field(default_factory=list)
    token: str | None = None
    missing: set[str] = field(default_factory=set)
    blind: bool = False


@dataclass
class Cluster:
    """The loopback cluster, as a test sees it."""

    objects: Objects
    faults: Faults
    address: str
    folder: Path

    def kubeconfig(self) -> Path:
        """Write a kubeconfig file that names this cluster."""
        content = {
            "current-context": "loopback",
            "contexts": [{"name": "loopback", "context": {"cluster": "loopback"}}],
            "clusters": [{"name": "loopback", "cluster": {"server": self.address}}],
        }
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def jobsets(self) -> list[Object]:
        return self.objects.list("jobsets")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster on a free port of this machine, until the block ends."""
    objects, faults = Objects(), Faults()
    for name in ("default", "training"):
        objects.create("namespaces", "", {"metadata": {"name": name}})
    handler = type("Handler", (_Handler,), {"objects": objects, "faults": faults})
    with answering(LoopbackServer(("127.0.0.1", 0), handler)) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        yield Cluster(objects, faults, address, folder)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer in two writes takes 40 ms
    objects: Objects
    faults: Faults

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            self._check(f"{self.command} {parts.path}")
            self._route(unquote(parts.path), json.loads(body) if body else {})
        except Refused as error:
            self._refuse(error)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def _check(self, call: str) -> None:
        token = self.faults.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        for number, (pattern, code, left) in enumerate(self.faults.bursts):
            if left and re.search(pattern, call):
                self.faults.bursts[number] = (pattern, code, left - 1)
                raise Refused(code, "Refused", "exceeded quota" if code == 403 else "busy")
        if any(re.search(pattern, call) for pattern in self.faults.forbidden):
            raise Refused(403, "Forbidden", f'User "me" cannot {call} in the namespace "default"')

    def _route(self, path: str, body: Object) -> None:
        served = {k: v for k, v in RESOURCES.items() if k not in self.faults.missing}
        if (answer := _discovery(path, served)) is not None:
            self._json(answer)
            return
        match = _PATH.fullmatch(path)
        version = (match["core"] or match["group"]) if match else ""
        if not match or match["kind"] not in served.get(version, {}):
            self._send(404, b"404 page not found\n", "text/plain")
            return
        self.version, self.kind = version, match["kind"]
        namespace, name = match["ns"] or "", match["name"] or ""
        match self.command:
            case "GET" if match["sub"]:
                self._log(namespace, name)
            case "GET" if name:
                self._json(self.objects.get(self.kind, namespace, name))
            case "GET" if self.query.get("watch") in ("true", "1"):
                self._watch(namespace)
            case "GET":
                self._list(namespace)
            case "POST" if self.kind == "selfsubjectaccessreviews":
                self._review(body)
            case "POST":
                self._create(namespace, body)
            case _:
                self.objects.remove(self.kind, namespace, name)
                self._json({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _fits(self, value: Object) -> bool:
        named = re.search(r"metadata\.name=([^,]+)", self.query.get("fieldSelector", ""))
        labels = value["metadata"].get("labels") or {}
        right_name = not named or named[1] == value["metadata"]["name"]
        return right_name and matches(self.query.get("labelSelector", ""), labels)

    def _list(self, namespace: str) -> None:
        known = [] if self.faults.blind else self.objects.list(self.kind, namespace)
        fitting = [value for value in known if self._fits(value)]
        begin, limit = (int(self.query.get(name) or 0) for name in ("continue", "limit"))
        end = begin + (limit or len(fitting))
        meta: Object = {"resourceVersion": str(len(self.objects.events))}
        meta |= {"continue": str(end)} if end < len(fitting) else {}
        kind = f"{RESOURCES[self.version][self.kind]}List"
        listed = {"kind": kind, "apiVersion": self.version, "metadata": meta}
        self._json({**listed, "items": fitting[begin:end]})

    def _create(self, namespace: str, manifest: Object) -> None:
        name = manifest["metadata"]["name"]
        if self.kind == "jobsets":
            problems = "; ".join(jobset_rules.problems(manifest))
            if "strict decoding error" in problems:
                raise Refused(400, "BadRequest", f"cannot be handled: {problems}", name)
            if problems:
                raise Refused(422, "Invalid", f'JobSet "{name}" is invalid: {problems}', name)
        dry = self.query.get("dryRun") == "All"
        obj = self.objects.create(self.kind, namespace, manifest, dry)
        if self.kind == "jobsets" and not dry and self.faults.cut:
            self.faults.cut -= 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        else:
            self._json(obj, 201)

    def _watch(self, namespace: str) -> None:
        """Send the events after a version, for a minute."""
        if "sendInitialEvents" in self.query:  # as a server without that feature
            raise Refused(422, "Invalid", "sendInitialEvents: Forbidden")
        last = int(self.query.get("resourceVersion") or len(self.objects.events))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(600):
            with self.objects.changed:
                self.objects.changed.wait(0.1)
                new, last = self.objects.events[last:], len(self.objects.events)
            for what, resource, value in new:
                if resource == self.kind and self._fits(value):
                    event = {"type": what, "object": value}
                    self.wfile.write(json.dumps(event).encode() + b"\n")

    def _log(self, namespace: str, name: str) -> None:
        pod = self.objects.get("pods", namespace, name)
        if "containerStatuses" not in pod["status"]:
            raise Refused(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        lines = self.objects.logs.get(pod["metadata"]["uid"], [])
        since, stamps = self.query.get("sinceTime", ""), self.query.get("timestamps") == "true"
        lines = [line for line in lines if line[:19] >= since[:19]]
        text = "".join(f"{line if stamps else line.partition(' ')[2]}\n" for line in lines)
        self._send(200, text.encode(), "text/plain")

    def _review(self, review: Object) -> None:
        attributes = review["spec"]["resourceAttributes"]
        call = f"{attributes['verb']} {attributes['resource']}/{attributes.get('subresource', '')}"
        denied = any(re.search(pattern, call) for pattern in self.faults.forbidden)
        self._json({**review, "status": {"allowed": not denied}}, 201)

    def _json(self, value: Object, code: int = 200) -> None:
        self._send(code, json.dumps(value).encode(), "application/json")

    def _refuse(self, error: Refused) -> None:
        status: Object = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        status["details"] = {"name": error.name} if error.name else {}
        status |= {"message": error.message, "reason": error.reason, "code": error.code}
        self._json(status, error.code)

    def _send(self, code: int, data: bytes, kind: str) -> None:
        self.send_response(code)
        if code == 429:  # as kubernetes, apiserver, filters/maxinflight.go
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _discovery(path: str, served: Mapping[str, Mapping[str, str]]) -> Object | None:
    """Return what kubectl asks first, what the server is; None for any other path."""
    groups = {version.partition("/")[0]: _group(version) for version in served if "/" in version}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    openapi = f"/openapi/v3/apis/{JOBSETS}"
    if path.startswith("/api") and version in served:
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        everywhere = ("namespaces", "nodes", "selfsubjectaccessreviews")
        resources = [
            {"name": name, "kind": kind, "namespaced": name not in everywhere, "verbs": verbs}
            for name, kind in {**served[version], "pods/log": "Pod"}.items()
        ]
        kind = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
        return {**kind, "resources": resources}
    answers: dict[str, Object] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())},
        "/openapi/v3": {"paths": {f"apis/{JOBSETS}": {"serverRelativeURL": f"{openapi}?hash=1"}}},
        openapi: _openapi(),
    }
    return answers.get(path) or groups.get(version)


def _group(version: str) -> Object:
    name, _, number = version.partition("/")
    known = {"groupVersion": version, "version": number}
    group = {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [known]}
    return {**group, "preferredVersion": known}


def _openapi() -> Object:
    """Return what kubectl looks up before it sends: that the server itself checks JobSets."""
    kind = {"group": "jobset.x-k8s.io", "kind": "JobSet", "version": "v1alpha2"}
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
    patch = {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": {}}
    path = f"/apis/{JOBSETS}/namespaces/{{namespace}}/jobsets/{{name}}"
    return {"openapi": "3.0.0", "info": {}, "paths": {path: {"patch": patch}}}
