"""The API server on loopback: HTTP or HTTPS, discovery, objects, watches, logs, refusals."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.kubernetes import admission
from tests.emulators.kubernetes.controllers import Controllers
from tests.emulators.kubernetes.kubelet import Kubelet, Scripted
from tests.emulators.kubernetes.store import Object, Refused, Store, matches, merged, now
from tests.emulators.web import LoopbackServer

JOBSETS, BATCH, CORE = "jobset.x-k8s.io/v1alpha2", "batch/v1", "v1"
RESOURCES: dict[str, dict[str, tuple[str, bool]]] = {
    CORE: {
        "pods": ("Pod", True),
        "namespaces": ("Namespace", False),
        "nodes": ("Node", False),
        "secrets": ("Secret", True),
        "serviceaccounts": ("ServiceAccount", True),
    },
    BATCH: {"jobs": ("Job", True)},
    JOBSETS: {"jobsets": ("JobSet", True)},
    "kueue.x-k8s.io/v1beta1": {
        "workloads": ("Workload", True),
        "localqueues": ("LocalQueue", True),
    },
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews": ("SelfSubjectAccessReview", False)},
    "metrics.k8s.io/v1beta1": {"pods": ("PodMetrics", True)},
}
"""What is served: group and version -> resource -> kind, and whether it has a namespace."""


QUOTA = (  # the words of kubernetes, plugin/resourcequota/controller.go
    "exceeded quota: jobs, requested: count/jobsets.jobset.x-k8s.io=1, used: "
    "count/jobsets.jobset.x-k8s.io=3, limited: count/jobsets.jobset.x-k8s.io=3"
)


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    bursts: (pattern of `METHOD path`, HTTP status, how often). cut_create: a JobSet is made, and
    the connection breaks before the answer, so many times. forbidden: patterns of refused requests.
    token: the only one that is accepted. missing: groups and versions that are not installed.
    quota: a ResourceQuota lets nobody create a JobSet. behind: a list shows the objects as they
    were so many changes ago, as one from an old resourceVersion does.
    """

    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut_create: int = 0
    forbidden: list[str] = field(default_factory=list)
    token: str | None = None
    missing: set[str] = field(default_factory=set)
    quota: bool = False
    behind: int = 0


class Busy(Exception):  # noqa: N818
    """The server is too busy to look at the request."""


@dataclass
class Cluster:
    """The loopback cluster, as a test sees it."""

    store: Store
    controllers: Controllers
    faults: Faults
    address: str
    folder: Path
    calls: list[str]

    def kubeconfig(self, **user: Any) -> Path:
        """A kubeconfig file that names this cluster; `user`: who asks."""
        path = self.folder / "kubeconfig"
        cluster: Object = {"server": self.address}
        if self.address.startswith("https"):
            cluster["certificate-authority"] = str(self.folder / "ca.pem")
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "loopback",
            "contexts": [{"name": "loopback", "context": {"cluster": "one", "user": "me"}}],
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
        }
        path.write_text(json.dumps(content))
        return path

    def jobsets(self) -> list[Object]:
        return self.store.list("jobsets")


@contextlib.contextmanager
def running(
    folder: Path, kubelet: Kubelet | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Cluster]:
    """A cluster on a free port of this machine, until the block ends."""
    store, calls = Store(), list[str]()
    controllers, faults = Controllers(store, kubelet or Scripted()), Faults()
    for name in ("default", "training"):
        store.create(
            "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
    state = {"store": store, "controllers": controllers, "faults": faults, "calls": calls}
    handler = type("Handler", (_Handler,), state)
    server = LoopbackServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    controlling = threading.Thread(target=controllers.work, daemon=True)
    for thread in (
        threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True),
        controlling,
    ):
        thread.start()
    scheme = "https" if tls else "http"
    address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    try:
        yield Cluster(store, controllers, faults, address, folder, calls)
    finally:
        controllers.stop.set()
        controlling.join(20)
        for one in controllers.running.values():
            one.stop.set()
        for thread in controllers.threads:
            thread.join(20)
        server.shutdown()
        server.server_close()
    if controllers.error is not None:
        raise controllers.error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store
    controllers: Controllers
    faults: Faults
    calls: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sort = self.headers.get("Content-Type") or ""
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        call = f"{self.command} {parts.path}"
        self.calls.append(call)
        try:
            self._check(call)
            if body and not ("json" in sort or "yaml" in sort):
                raise Refused(415, "UnsupportedMediaType", f"{sort} is not read here")
            self._route(unquote(parts.path), body)
        except Refused as error:
            self._status(error)
        except Busy:
            self._text(429, "Too many requests, please try again later.\n", {"Retry-After": "1"})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _check(self, call: str) -> None:
        token = self.faults.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        for number, (pattern, code, left) in enumerate(self.faults.bursts):
            if left and re.search(pattern, call):
                self.faults.bursts[number] = (pattern, code, left - 1)
                if code == 429:  # as kubernetes, apiserver, filters/maxinflight.go
                    raise Busy
                raise Refused(code, "ServiceUnavailable", "the server is busy")
        if any(re.search(one, call) for one in self.faults.forbidden):
            raise Refused(403, "Forbidden", f'User "me" cannot {call} in the namespace "default"')
        if self.faults.quota and re.match("POST .*/jobsets", call):
            raise Refused(403, "Forbidden", f"jobsets.jobset.x-k8s.io is forbidden: {QUOTA}")

    # --- paths ------------------------------------------------------------------------------------

    def _route(self, path: str, body: bytes) -> None:
        served = {k: v for k, v in RESOURCES.items() if k not in self.faults.missing}
        if path == "/version":
            return self._json({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
        if path == "/api":
            return self._json({"kind": "APIVersions", "versions": ["v1"]})
        if path == "/apis":
            groups = [_group(one) for one in served if "/" in one]
            return self._json({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        if path == "/openapi/v3":
            there = {"serverRelativeURL": f"/openapi/v3/apis/{JOBSETS}?hash=1"}
            return self._json({"paths": {f"apis/{JOBSETS}": there}})
        if path == f"/openapi/v3/apis/{JOBSETS}":
            return self._json(_openapi())
        match = re.fullmatch(r"/api/(v1)|/apis/([^/]+/[^/]+)", path)
        if match and (match[1] or match[2]) in served:
            return self._json(_resources(match[1] or match[2]))
        if group := re.fullmatch(r"/apis/([^/]+)", path):
            known = next((one for one in served if one.startswith(f"{group[1]}/")), None)
            if known:
                return self._json(_group(known))
        match = re.fullmatch(
            r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<ns>[^/]+))?"
            r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?",
            path,
        )
        version = (match["core"] or match["group"]) if match else ""
        if not match or match["kind"] not in served.get(version, {}):
            own = re.fullmatch(r"/api/v1/namespaces(?:/([^/]+))?", path)
            if not own:
                return self._text(404, "404 page not found\n")
            return self._objects(CORE, "namespaces", "", own[1] or "", body)
        if match["kind"] == "selfsubjectaccessreviews":
            return self._review(json.loads(body))
        if match["sub"] == "log":
            return self._log(match["ns"], match["name"])
        if version.startswith("metrics"):
            return self._metrics(match["ns"])
        return self._objects(version, match["kind"], match["ns"] or "", match["name"] or "", body)

    def _objects(self, version: str, kind: str, namespace: str, name: str, body: bytes) -> None:
        match self.command:
            case "GET" if name:
                self._json(self.store.get(kind, namespace, name))
            case "GET" if self.query.get("watch") in ("true", "1"):
                self._watch(version, kind, namespace)
            case "GET":
                self._list(version, kind, namespace)
            case "POST":
                self._create(version, kind, namespace, json.loads(body))
            case "PATCH":
                self._patch(kind, namespace, name, body)
            case "DELETE":
                self._remove(kind, namespace, name)
            case _:
                raise Refused(405, "MethodNotAllowed", f"{self.command} is not supported")

    # --- objects ----------------------------------------------------------------------------------

    def _list(self, version: str, kind: str, namespace: str) -> None:
        with self.store.changed:
            selector = self.query.get("labelSelector", "")
            found = self.store.list(kind, namespace, selector, self.faults.behind)
            meta: Object = {"resourceVersion": str(self.store.version)}
        if wanted := re.search(r"metadata\.name=([^,]+)", self.query.get("fieldSelector", "")):
            found = [one for one in found if one["metadata"]["name"] == wanted[1]]
        begin = int(self.query.get("continue") or 0)
        limit = int(self.query.get("limit") or 0) or len(found)
        if begin + limit < len(found):
            meta["continue"] = str(begin + limit)
        found = found[begin : begin + limit]
        told = RESOURCES[version][kind][0]
        self._json({"kind": f"{told}List", "apiVersion": version, "metadata": meta, "items": found})

    def _create(self, version: str, kind: str, namespace: str, given: Object) -> None:
        if given["metadata"].get("namespace", namespace) != namespace:
            raise Refused(
                400, "BadRequest", "the namespace of the object does not match the request"
            )
        if kind == "jobsets":
            self._admit(given)
        dry = self.query.get("dryRun") == "All"
        made = self.store.create(kind, namespace, given, dry)
        if kind == "jobsets" and not dry and self.faults.cut_create:
            self.faults.cut_create -= 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self._json(made, 201)

    def _admit(self, given: Object) -> None:
        said = admission.problems({**given, "metadata": _own(given["metadata"])})
        name, text = given["metadata"]["name"], "; ".join(said)
        if "strict decoding error" in text:
            what = 'JobSet in version "v1alpha2" cannot be handled as a JobSet'
            raise Refused(400, "BadRequest", f"{what}: {text}", name)
        if said:
            raise Refused(422, "Invalid", f'JobSet "{name}" is invalid: {text}', name)

    def _patch(self, kind: str, namespace: str, name: str, body: bytes) -> None:
        sort = (self.headers.get("Content-Type") or "").partition(";")[0]
        given = json.loads(body)
        with self.store.changed:
            try:
                found = self.store.get(kind, namespace, name)
            except Refused:
                if sort != "application/apply-patch+yaml":
                    raise
                self._create(JOBSETS, kind, namespace, given)
                return
            changed = merged(found, given)
            if kind == "jobsets":
                kept = ("replicatedJobs", "failurePolicy", "successPolicy", "network")
                for field_ in kept:
                    if changed["spec"].get(field_) != found["spec"].get(field_):
                        text = f"spec.{field_}: Invalid value: field is immutable"
                        raise Refused(422, "Invalid", f'JobSet "{name}" is invalid: {text}', name)
            if self.query.get("dryRun") != "All":
                changed = self.store.update(kind, changed)
        self._json(changed)

    def _remove(self, kind: str, namespace: str, name: str) -> None:
        with self.store.changed:
            found = self.store.get(kind, namespace, name)
            if self.query.get("dryRun") != "All":
                found["metadata"]["deletionTimestamp"] = now()
                self.store.update(kind, found)
        self._json({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _watch(self, version: str, kind: str, namespace: str) -> None:
        """Events from a version on; with `sendInitialEvents` first all there is, and a bookmark."""
        wanted = re.search(r"metadata\.name=([^,]+)", self.query.get("fieldSelector", ""))
        selector = self.query.get("labelSelector", "")

        def told(what: str, value: Object) -> None:
            meta = value["metadata"]
            named = not wanted or wanted[1] == meta["name"]
            if named and matches(selector, meta.get("labels") or {}):
                self._chunk(json.dumps({"type": what, "object": value}).encode() + b"\n")

        with self.store.changed:
            since = int(self.query.get("resourceVersion") or self.store.version)
            initial = self.query.get("sendInitialEvents") == "true"
            found = self.store.list(kind, namespace) if initial else []
            since = self.store.version if initial else since
        self._chunked()
        for one in found:
            told("ADDED", one)
        if initial:
            meta = {"resourceVersion": str(since)}
            end = {"k8s.io/initial-events-end": "true"}
            mark = {"kind": RESOURCES[version][kind][0], "apiVersion": version}
            mark |= {"metadata": {**meta, "annotations": end}}  # type: ignore[dict-item]
            self._chunk(json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n")
        seconds = float(self.query.get("timeoutSeconds") or 60)
        for _, what, resource, value in self.store.watch(since, self.controllers.stop, seconds):
            if resource == kind and namespace in ("", value["metadata"].get("namespace")):
                told(what, value)
        self._chunk(b"")

    # --- logs, reviews ----------------------------------------------------------------------------

    def _log(self, namespace: str, name: str) -> None:
        pod = self.store.get("pods", namespace, name)
        running = self.controllers.running.get(pod["metadata"]["uid"])
        if running is None or "containerStatuses" not in pod["status"]:
            raise Refused(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        stamps, since = self.query.get("timestamps") == "true", self.query.get("sinceTime", "")
        follow, sent = self.query.get("follow") == "true", 0
        self._chunked("text/plain")
        while True:
            over = not follow or self._over(namespace, name)
            lines = running.lines[sent:]
            sent += len(lines)
            text = "".join(
                f"{one if stamps else one.partition(' ')[2]}\n"
                for one in lines
                if one[:19] >= since[:19]
            )
            if text:
                self._chunk(text.encode())
            if over:
                break
            self.controllers.stop.wait(0.05)
        self._chunk(b"")

    def _over(self, namespace: str, name: str) -> bool:
        try:
            pod = self.store.get("pods", namespace, name)
        except Refused:
            return True
        return pod["status"].get("phase") in ("Succeeded", "Failed")

    def _metrics(self, namespace: str) -> None:
        found = [
            {
                "metadata": {"name": pod["metadata"]["name"], "labels": pod["metadata"]["labels"]},
                "timestamp": now(),
                "containers": [{"name": "trainer", "usage": {"cpu": "250m", "memory": "64Mi"}}],
            }
            for pod in self.store.list("pods", namespace, self.query.get("labelSelector", ""))
        ]
        self._json({"kind": "PodMetricsList", "metadata": {}, "items": found})

    def _review(self, given: Object) -> None:
        asked = given["spec"]["resourceAttributes"]
        call = f"{asked['verb']} {asked['resource']}/{asked.get('subresource', '')}"
        denied = any(re.search(one, call) for one in self.faults.forbidden)
        self._json({**given, "status": {"allowed": not denied}}, 201)

    # --- answers ----------------------------------------------------------------------------------

    def _json(self, value: Object, code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _text(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def _status(self, error: Refused) -> None:
        details: Object = {"name": error.name} if error.name else {}
        if error.code == 422:  # kubectl shows the causes, and not the message
            cause = {"reason": "FieldValueInvalid", "message": error.message, "field": "spec"}
            details["causes"] = [cause]
        told = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        told |= {"message": error.message, "reason": error.reason, "code": error.code}  # type: ignore[dict-item]
        self._json({**told, "details": details}, error.code)

    def _chunked(self, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _own(meta: Object) -> Object:
    """The metadata that a client writes."""
    return {k: v for k, v in meta.items() if k in ("name", "namespace", "labels", "annotations")}


def _openapi() -> Object:
    """What kubectl looks up before it sends: that the server itself checks JobSets."""
    group, _, version = JOBSETS.partition("/")
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldValidation")
    ]
    patch = {
        "x-kubernetes-group-version-kind": {"group": group, "kind": "JobSet", "version": version},
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    }
    path = f"/apis/{JOBSETS}/namespaces/{{namespace}}/jobsets/{{name}}"
    info = {"title": "Kubernetes", "version": "v1.36.0"}
    return {"openapi": "3.0.0", "info": info, "paths": {path: {"patch": patch}}}


def _group(version: str) -> Object:
    name, _, number = version.partition("/")
    one = {"groupVersion": version, "version": number}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": [one],
        "preferredVersion": one,
    }


def _resources(version: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "watch"]
    found = [
        {
            "name": name,
            "singularName": kind.lower(),
            "namespaced": inside,
            "kind": kind,
            "verbs": verbs,
        }
        for name, (kind, inside) in RESOURCES[version].items()
    ]
    if version == CORE:
        found.append(
            {
                "name": "pods/log",
                "singularName": "",
                "namespaced": True,
                "kind": "Pod",
                "verbs": ["get"],
            }
        )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": found,
    }
