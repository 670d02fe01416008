"""Loopback Cloud Build and Cloud Logging over REST, with the loopback Cloud Storage.

The messages are the product's own (google.cloud.devtools.cloudbuild_v1). An `Executor` carries out
a submitted build.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format

from tests.emulators import google
from tests.emulators.cloud_storage import PROJECT, Storage, StorageHandler
from tests.emulators.google import Refused
from tests.emulators.web import LoopbackServer, answering

PARENT = f"projects/{PROJECT}/locations/global"
Status = api.Build.Status
Mode = api.BuildOptions.LoggingMode
ENDED = {
    Status.SUCCESS, Status.FAILURE, Status.INTERNAL_ERROR,
    Status.TIMEOUT, Status.CANCELLED, Status.EXPIRED,
}  # fmt: skip


@dataclass
class Faults(google.Faults):
    """What goes wrong, set by a test at any time.

    end_as: how a build ends, whatever its steps did. disabled: the API is off.
    """

    end_as: Status | None = None
    disabled: bool = False


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
    """An executor that logs these lines, at this pace, and reports these images and outputs.

    wait: ends the build. workspaces: the files of each workspace, as they arrived.
    """

    lines: tuple[str, ...] = ("Starting", "Done")
    seconds: float = 0.0
    ok: bool = True
    images: tuple[tuple[str, str], ...] = ()
    outputs: tuple[bytes, ...] = ()
    wait: threading.Event | None = None
    workspaces: list[list[str]] = field(default_factory=list)

    def __call__(self, job: Job) -> Outcome:
        files = sorted(str(p.relative_to(job.workspace)) for p in job.workspace.rglob("*"))
        self.workspaces.append(files)
        for line in self.lines:
            job.log(line)
            time.sleep(self.seconds)
        while self.wait and not self.wait.wait(0.01) and not job.cancelled.is_set():
            pass
        images = [api.BuiltImage(name=name, digest=digest) for name, digest in self.images]
        return Outcome(self.ok, images, list(self.outputs))


# --- the services ---------------------------------------------------------------------------------


class CloudBuild(google.Service):
    """The builds and triggers of one project, and their entries in Cloud Logging."""

    def __init__(self, storage: Storage, faults: Faults, executor: Executor) -> None:
        super().__init__(faults)
        self.storage, self.executor = storage, executor
        self.builds: dict[str, api.Build] = {}
        self.triggers: dict[str, api.BuildTrigger] = {}
        self.unknown: dict[str, dict[str, Any]] = {}
        """Of each trigger, the fields that the installed client does not know."""
        self.cancels: dict[str, threading.Event] = {}
        self.workers = ThreadPoolExecutor(4)

    def create(self, build: api.Build, parent: str = PARENT) -> Any:
        """Accept a build. Returns the operation."""
        _refuse(build)
        if source := build.source.storage_source:
            self.storage.get(source.bucket, source.object_)
        build.id = str(uuid.uuid4())
        build.name, build.project_id = f"{parent}/builds/{build.id}", PROJECT
        build.create_time, build.status = datetime.now(UTC), Status.QUEUED
        build.log_url = f"https://console.cloud.google.com/cloud-build/builds/{build.id}"
        if build.options.logging in (Mode.LEGACY, Mode.GCS_ONLY, Mode.LOGGING_UNSPECIFIED):
            build.logs_bucket = build.logs_bucket or f"gs://{PROJECT}.cloudbuild-logs"
            self.storage.make(build.logs_bucket.removeprefix("gs://").split("/")[0])
        with self.lock:
            self.builds[build.id], self.cancels[build.id] = build, threading.Event()
        if not self.faults.stay_queued:
            self.workers.submit(self._carry_out, build.id)
        metadata = json_format.MessageToDict(api.Build.pb(build))
        kind = "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata"
        packed = {"@type": kind, "build": metadata}
        return {"name": f"operations/build/{build.id}", "metadata": packed}

    def find(self, key: str) -> api.Build:
        with self.lock:
            if key not in self.builds:
                raise Refused(404, "NOT_FOUND", "Requested entity was not found.")
            return self.builds[key]

    def listed(self, query: str, size: int) -> api.ListBuildsResponse:
        tags = set(re.findall(r'tags\s*=\s*"([^"]+)"', query))
        with self.lock:
            builds = [build for build in self.builds.values() if tags <= set(build.tags)]
        builds.sort(key=lambda build: build.create_time, reverse=True)
        return api.ListBuildsResponse(builds=builds[: size or 100])

    def make_trigger(self, trigger: api.BuildTrigger) -> api.BuildTrigger:
        with self.lock:
            if any(known.name == trigger.name for known in self.triggers.values()):
                raise Refused(409, "ALREADY_EXISTS", f"trigger {trigger.name} already exists")
            trigger.id = str(uuid.uuid4())
            trigger.resource_name = f"{PARENT}/triggers/{trigger.id}"
            trigger.create_time = datetime.now(UTC)
            self.triggers[trigger.id] = trigger
        return trigger

    def update_trigger(self, key: str, new: api.BuildTrigger, mask: str) -> api.BuildTrigger:
        old = self.triggers[key]
        request = api.UpdateBuildTriggerRequest()
        request.update_mask.FromJsonString(mask)
        if request.update_mask.paths:
            merged = api.BuildTrigger(old)
            request.update_mask.MergeMessage(
                api.BuildTrigger.pb(new), api.BuildTrigger.pb(merged), True, True
            )
            new = merged
        else:  # a full update: whatever the request lacks is gone
            self.unknown.pop(key, None)
        new.id, new.resource_name, new.create_time = old.id, old.resource_name, old.create_time
        self.triggers[key] = new
        return new

    def _carry_out(self, key: str) -> None:
        build = self.builds[key]
        with tempfile.TemporaryDirectory(prefix="workspace-") as folder:
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
                        tar.extractall(folder)  # Debian 12's Python knows no filter yet
                job = Job(build, Path(folder), self._writer(build), self.cancels[key])
                outcome = self.executor(job)
            except Exception as error:
                self._writer(build)(f"ERROR: {type(error).__name__}: {error}")
                outcome = Outcome(ok=False)
        good = Status.SUCCESS if outcome.ok else Status.FAILURE
        with self.lock:
            for step in build.steps:
                step.status = good if step.status == Status.WORKING else step.status
            build.results = api.Results(images=outcome.images, build_step_outputs=outcome.outputs)
            build.finish_time = datetime.now(UTC)
            if build.status == Status.WORKING:
                build.status = self.faults.end_as or good

    def _writer(self, build: api.Build) -> Callable[[str], None]:
        def write(line: str) -> None:
            entry = {
                "logName": f"projects/{PROJECT}/logs/cloudbuild",
                "resource": {"type": "build", "labels": {"build_id": build.id}},
                "insertId": f"{build.id}-{len(self.entries)}",
                **dict.fromkeys(("timestamp", "receiveTimestamp"), datetime.now(UTC).isoformat()),
                "textPayload": line,
            }
            if build.options.logging != Mode.NONE:
                with self.lock:
                    self.entries.append(entry)

        return write


_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{#?(\w+))")


def _refuse(build: api.Build) -> None:
    """Raise Refused for what the service does not take, in its words. These are the refusals that
    the factory's own request could run into."""
    bad, options = "", build.options
    if len(build.steps) > 300:
        bad = "invalid build: too many build steps: (max: 300)"
    silent = options.logging in (Mode.CLOUD_LOGGING_ONLY, Mode.NONE, Mode.STACKDRIVER_ONLY)
    if build.service_account and not (build.logs_bucket or silent):
        bad = "if 'build.service_account' is specified, the build must say where its log goes"
    if options.pool.name and (options.machine_type or options.disk_size_gb):
        bad = "invalid build: a private pool's machine type ..."
    value = json_format.MessageToDict(api.Build.pb(build))
    for step in value.get("steps", ()):
        step.pop("script", None)
    if not options.dynamic_substitutions:
        value.pop("substitutions", None)
    used = {name for pair in _REFERENCE.findall(json.dumps(value)) for name in pair}
    for key in build.substitutions:
        if key not in used and options.substitution_option != 1:  # ALLOW_LOOSE
            bad = f'key "{key}" in the substitution data is not matched in the template'
    if bad:
        raise Refused(400, "INVALID_ARGUMENT", bad)


# --- REST -----------------------------------------------------------------------------------------


class _Handler(StorageHandler, google.Handler):
    cloud: LoopbackCloud
    service: CloudBuild

    def route(self, path: str) -> None:
        if "/storage/" in path:
            self.serve_storage(path)
        else:
            self._build(path)

    def _build(self, path: str) -> None:
        shape = r"/v1/projects/([^/]+)/locations/([^/]+)/(builds|triggers)(?:/([^/:]+))?"
        match = re.fullmatch(shape, path)
        if not match or match[1] != PROJECT or self.cloud.faults.disabled:
            what = (
                f"Cloud Build API has not been used in project {PROJECT} before or it is disabled. "
                "Enable it by visiting https://console.developers.google.com/apis/api/"
                f"cloudbuild.googleapis.com/overview?project={PROJECT} then retry."
            )
            raise Refused(403, "PERMISSION_DENIED", what)
        if match[3] == "builds":
            self._builds(match[4] or "", f"projects/{match[1]}/locations/{match[2]}")
        else:
            self._triggers(match[4] or "")

    def _builds(self, key: str, parent: str) -> None:
        service = self.service
        if key:
            self.message(service.find(key))
        elif self.command == "GET":
            size = int(self.query.get("pageSize", 0))
            self.message(service.listed(self.query.get("filter", ""), size))
        else:
            operation = service.create(self.read(api.Build), parent)
            if self.created():
                self.json(operation)

    def _triggers(self, key: str) -> None:
        service = self.service
        if self.command == "POST":
            self.message(service.make_trigger(self.read(api.BuildTrigger)))
        elif self.command == "PATCH":
            mask = self.query.get("updateMask", "")
            self.message(service.update_trigger(key, self.read(api.BuildTrigger), mask))
        else:
            triggers = [api.BuildTrigger.pb(known) for known in service.triggers.values()]
            rows = [json_format.MessageToDict(known) for known in triggers]
            self.json({"triggers": [{**row, **service.unknown.get(row["id"], {})} for row in rows]})


class LoopbackCloud:
    """Everything on one port."""

    def __init__(self, executor: Executor) -> None:
        self.faults, self.storage = Faults(), Storage()
        self.build = CloudBuild(self.storage, self.faults, executor)
        handler = type("Handler", (_Handler,), {"cloud": self, "service": self.build})
        self.server = LoopbackServer(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

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
    """Run the service for the time of the block. executor: carries out its builds."""
    cloud = LoopbackCloud(executor or Script())
    try:
        with answering(cloud.server):
            yield cloud
    finally:
        for event in cloud.build.cancels.values():
            event.set()
        cloud.build.workers.shutdown(wait=True, cancel_futures=True)
