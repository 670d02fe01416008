"""Loopback Google Cloud: Cloud Build (REST and gRPC), Cloud Storage, Cloud Logging.

The messages are the product's own (google.cloud.devtools.cloudbuild_v1). An `Executor` carries out
a submitted build: a scripted one, or the factory's own runner on a worker's engine. Its log is
written to the loopback Cloud Storage, which has what gcp-storage-emulator lacks: preconditions
(ifGenerationMatch), generations, and ranges of objects that grow. There are faults on demand: a
closed log bucket, bursts of 503, a connection cut in the middle of a log or of a submission, QUEUED
for ever, TIMEOUT, EXPIRED, a tampered digest, the API switched off.
"""

from __future__ import annotations

import base64
import contextlib
import email.parser
import email.policy
import io
import json
import re
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format

from tests.emulators import cloud_build_rules
from tests.emulators.access import Access, Refused
from tests.emulators.web import LoopbackServer

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "loopback-project"
OTHERS_BUCKET = f"{PROJECT}_cloudbuild_of_another"
Status = api.Build.Status
Mode = api.BuildOptions.LoggingMode
ENDED = {
    Status.SUCCESS, Status.FAILURE, Status.INTERNAL_ERROR,
    Status.TIMEOUT, Status.CANCELLED, Status.EXPIRED,
}  # fmt: skip
PACKAGE = "google.devtools.cloudbuild.v1"


# --- faults ---------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What goes wrong, set by a test at any time.

    log_status: of every read of a log (403: the bucket is closed); logging_status: of Cloud
    Logging. bursts: (pattern of `METHOD path`, HTTP status, how often). cut_log: each answer of a
    log breaks off after so many bytes, so many times. cut_create: a build is created, and the
    connection breaks before the answer. stay_queued: for ever. end_as: how a build ends, whatever
    its steps did. tampered: the digests that results name are others. disabled: the API is off.
    """

    log_status: int | None = None
    logging_status: int | None = None
    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    cut_log: tuple[int, int] = (0, 0)
    cut_create: int = 0
    stay_queued: bool = False
    end_as: Status | None = None
    tampered: bool = False
    disabled: bool = False


# --- Cloud Storage --------------------------------------------------------------------------------


@dataclass
class Object:
    data: bytes
    generation: int
    metadata: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"


class Storage:
    """Buckets and objects in memory; every write is a new generation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Object]] = {}
        self.owners: dict[str, str] = {}
        self.uploads: dict[str, tuple[str, dict[str, Any], dict[str, str], bytearray]] = {}
        self.generation = int(time.time() * 1e6)

    def make(self, bucket: str, owner: str = PROJECT) -> None:
        with self.lock:
            self.buckets.setdefault(bucket, {})
            self.owners[bucket] = owner

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        match: int | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "application/octet-stream",
    ) -> Object:
        with self.lock:
            if bucket not in self.buckets:
                raise Refused(404, "notFound", "The specified bucket does not exist.")
            found = self.buckets[bucket].get(name)
            if match is not None and match != (found.generation if found else 0):
                raise Refused(412, "conditionNotMet", "At least one of the pre-conditions ...")
            self.generation += 1
            made = Object(data, self.generation, dict(metadata or {}), content_type)
            self.buckets[bucket][name] = made
            return made

    def append(self, bucket: str, name: str, data: bytes) -> None:
        with self.lock:
            found = self.buckets.get(bucket, {}).get(name)
            self.put(bucket, name, (found.data if found else b"") + data)

    def get(self, bucket: str, name: str) -> Object:
        with self.lock:
            found = self.buckets.get(bucket, {}).get(name)
            if found is None:
                raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
            return found

    def objects(self, prefix: str = "") -> list[str]:
        """Every object as BUCKET/NAME: what a test looks at."""
        with self.lock:
            return [
                f"{bucket}/{name}"
                for bucket, held in self.buckets.items()
                for name in held
                if f"{bucket}/{name}".startswith(prefix)
            ]


# --- carrying builds out --------------------------------------------------------------------------


@dataclass
class Job:
    """A build that is carried out: what the executor gets, and what it reports through."""

    build: api.Build
    workspace: Path
    log: Callable[[str], None]
    cancelled: threading.Event


@dataclass
class Outcome:
    """How an executor's build went."""

    ok: bool = True
    images: list[api.BuiltImage] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)


Executor = Callable[[Job], Outcome]


@dataclass
class Script:
    """An executor that says what it is told to, at the pace it is told to."""

    lines: tuple[str, ...] = ("Starting", "Done")
    seconds: float = 0.0
    ok: bool = True
    images: tuple[tuple[str, str], ...] = ()
    outputs: tuple[bytes, ...] = ()
    wait: threading.Event | None = None
    seen: list[list[str]] = field(default_factory=list)
    """The files of each workspace, as they arrived."""

    def __call__(self, job: Job) -> Outcome:
        self.seen.append(
            sorted(str(p.relative_to(job.workspace)) for p in job.workspace.rglob("*"))
        )
        for line in self.lines:
            job.log(line)
            time.sleep(self.seconds)
        if self.wait:
            while not self.wait.wait(0.01) and not job.cancelled.is_set():
                pass
        images = [api.BuiltImage(name=name, digest=digest) for name, digest in self.images]
        return Outcome(self.ok, images, list(self.outputs))


# --- Cloud Build ----------------------------------------------------------------------------------


class CloudBuild:
    """The service: builds and triggers of one project, shared by REST and gRPC."""

    def __init__(self, storage: Storage, faults: Faults, executor: Executor) -> None:
        self.storage, self.faults, self.executor = storage, faults, executor
        self.lock = threading.RLock()
        self.builds: dict[str, api.Build] = {}
        self.triggers: dict[str, api.BuildTrigger] = {}
        self.unknown: dict[str, dict[str, Any]] = {}
        """Of each trigger, the fields that the installed client does not know."""
        self.entries: list[dict[str, Any]] = []
        self.cancels: dict[str, threading.Event] = {}
        self.workers = ThreadPoolExecutor(4)
        self.calls: list[str] = []

    # The service's methods, by their names in the API ---------------------------------------------

    def create_build(self, request: api.CreateBuildRequest) -> Any:
        build = self._accepted(request)
        with self.lock:
            self.builds[build.id] = build
            self.cancels[build.id] = threading.Event()
        if not self.faults.stay_queued:
            self.workers.submit(self._carry_out, build.id)
        return self._operation(build)

    def get_build(self, request: api.GetBuildRequest) -> api.Build:
        return self._find(request.id or request.name.rsplit("/", 1)[-1])

    def list_builds(self, request: api.ListBuildsRequest) -> api.ListBuildsResponse:
        tags = re.findall(r'tags\s*=\s*"([^"]+)"', request.filter)
        with self.lock:
            found = [b for b in self.builds.values() if set(tags) <= set(b.tags)]
            found.sort(key=lambda b: b.create_time, reverse=True)
            return api.ListBuildsResponse(builds=found[: request.page_size or 100])

    def cancel_build(self, request: api.CancelBuildRequest) -> api.Build:
        build = self._find(request.id or request.name.rsplit("/", 1)[-1])
        self.cancels[build.id].set()
        with self.lock:
            if build.status not in ENDED:
                build.status = Status.CANCELLED
                build.finish_time = datetime.now(UTC)
        return build

    def retry_build(self, request: api.RetryBuildRequest) -> Any:
        old = self._find(request.id or request.name.rsplit("/", 1)[-1])
        if source := old.source.storage_source:
            self.storage.get(source.bucket, source.object_)
        again = api.Build(
            steps=old.steps, source=old.source, options=old.options, tags=old.tags,
            substitutions=old.substitutions, images=old.images, logs_bucket=old.logs_bucket,
        )  # fmt: skip
        return self.create_build(api.CreateBuildRequest(project_id=PROJECT, build=again))

    def create_build_trigger(self, request: api.CreateBuildTriggerRequest) -> api.BuildTrigger:
        trigger = request.trigger
        if not re.fullmatch(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,62}[a-zA-Z0-9])?", trigger.name):
            raise Refused(400, "INVALID_ARGUMENT", f"invalid trigger name {trigger.name!r}")
        with self.lock:
            if any(one.name == trigger.name for one in self.triggers.values()):
                raise Refused(409, "ALREADY_EXISTS", f"trigger {trigger.name} already exists")
            trigger.id = str(uuid.uuid4())
            trigger.resource_name = f"projects/{PROJECT}/locations/global/triggers/{trigger.id}"
            trigger.create_time = datetime.now(UTC)
            self.triggers[trigger.id] = trigger
        return trigger

    def update_build_trigger(self, request: api.UpdateBuildTriggerRequest) -> api.BuildTrigger:
        with self.lock:
            old = self._trigger(request.trigger_id)
            new = api.BuildTrigger(old)
            if request.update_mask.paths:
                request.update_mask.MergeMessage(
                    api.BuildTrigger.pb(request.trigger), api.BuildTrigger.pb(new), True, True
                )
            else:  # a full update: whatever the request lacks is gone
                new = request.trigger
                self.unknown.pop(old.id, None)
            new.id, new.resource_name, new.create_time = old.id, old.resource_name, old.create_time
            self.triggers[old.id] = new
        return new

    def delete_build_trigger(self, request: api.DeleteBuildTriggerRequest) -> None:
        with self.lock:
            del self.triggers[self._trigger(request.trigger_id).id]

    def run_build_trigger(self, request: api.RunBuildTriggerRequest) -> Any:
        """The build of a trigger; its one step stands for the file in the repository."""
        trigger = self._trigger(request.trigger_id or request.name.rsplit("/", 1)[-1])
        given = {**trigger.substitutions, **request.source.substitutions}
        branch = request.source.branch_name
        build = api.Build(
            steps=[api.BuildStep(name="busybox", args=["echo", branch])],
            substitutions={**given, "TRIGGER_NAME": trigger.name},
            options={"substitution_option": "ALLOW_LOOSE"},
            tags=[f"trigger-{trigger.id}"],
        )
        return self.create_build(api.CreateBuildRequest(project_id=PROJECT, build=build))

    def list_build_triggers(
        self, request: api.ListBuildTriggersRequest
    ) -> api.ListBuildTriggersResponse:
        with self.lock:
            return api.ListBuildTriggersResponse(triggers=list(self.triggers.values()))

    # How it works ---------------------------------------------------------------------------------

    def check(self, project: str) -> None:
        """Whether the project may use the API at all."""
        if self.faults.disabled or project != PROJECT:
            message = (
                f"Cloud Build API has not been used in project {project} before or it is disabled. "
                "Enable it by visiting https://console.developers.google.com/apis/api/"
                f"cloudbuild.googleapis.com/overview?project={project} then retry."
            )
            raise Refused(403, "PERMISSION_DENIED", message)

    def _accepted(self, request: api.CreateBuildRequest) -> api.Build:
        build = api.Build(request.build)
        options = build.options
        location = request.parent.split("/")[3] if request.parent.count("/") == 3 else "global"
        cloud_build_rules.refuse(build, location, PROJECT)
        if build.source.storage_source:
            self.storage.get(
                build.source.storage_source.bucket, build.source.storage_source.object_
            )
        build.id = str(uuid.uuid4())
        build.name = f"projects/{PROJECT}/locations/{location}/builds/{build.id}"
        build.project_id = PROJECT
        build.create_time = datetime.now(UTC)
        build.status = Status.QUEUED
        build.log_url = f"https://console.cloud.google.com/cloud-build/builds/{build.id}"
        if options.logging in (Mode.LEGACY, Mode.GCS_ONLY, Mode.LOGGING_UNSPECIFIED):
            build.logs_bucket = build.logs_bucket or f"gs://{PROJECT}.cloudbuild-logs"
            self.storage.make(build.logs_bucket.removeprefix("gs://").split("/")[0])
        return build

    def _carry_out(self, key: str) -> None:
        build, cancelled = self.builds[key], self.cancels[key]
        with tempfile.TemporaryDirectory(prefix="workspace-") as folder:
            workspace = Path(folder)
            with self.lock:
                if build.status != Status.QUEUED:
                    return
                build.status, build.start_time = Status.WORKING, datetime.now(UTC)
                for step in build.steps:
                    step.status = Status.WORKING
            try:
                if source := build.source.storage_source:
                    data = self.storage.get(source.bucket, source.object_).data
                    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                        tar.extractall(workspace)  # Debian 12's Python knows no filter yet
                made = self.executor(Job(build, workspace, self._writer(build), cancelled))
            except Exception as error:
                self._writer(build)(f"ERROR: {type(error).__name__}: {error}")
                made = Outcome(ok=False)
        with self.lock:
            for step in build.steps:
                if step.status == Status.WORKING:
                    step.status = Status.SUCCESS if made.ok else Status.FAILURE
            if self.faults.tampered:
                wrong = "sha256:" + "0" * 64
                made.images = [api.BuiltImage(name=i.name, digest=wrong) for i in made.images]
                made.outputs = [re.sub(rb"sha256:\w{64}", wrong.encode(), o) for o in made.outputs]
            build.results = api.Results(images=made.images, build_step_outputs=made.outputs)
            build.finish_time = datetime.now(UTC)
            if build.status == Status.WORKING:
                status = Status.SUCCESS if made.ok else Status.FAILURE
                build.status = self.faults.end_as or status

    def _writer(self, build: api.Build) -> Callable[[str], None]:
        bucket, _, folder = build.logs_bucket.removeprefix("gs://").partition("/")
        name = f"{folder}/log-{build.id}.txt".lstrip("/")
        mode = build.options.logging

        def write(line: str) -> None:
            if mode != Mode.NONE:
                with self.lock:
                    self.entries.append(
                        {
                            "logName": f"projects/{PROJECT}/logs/cloudbuild",
                            "resource": {"type": "build", "labels": {"build_id": build.id}},
                            "insertId": f"{build.id}-{len(self.entries)}",
                            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
                            "textPayload": line,
                        }
                    )
            if bucket:
                self.storage.append(bucket, name, f"{line}\n".encode())

        return write

    def _find(self, key: str) -> api.Build:
        with self.lock:
            if key not in self.builds:
                raise Refused(404, "NOT_FOUND", "Requested entity was not found.")
            return self.builds[key]

    def _trigger(self, key: str) -> api.BuildTrigger:
        for one in self.triggers.values():
            if key in (one.id, one.name):
                return one
        raise Refused(404, "NOT_FOUND", "Requested entity was not found.")

    def _operation(self, build: api.Build) -> Any:
        from google.longrunning import operations_pb2

        operation = operations_pb2.Operation(
            name=f"operations/build/{PROJECT}/{base64.b64encode(build.id.encode()).decode()}"
        )
        metadata = api.BuildOperationMetadata(build=build)
        operation.metadata.Pack(api.BuildOperationMetadata.pb(metadata))
        return operation


# --- REST -----------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: LoopbackCloud

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.path_only = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        call = f"{self.command} {parts.path}"
        self.cloud.build.calls.append(call)
        try:
            self._burst(call)
            path = parts.path
            if path.startswith(("/storage/", "/upload/", "/resumable/")) and "/iam" not in path:
                self._storage(path)
            elif path == "/v2/entries:list":
                self._entries()
            elif self.cloud.access.answers(parts.path):
                query, body = parse_qs(parts.query), json.loads(self.body or b"{}")
                self._json(self.cloud.access.answer(self.path_only, query, body))
            elif path.startswith("/v1/"):
                self._build(self.path_only)
            else:
                self._object()
        except Refused as refused:
            error = {"code": refused.code, "message": refused.message, "status": refused.status}
            self._json({"error": error}, refused.code)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _burst(self, call: str) -> None:
        with self.cloud.storage.lock:
            for number, (pattern, status, count) in enumerate(self.cloud.faults.bursts):
                if count and re.search(pattern, call):
                    self.cloud.faults.bursts[number] = (pattern, status, count - 1)
                    raise Refused(status, "UNAVAILABLE", "The service is currently unavailable.")

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json",
                                                        **(headers or {})})  # fmt: skip

    def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _cut(self) -> None:
        """End the connection as a broken line would: with a reset."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()

    # Cloud Build

    def _build(self, path: str) -> None:
        service = self.cloud.build
        match = re.fullmatch(
            r"/v1/projects/([^/]+)(?:/locations/[^/]+)?/(builds|triggers)(?:/([^/:]+))?(?::(\w+))?",
            path,
        )
        if not match:
            raise Refused(404, "NOT_FOUND", f"no method at {path}")
        project, kind, key, verb = match.groups()
        service.check(project)
        if kind == "builds":
            self._builds(service, key, verb)
        else:
            self._triggers(service, key, verb)

    def _builds(self, service: CloudBuild, key: str | None, verb: str | None) -> None:
        parent = self.query.get("parent", "")
        if self.command == "POST" and not key:
            build = self._read(api.Build)
            made = service.create_build(api.CreateBuildRequest(parent=parent, build=build))
            if self.cloud.faults.cut_create:
                self.cloud.faults.cut_create -= 1
                self._cut()
                return
            self._operation(made)
        elif self.command == "GET" and not key:
            self._message(
                service.list_builds(
                    api.ListBuildsRequest(
                        filter=self.query.get("filter", ""),
                        page_size=int(self.query.get("pageSize", 0)),
                    )
                )
            )
        elif verb == "cancel":
            self._message(service.cancel_build(api.CancelBuildRequest(id=key)))
        elif verb == "retry":
            self._operation(service.retry_build(api.RetryBuildRequest(id=key)))
        else:
            self._message(service.get_build(api.GetBuildRequest(id=key)))

    def _triggers(self, service: CloudBuild, key: str | None, verb: str | None) -> None:
        if verb == "run":
            run = self._read(api.RunBuildTriggerRequest)
            run.trigger_id = key
            self._operation(service.run_build_trigger(run))
        elif self.command == "POST":
            trigger = self._read(api.BuildTrigger)
            self._message(
                service.create_build_trigger(api.CreateBuildTriggerRequest(trigger=trigger))
            )
        elif self.command == "PATCH":
            trigger = self._read(api.BuildTrigger)
            request = api.UpdateBuildTriggerRequest(trigger_id=key, trigger=trigger)
            request.update_mask.FromJsonString(self.query.get("updateMask", ""))
            self._message(service.update_build_trigger(request))
        elif self.command == "DELETE":
            service.delete_build_trigger(api.DeleteBuildTriggerRequest(trigger_id=key))
            self._json({})
        else:
            listed = service.list_build_triggers(api.ListBuildTriggersRequest())
            value = json_format.MessageToDict(api.ListBuildTriggersResponse.pb(listed))
            for one in value.get("triggers", ()):
                one.update(service.unknown.get(one["id"], {}))
            self._json(value)

    def _read(self, kind: Any) -> Any:
        message = kind.pb(kind())
        try:
            json_format.Parse(self.body.decode(), message)
        except json_format.ParseError as error:
            raise Refused(
                400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {error}"
            ) from None
        return kind.wrap(message)

    def _message(self, message: Any) -> None:
        with self.cloud.build.lock:
            text = type(message).to_json(message, use_integers_for_enums=False)
        self._send(text.encode(), 200, {"Content-Type": "application/json"})

    def _operation(self, operation: Any) -> None:
        self._json(json_format.MessageToDict(operation))

    def _entries(self) -> None:
        if self.cloud.faults.logging_status:
            raise Refused(self.cloud.faults.logging_status, "PERMISSION_DENIED", "not you")
        wanted = json.loads(self.body)["filter"]
        key = re.search(r'build_id="([^"]+)"', wanted)
        since = re.search(r'timestamp>="([^"]+)"', wanted)
        begin = datetime.fromisoformat(since[1]) if since else None
        with self.cloud.build.lock:
            found = [
                one
                for one in self.cloud.build.entries
                if key and one["resource"]["labels"]["build_id"] == key[1]
                if begin is None or datetime.fromisoformat(one["timestamp"]) >= begin
            ]
        self._json({"entries": found})

    # Cloud Storage

    def _object(self) -> None:
        """Reading an object at BUCKET/NAME, as a log is read."""
        _, bucket, name = self.path_only.split("/", 2)
        faults = self.cloud.faults
        is_log = Path(name).name.startswith("log-")
        if is_log and faults.log_status:
            raise Refused(faults.log_status, "AccessDenied", "Access denied.")
        data = self.cloud.storage.get(bucket, name).data
        size, _, times = len(data), *faults.cut_log
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if match and start >= size:
            self._send(b"InvalidRange", 416, {"Content-Range": f"bytes */{size}"})
            return
        end = min(size, int(match[2]) + 1) if match and match[2] else size
        body, status = data[start:end], 206 if match else 200
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if match else {}
        if is_log and times and len(body) > faults.cut_log[0]:
            faults.cut_log = (faults.cut_log[0], times - 1)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body[: faults.cut_log[0]])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.close_connection = True
            return
        self._send(body, status, headers)

    def _storage(self, path: str) -> None:
        storage, method = self.cloud.storage, self.command
        match = re.fullmatch(
            r"(?:/upload|/resumable)?/storage/v1/b(?:/([^/]+)(?:/o(/.*)?)?)?", path
        )
        if not match:
            raise Refused(404, "notFound", path)
        bucket, name = match[1], unquote((match[2] or "/")[1:])
        if path.startswith("/upload"):
            self._upload(bucket)
        elif bucket is None and method == "GET":
            prefix = self.query.get("prefix", "")
            mine = [b for b, owner in storage.owners.items() if owner == PROJECT]
            self._json({"items": [self._bucket(b) for b in mine if b.startswith(prefix)]})
        elif bucket is None:
            wanted = json.loads(self.body)["name"]
            if wanted in storage.buckets:
                raise Refused(409, "conflict", "Your previous request to create the bucket ...")
            storage.make(wanted)
            self._json(self._bucket(wanted))
        elif "/o" not in path.removeprefix(f"/storage/v1/b/{bucket}"):
            if bucket not in storage.buckets:
                raise Refused(404, "notFound", "The specified bucket does not exist.")
            self._json(self._bucket(bucket))
        elif not name:
            prefix = self.query.get("prefix", "")
            found = [n for n in storage.buckets.get(bucket, {}) if n.startswith(prefix)]
            self._json({"items": [self._meta(bucket, n) for n in sorted(found)]})
        elif method == "DELETE":
            with storage.lock:
                found_object = storage.get(bucket, name)
                wanted = self.query.get("ifGenerationMatch")
                if wanted and int(wanted) != found_object.generation:
                    raise Refused(412, "conditionNotMet", "At least one of ...")
                del storage.buckets[bucket][name]
            self._send(b"", 204, {})
        elif self.query.get("alt") == "media":
            self.path_only = f"/{bucket}/{name}"
            self._object()
        else:
            self._json(self._meta(bucket, name))

    def _upload(self, bucket: str) -> None:
        """uploadType=multipart and resumable, with ifGenerationMatch."""
        storage = self.cloud.storage
        match = self.query.get("ifGenerationMatch")
        if key := self.query.get("upload_id"):
            _, meta, query, data = storage.uploads[key]
            data += self.body
            found = re.fullmatch(
                r"bytes (?:\*|(\d+)-(\d+))/(\*|\d+)", self.headers["Content-Range"]
            )
            assert found
            if found[3] == "*" or len(data) < int(found[3]):
                self._send(b"", 308, {"Range": f"bytes=0-{len(data) - 1}"})
                return
            wanted = query.get("ifGenerationMatch")
            self._put(bucket, meta, bytes(data), wanted)
        elif self.query["uploadType"] == "resumable":
            key = uuid.uuid4().hex
            meta = json.loads(self.body or b"{}") | {"name": self.query.get("name")}
            meta["name"] = meta["name"] or json.loads(self.body)["name"]
            storage.uploads[key] = (bucket, meta, self.query, bytearray())
            where = f"{self.cloud.url}/upload/storage/v1/b/{bucket}/o?upload_id={key}"
            self._send(b"", 200, {"Location": where})
        else:
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
                head + self.body
            )
            described, _ = message.iter_parts()
            meta = json.loads(described.get_payload(decode=True))
            # the part's bytes as they were sent: the e-mail parser would mend line ends
            boundary = message.get_boundary()
            raw = self.body.split(f"--{boundary}".encode(), 2)[2]
            data = raw.split(b"\r\n\r\n", 1)[1].rsplit(f"\r\n--{boundary}--".encode(), 1)[0]
            self._put(bucket, meta, data, match)

    def _put(self, bucket: str, meta: dict[str, Any], data: bytes, match: str | None) -> None:
        self.cloud.storage.put(
            bucket,
            meta["name"],
            data,
            int(match) if match is not None else None,
            meta.get("metadata"),
            meta.get("contentType", "application/octet-stream"),
        )
        self._json(self._meta(bucket, meta["name"]))

    def _bucket(self, name: str) -> dict[str, Any]:
        return {"kind": "storage#bucket", "id": name, "name": name, "projectNumber": "123456789"}

    def _meta(self, bucket: str, name: str) -> dict[str, Any]:
        found = self.cloud.storage.get(bucket, name)
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "generation": str(found.generation),
            "metageneration": "1",
            "size": str(len(found.data)),
            "crc32c": base64.b64encode(google_crc32c.Checksum(found.data).digest()).decode(),
            "metadata": found.metadata,
            "contentType": found.content_type,
        }


# --- gRPC -----------------------------------------------------------------------------------------

_METHODS = {
    "CreateBuild": (api.CreateBuildRequest, None),
    "GetBuild": (api.GetBuildRequest, api.Build),
    "ListBuilds": (api.ListBuildsRequest, api.ListBuildsResponse),
    "CancelBuild": (api.CancelBuildRequest, api.Build),
    "RetryBuild": (api.RetryBuildRequest, None),
    "CreateBuildTrigger": (api.CreateBuildTriggerRequest, api.BuildTrigger),
    "UpdateBuildTrigger": (api.UpdateBuildTriggerRequest, api.BuildTrigger),
    "RunBuildTrigger": (api.RunBuildTriggerRequest, None),
    "DeleteBuildTrigger": (api.DeleteBuildTriggerRequest, None),
    "ListBuildTriggers": (api.ListBuildTriggersRequest, api.ListBuildTriggersResponse),
}


def _grpc_server(cloud: LoopbackCloud) -> tuple[Any, int]:
    import grpc
    from google.protobuf import empty_pb2

    codes = {
        400: grpc.StatusCode.INVALID_ARGUMENT,
        403: grpc.StatusCode.PERMISSION_DENIED,
        404: grpc.StatusCode.NOT_FOUND,
        409: grpc.StatusCode.ALREADY_EXISTS,
        503: grpc.StatusCode.UNAVAILABLE,
    }

    def handler(name: str, request_type: Any, response_type: Any) -> Any:
        method = getattr(cloud.build, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())

        def call(request: Any, context: Any) -> Any:
            cloud.build.calls.append(f"grpc {name}")
            try:
                with cloud.storage.lock:
                    for number, (pattern, status, count) in enumerate(cloud.faults.bursts):
                        if count and re.search(pattern, f"grpc {name}"):
                            cloud.faults.bursts[number] = (pattern, status, count - 1)
                            raise Refused(status, "UNAVAILABLE", "unavailable")
                project = request.project_id or PROJECT
                cloud.build.check(project)
                return method(request)
            except Refused as refused:
                context.abort(codes[refused.code], refused.message)

        def serialize(message: Any) -> bytes:
            with cloud.build.lock:
                if response_type:
                    return bytes(response_type.serialize(message))
                return bytes((message or empty_pb2.Empty()).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(call, request_type.deserialize, serialize)

    handlers = {name: handler(name, *types) for name, types in _METHODS.items()}
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"{PACKAGE}.CloudBuild", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


# --- all of it ------------------------------------------------------------------------------------


class LoopbackCloud:
    """Everything on one HTTP port, and gRPC on another."""

    def __init__(self, executor: Executor) -> None:
        self.faults = Faults()
        self.access = Access()
        self.storage = Storage()
        self.build = CloudBuild(self.storage, self.faults, executor)
        handler = type("Handler", (_Handler,), {"cloud": self})
        self.server = LoopbackServer(("127.0.0.1", 0), handler)
        self.grpc, self.grpc_port = _grpc_server(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def grpc_url(self) -> str:
        return f"http://127.0.0.1:{self.grpc_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead the factory here."""
        return {
            "BUILDER_CLOUD_ENDPOINT": self.url,
            "BUILDER_CLOUD_PROJECT": PROJECT,
            "STORAGE_EMULATOR_HOST": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": self.url,
        }


@contextlib.contextmanager
def loopback_cloud(executor: Executor | None = None) -> Iterator[LoopbackCloud]:
    """A running service; its builds are carried out by `executor`."""
    cloud = LoopbackCloud(executor or Script())
    thread = threading.Thread(target=cloud.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        for event in cloud.build.cancels.values():
            event.set()
        cloud.grpc.stop(None)
        cloud.server.shutdown()
        cloud.server.server_close()
        cloud.build.workers.shutdown(wait=True, cancel_futures=True)


# --- builds that really run -----------------------------------------------------------------------


@dataclass
class HostedRunner:
    """An executor that carries the submitted message out as a worker would, in containers on
    Docker 20.10.24: `builder cloud run-local --engine-profile hosted`.

    images: what stands in for a builder that cannot be pulled. memory: what each build told of its
    containers' memory, in bytes.
    """

    images: dict[str, str] = field(default_factory=dict)
    memory: list[dict[str, int]] = field(default_factory=list)

    def __call__(self, job: Job) -> Outcome:
        written = submitted(job.build)
        given = written.pop("substitutions", {})  # the sender's own, and built-in ones
        written["substitutions"] = {k: v for k, v in given.items() if k.startswith("_")}
        words = [f"{k}={v}" for k, v in given.items() if not k.startswith("_")]
        words = [word for one in words for word in ("--substitutions", one)]
        words += [word for one in self.images.items() for word in ("--map", "=".join(one))]
        with tempfile.TemporaryDirectory(prefix="submitted-") as folder:
            file = Path(folder) / "build.json"
            file.write_text(json.dumps(written))
            command = [sys.executable, "-m", "builder", "cloud", "run-local", str(file), *words]
            command += ["--engine-profile", "hosted", "--project", PROJECT, "--json"]
            command += ["--source", str(job.workspace), "--host-network", "--host-configuration"]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
            ) as running:
                assert running.stderr is not None
                assert running.stdout is not None
                for line in running.stderr:
                    job.log(line.rstrip("\n"))
                said = running.stdout.read()
        answer = json.loads(said)
        self.memory.append(answer["memory"])
        for step, done in zip(job.build.steps, answer["steps"], strict=True):
            step.status = Status[done["status"]]
        results = answer["results"]
        return Outcome(
            ok=answer["status"] == "SUCCESS",
            images=[api.BuiltImage(**one) for one in results["images"]],
            outputs=[base64.b64decode(one) for one in results["buildStepOutputs"]],
        )


def submitted(build: api.Build) -> dict[str, Any]:
    """The part of a build that its sender wrote."""
    value = json_format.MessageToDict(api.Build.pb(build))
    for key in ("id", "name", "projectId", "status", "createTime", "startTime", "logUrl", "source"):
        value.pop(key, None)
    for step in value["steps"]:
        step.pop("status", None)
    return dict(value)
