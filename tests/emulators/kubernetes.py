"""A loopback cluster: its API server, and what JobSet's controller makes of a JobSet.

Pods do at once what a test says (`Script`); no controller runs beside the test. Names, labels and
conditions are those of jobset/pkg/controllers and kubernetes/pkg/controller/job.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.web import LoopbackServer, QuietHandler, answering, burst
from tests.jobs import jobset_rules

Object = dict[str, Any]
JOBSETS, KUEUE = "jobset.x-k8s.io/v1alpha2", "kueue.x-k8s.io/v1beta1"
SERVED: dict[str, tuple[str, ...]] = {
    "v1": ("pods", "namespaces", "secrets", "serviceaccounts"),
    "batch/v1": ("jobs",),
    JOBSETS: ("jobsets",),
    KUEUE: ("localqueues",),
    "authorization.k8s.io/v1": ("selfsubjectaccessreviews",),
}
"""What is served: group and version -> resources."""
PREFIX = "jobset.sigs.k8s.io"
ROLE, INDEX = f"{PREFIX}/replicatedjob-name", "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<ns>[^/]+)(?=/))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log))?"
)


@dataclass(eq=False)
class Refused(Exception):
    """An answer with an error: HTTP status, reason, message; name: the object that it is about."""

    code: int
    reason: str
    message: str
    name: str = ""


@dataclass(frozen=True)
class Script:
    """What a pod prints, and how it ends; None: it goes on."""

    lines: tuple[str, ...] = ("hello",)
    code: int | None = 0


def now() -> str:
    """Return the time as the API server writes it: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Objects:
    """All objects, by resource, namespace and name. logs: of each pod, by its uid."""

    script: Callable[[Object], Script] = lambda pod: Script()
    known: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)
    zone: tzinfo = UTC
    """Of the nodes' clocks."""

    def get(self, resource: str, namespace: str, name: str) -> Object:
        with self.lock:
            if (resource, namespace, name) not in self.known:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found', name)
            return copy.deepcopy(self.known[resource, namespace, name])

    def list(self, resource: str, namespace: str = "", selector: str = "") -> list[Object]:
        with self.lock:
            return [
                copy.deepcopy(value)
                for (kind, space, _), value in self.known.items()
                if kind == resource
                and namespace in ("", space)
                and _matches(selector, value["metadata"].get("labels") or {})
            ]

    def create(self, resource: str, namespace: str, manifest: Object, dry: bool = False) -> Object:
        name = manifest["metadata"]["name"]
        with self.lock:
            if (resource, namespace, name) in self.known:
                raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists', name)
            obj = copy.deepcopy(manifest)
            stamps = {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            obj["metadata"] |= {**stamps, **({"namespace": namespace} if namespace else {})}
            if not dry:
                self.put(resource, obj)
                if resource == "jobsets" and not obj["spec"].get("suspend"):
                    self._start(obj)
            return obj

    def put(self, resource: str, value: Object) -> None:
        """Add or change an object; a changed one is the last of its list."""
        meta = value["metadata"]
        with self.lock:
            key = resource, meta.get("namespace", ""), meta["name"]
            self.known.pop(key, None)
            self.known[key] = copy.deepcopy(value)

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Delete an object; a JobSet with its Jobs and pods."""
        with self.lock:
            self.get(resource, namespace, name)
            del self.known[resource, namespace, name]
            for kind in ("jobs", "pods") if resource == "jobsets" else ():
                for value in self.list(kind, namespace, f"{PREFIX}/jobset-name={name}"):
                    del self.known[kind, namespace, value["metadata"]["name"]]

    def pods(self, jobset: Object, role: str = "") -> list[Object]:
        """Return the pods of a JobSet, or of one role of it."""
        name = f"{PREFIX}/jobset-name={jobset['metadata']['name']}"
        return self.list("pods", selector=f"{name},{ROLE}={role}" if role else name)

    # --- what the controllers do ---

    def _start(self, jobset: Object) -> None:
        meta = jobset["metadata"]
        for role in jobset["spec"]["replicatedJobs"]:
            own = {f"{PREFIX}/jobset-name": meta["name"], ROLE: role["name"]}
            job = {"metadata": {"name": f"{meta['name']}-{role['name']}-0", "labels": own}}
            job["metadata"]["namespace"] = meta["namespace"]
            job["spec"] = role["template"]["spec"]
            self.put("jobs", job)
            for index in range(job["spec"]["completions"]):
                self.add_pod(job, index)
        failed = [pod for pod in self.pods(jobset) if pod["status"]["phase"] == "Failed"]
        chiefs = [pod["status"]["phase"] for pod in self.pods(jobset, "chief")]
        if failed:
            self.fail(jobset, failed[0]["metadata"]["labels"][JOB], "PodFailurePolicy", "exit code")
        elif set(chiefs) == {"Succeeded"}:
            self._conclude("jobsets", jobset, "Completed", "Ended", "it completed")

    def add_pod(self, job: Object, index: int) -> None:
        """Let the pod of this index run, as its script says."""
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        labels = {**template.get("metadata", {}).get("labels", {}), **meta["labels"]}
        pod: Object = {"kind": "Pod", "spec": template["spec"]}
        pod["metadata"] = {
            "name": f"{meta['name']}-{index}-{uuid.uuid4().hex[:5]}",
            "namespace": meta["namespace"],
            "labels": {**labels, INDEX: str(index), JOB: meta["name"]},
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
        }
        script, code = self.script(pod), self.script(pod).code
        phase, state = "Running", {"running": {"startedAt": now()}}
        for line in script.lines:
            self.say(pod, line)
        if code is not None:
            reason = {0: "Completed", 137: "OOMKilled"}.get(code, "Error")
            times = {"startedAt": now(), "finishedAt": now()}
            phase = "Failed" if code else "Succeeded"
            state = {"terminated": {"exitCode": code, "reason": reason, **times}}
        containers = [{"name": "trainer", "state": state}]
        self.put("pods", {**pod, "status": {"phase": phase, "containerStatuses": containers}})

    def say(self, pod: Object, text: str) -> None:
        """Let a pod print a line. The stamp is containerd's: the node's own time."""
        stamp = datetime.now(self.zone).isoformat().replace("+00:00", "Z")
        stamp = re.sub(r"(\.\d{6})", r"\g<1>000", stamp)
        self.logs.setdefault(pod["metadata"]["uid"], []).append(f"{stamp} {text}")

    def fail(self, jobset: Object, job: str, reason: str, message: str) -> None:
        """Let a Job fail, and its JobSet after it."""
        failed = self.get("jobs", jobset["metadata"]["namespace"], job)
        self._conclude("jobs", failed, "Failed", reason, message)
        self._conclude("jobsets", jobset, "Failed", "FailedJobs", f"first failed job: {job}")

    def _conclude(self, kind: str, value: Object, what: str, reason: str, message: str) -> None:
        condition = {"type": what, "status": "True", "reason": reason, "message": message}
        condition["lastTransitionTime"] = now()
        self.put(kind, {**value, "status": {"conditions": [condition]}})


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels fit `a=b,c`."""
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(name in labels and (not eq or labels[name] == value) for name, eq, value in terms)


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
            raise Refused(403, "Forbidden", f'User "me" cannot {call} in the namespace "default"')

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
            self._answer(match["kind"], *names, match["sub"] or "", body)

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
        selector = self.query.get("labelSelector", "")
        fitting = [] if self.faults.blind else self.objects.list(kind, namespace, selector)
        begin, limit = (int(self.query.get(name) or 0) for name in ("continue", "limit"))
        if begin and self.faults.expired:
            self.faults.expired -= 1
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        more = {"continue": str(begin + limit)} if begin + limit < len(fitting) else {}
        self.json({"metadata": more, "items": fitting[begin : begin + limit]})

    def _create(self, kind: str, namespace: str, manifest: Object) -> None:
        name, dry = manifest["metadata"]["name"], self.query.get("dryRun") == "All"
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
        text = "".join(f"{line}\n" for line in lines if not first or _second(line) >= first)
        self.reply(200, text.encode(), {"Content-Type": "text/plain"})

    def _review(self, review: Object) -> None:
        attributes = review["spec"]["resourceAttributes"]
        call = f"{attributes['verb']} {attributes['resource']}/{attributes.get('subresource', '')}"
        denied = any(re.search(pattern, call) for pattern in self.faults.forbidden)
        self.json({**review, "status": {"allowed": not denied}}, 201)


def _second(line: str) -> datetime:
    """The whole second of a line's stamp."""
    return datetime.fromisoformat(line.partition(" ")[0]).replace(microsecond=0)
