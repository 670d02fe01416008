"""A loopback cluster: its API server. What its controllers do: controllers.py."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.controllers import Object, Objects, Refused, Script, now
from tests.emulators.web import LoopbackServer, QuietHandler, answering, burst
from tests.jobs import jobset_rules

__all__ = ["Cluster", "Faults", "Object", "Objects", "Script", "now", "running"]

METRICS = "metrics.k8s.io/v1beta1"
"""What metrics-server serves, as objects of the kind `podmetrics`."""
JOBSETS, KUEUE = "jobset.x-k8s.io/v1alpha2", "kueue.x-k8s.io/v1beta1"
SERVED: dict[str, tuple[str, ...]] = {
    "v1": (
        *("pods", "namespaces", "secrets", "serviceaccounts", "events", "nodes"),
        "persistentvolumeclaims",
    ),
    "batch/v1": ("jobs",),
    JOBSETS: ("jobsets",),
    KUEUE: ("localqueues", "workloads"),
    METRICS: ("pods",),
    "authorization.k8s.io/v1": ("selfsubjectaccessreviews",),
}
"""What is served: group and version -> resources."""
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<ns>[^/]+)(?=/))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log))?"
)


# --- the API server -------------------------------------------------------------------------------


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
    expired: int = 0
    """How many tokens of lists have expired when they are used."""
    nodes_away: set[str] = field(default_factory=set)
    """Names of pods whose kubelet the API server cannot reach."""
    closed: threading.Event = field(default_factory=threading.Event)
    """Set where the test is over: streams end."""


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
        faults.closed.set()


class _Handler(QuietHandler):
    objects: Objects
    faults: Faults

    def _serve(self) -> None:
        body, parts = self.content(), urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            self._check(f"{self.command} {parts.path}")
            self._route(unquote(parts.path), json.loads(body) if body else {})
        except Refused as error:
            status: Object = {"message": error.message, "reason": error.reason, "code": error.code}
            status["details"] = {"name": error.name} if error.name else {}
            # 429: as kubernetes, apiserver, filters/maxinflight.go
            headers = {"Retry-After": "1"} if error.code == 429 else {}
            self.reply(error.code, json.dumps(status).encode(), headers)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _check(self, call: str) -> None:
        token = self.faults.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        if code := burst(self.faults.bursts, call):
            raise Refused(code, "Refused", "exceeded quota" if code == 403 else "busy")
        if any(re.search(pattern, call) for pattern in self.faults.forbidden):
            raise Refused(403, "Forbidden", _no_right(self.command, call.partition(" ")[2]))

    def _route(self, path: str, body: Object) -> None:
        served = {name: kinds for name, kinds in SERVED.items() if name not in self.faults.missing}
        groups = {version.partition("/")[0]: version for version in served}
        match = _PATH.fullmatch(path)
        version = (match["core"] or match["group"]) if match else ""
        if path == "/version":
            self.json({"gitVersion": "v1.36.0"})
        elif path.removeprefix("/apis/") in groups:
            self.json({"preferredVersion": {"groupVersion": groups[path.removeprefix("/apis/")]}})
        elif path.removeprefix("/apis/") in served:
            self.json({"kind": "APIResourceList"})
        elif not match or match["kind"] not in served.get(version, ()):
            self.reply(404, b"404 page not found\n", {"Content-Type": "text/plain"})
        else:
            names = match["ns"] or "", match["name"] or ""
            kind = "podmetrics" if version == METRICS else match["kind"]
            self._answer(kind, *names, match["sub"] or "", body)

    def _answer(self, kind: str, namespace: str, name: str, sub: str, body: Object) -> None:
        if self.command == "GET" and sub:
            self._log(namespace, name)
        elif self.command == "GET" and name:
            self.json(self.objects.get(kind, namespace, name))
        elif self.command == "GET":
            self._list(kind, namespace)
        elif kind == "selfsubjectaccessreviews":
            self._review(body)
        elif self.command == "POST":
            self._create(kind, namespace, body)
        else:
            self.objects.remove(kind, namespace, name)
            self.json({"kind": "Status", "status": "Success"})

    def _list(self, kind: str, namespace: str) -> None:
        selectors = (self.query.get(name, "") for name in ("labelSelector", "fieldSelector"))
        fitting = [] if self.faults.blind else self.objects.list(kind, namespace, *selectors)
        begin, limit = (int(self.query.get(name) or 0) for name in ("continue", "limit"))
        if begin and self.faults.expired:
            self.faults.expired -= 1
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        more = {"continue": str(begin + limit)} if begin + limit < len(fitting) else {}
        self.json({"metadata": more, "items": fitting[begin : begin + limit]})

    def _create(self, kind: str, namespace: str, manifest: Object) -> None:
        name, dry = manifest["metadata"]["name"], self.query.get("dryRun") == "All"
        if kind == "pods":
            if why := self.objects.denied(manifest):
                raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {why}', name)
            self.json(self.objects.create(kind, namespace, manifest, dry), 201)
            return
        problems = "; ".join(jobset_rules.problems(manifest))
        if "strict decoding error" in problems:
            raise Refused(400, "BadRequest", f"cannot be handled: {problems}", name)
        if problems:
            raise Refused(422, "Invalid", f'JobSet "{name}" is invalid: {problems}', name)
        obj = self.objects.create(kind, namespace, manifest, dry)
        if not dry and self.faults.cut:
            self.faults.cut -= 1
            self.cut()
        else:
            self.json(obj, 201)

    def _log(self, namespace: str, name: str) -> None:
        pod = self.objects.get("pods", namespace, name)
        since = self.query.get("sinceTime", "")
        lines = self.objects.logs.get(pod["metadata"]["uid"], [])
        if name in self.faults.nodes_away:
            self.json({"message": "dial tcp 10.0.0.7:10250: connect: no route to host"}, 502)
            return
        first = datetime.fromisoformat(since) if since else None
        if self.query.get("follow"):
            self._stream(pod, first)
            return
        lines = lines[-int(self.query.get("tailLines", len(lines))) :] if lines else []
        text = "".join(f"{line}\n" for line in lines if not first or _second(line) >= first)
        self.reply(200, text.encode(), {"Content-Type": "text/plain"})

    def _stream(self, pod: Object, first: datetime | None) -> None:
        """Send a pod's lines as they come, in chunks, until its container ends or it is gone."""
        meta, sent = pod["metadata"], 0
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.objects.followed[meta["uid"]].set()
        ends = False
        while not ends and not self.faults.closed.wait(0.01):
            now_is = self.objects.known.get(("pods", meta["namespace"], meta["name"]), {})
            ends = now_is.get("status", {}).get("phase") != "Running"
            lines = self.objects.logs.get(meta["uid"], [])[sent:]  # the pod says more meanwhile
            for line in lines:
                if not first or _second(line) >= first:
                    data = f"{line}\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            sent += len(lines)
        self.wfile.write(b"0\r\n\r\n")

    def _review(self, review: Object) -> None:
        attributes = review["spec"]["resourceAttributes"]
        call = f"{attributes['verb']} {attributes['resource']}/{attributes.get('subresource', '')}"
        denied = any(re.search(pattern, call) for pattern in self.faults.forbidden)
        self.json({**review, "status": {"allowed": not denied}}, 201)


def _no_right(method: str, path: str) -> str:
    """RBAC's words: apiserver, responsewriters/errors.go."""
    match = _PATH.fullmatch(path)
    if match is None:
        return f'forbidden: User "me" cannot {method.lower()} path "{path}"'
    verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if match["name"] else "list")
    group = (match["group"] or "").partition("/")[0]
    full = f"{match['kind']}.{group}" if group else match["kind"]
    what = f'cannot {verb} resource "{match["kind"]}" in API group "{group}"'
    return f'{full} is forbidden: User "me" {what} in the namespace "{match["ns"]}"'


def _second(line: str) -> datetime:
    """The whole second of a line's stamp."""
    return datetime.fromisoformat(line.partition(" ")[0]).replace(microsecond=0)
