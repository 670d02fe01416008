"""Carries out a build on a local engine, as the hosted service would.

`prepare` turns a document into a Plan (everything substituted and looked up; nothing on the engine
yet), `run` carries it out. What the service does and where this differs: docs/cloud-build-local.md.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import re
import shutil
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

from builder import registry
from builder.cloudbuild import substitutions, validation
from builder.cloudbuild.containers import (
    HOME,
    OUTPUTS,
    SCRIPTS,
    WORKSPACE,
    Host,
    NotStarted,
    OnLine,
    Sandbox,
    Spec,
)
from builder.cloudbuild.document import Build, Document, Step
from builder.cloudbuild.order import dependencies, needed_for
from builder.cloudbuild.substitutions import Place, Unexpandable
from builder.core import files
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.retry import Passing, Retry

if TYPE_CHECKING:
    from builder.engine import Engine

Status = Literal[
    "QUEUED", "WORKING", "SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED"
]

PUSH_ATTEMPTS = 3
"""How often a push is tried; the pauses between are 1 and 2 seconds."""

BUILDERS = (
    "bazel", "curl", "docker", "dotnet", "gcloud", "git", "go", "gradle", "gsutil", "javac",
    "kubectl", "mvn", "npm", "wget", "yarn",
)  # fmt: skip
"""Images of gcr.io/cloud-builders that begin with the program they are named after. An image that
stands in for one and has no entrypoint gets that program as its own."""

_BUILDER = re.compile(r"gcr\.io/cloud-builders/([a-z]+)([:@].*)?")
_HOST = re.compile(r"(?<![\w./-])((?:[a-z0-9-]+\.)+[a-z0-9-]+(?::\d+)?|localhost(?::\d+)?)/")
_NETWORK = re.compile(r"(--net(?:work)?[= ])cloudbuild\b")


@dataclass(frozen=True)
class PlannedStep:
    """A step as it will run. image: on the engine; mapped from `step.name` where they differ."""

    step: Step
    image: str
    environment: tuple[str, ...]
    secrets: tuple[str, ...]
    waits_for: frozenset[int]
    workdir: str


@dataclass(frozen=True)
class Plan:
    """A build, ready to run. secrets: variable -> value, never shown."""

    build_id: str
    document: Document
    build: Build
    steps: tuple[PlannedStep, ...]
    source: Path | None
    values: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    partial: bool = False
    """Whether only some steps run: nothing is pushed or copied then."""


@dataclass(frozen=True)
class StepResult:
    """How a step went. Times are seconds since the epoch; None for what did not happen."""

    index: int
    id: str
    name: str
    status: Status
    image: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    pulled: float = 0.0
    output: bytes = b""
    detail: str = ""


@dataclass(frozen=True)
class Pushed:
    """An image in its registry."""

    name: str
    digest: str
    seconds: float


@dataclass(frozen=True)
class Copied:
    """An artifact: what it would be called in Cloud Storage, and the file that it is here."""

    location: str
    path: Path
    bytes: int


@dataclass(frozen=True)
class Result:
    """How a build went."""

    build_id: str
    status: Status
    detail: str
    started: float
    ended: float
    steps: tuple[StepResult, ...]
    images: tuple[Pushed, ...] = ()
    artifacts: tuple[Copied, ...] = ()
    not_done: tuple[str, ...] = ()
    """What the service would have done besides, in words."""
    error: FactoryError | None = None

    def json(self) -> dict[str, Any]:
        """For machines, in the API's words."""
        return {
            "id": self.build_id,
            "status": self.status,
            **({"statusDetail": self.detail} if self.detail else {}),
            "startTime": _timestamp(self.started),
            "finishTime": _timestamp(self.ended),
            "steps": [_step_json(one) for one in self.steps],
            "results": {
                "images": [{"name": one.name, "digest": one.digest} for one in self.images],
                "buildStepImages": [one.image for one in self.steps],
                "buildStepOutputs": [b64encode(one.output).decode() for one in self.steps],
                "artifacts": [
                    {"location": one.location, "path": str(one.path), "bytes": one.bytes}
                    for one in self.artifacts
                ],
            },
            "notDone": list(self.not_done),
        }


# --- the plan -------------------------------------------------------------------------------------


def prepare(
    document: Document,
    *,
    source: Path | None,
    given: Mapping[str, str] | None = None,
    builds_in: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    images: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    with_needed: bool = False,
    trigger: bool = False,
) -> Plan:
    """What would run. given: substitutions of the call; builds_in: built-in names and their values
    (the project, the commit ...); images: name or pattern of a builder -> an image of the engine.

    Raises InputError for whatever the service would refuse, and for a secret without a value.
    """
    given, secrets = dict(given or {}), dict(secrets or {})
    findings = validation.check(document, given, trigger)
    validation.refuse(document, findings)
    build_id = str(uuid.uuid4())
    build = document.build
    known = {"BUILD_ID": build_id, "LOCATION": "global", **(builds_in or {})}
    known |= {**build.substitutions, **given}
    dynamic = build.options.dynamic_substitutions or trigger
    strict = build.options.substitution_option == "MUST_MATCH" and not trigger
    try:
        values = substitutions.resolve(known, dynamic, strict)
        build = substitutions.apply(build, values)
    except Unexpandable as error:
        raise InputError(f"{document.path}: {error.what}", error.fix) from None
    chosen = _chosen(document, build, only, with_needed)
    waits = dependencies(build.steps)
    steps = tuple(
        PlannedStep(
            step=step,
            image=mapped(step.name, images or {}),
            environment=_environment(build, step, values.known),
            secrets=tuple(dict.fromkeys((*build.options.secret_env, *step.secret_env))),
            waits_for=waits[step.index] & chosen,
            workdir=_workdir(step.dir),
        )
        for step in build.steps
        if step.index in chosen
    )
    for one in steps:
        for n, name in enumerate(one.secrets):
            if name not in secrets:
                at: Place = ("steps", one.step.index, "secretEnv", n)
                raise InputError(
                    f"{document.where(*at)}: the secret {name} has no value here",
                    f"--secret {name}=FILE, or --secret {name} for the variable of this shell",
                )
    return Plan(
        build_id=build_id,
        document=document,
        build=build,
        steps=steps,
        source=source,
        values=values.known,
        secrets=secrets,
        partial=len(chosen) < len(build.steps),
    )


def mapped(name: str, images: Mapping[str, str]) -> str:
    """The image that stands in for a builder: by its full name, without tag, or by a pattern."""
    bare = re.sub(r"(@sha256:.*|:[^/]*)$", "", name)
    for wanted in (name, bare):
        if wanted in images:
            return images[wanted]
    for pattern, local in images.items():
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(bare, pattern):
            return local
    return name


def _chosen(
    document: Document, build: Build, only: tuple[str, ...], with_needed: bool
) -> frozenset[int]:
    if not only:
        return frozenset(range(len(build.steps)))
    found: set[int] = set()
    for wanted in only:
        match = [s.index for s in build.steps if wanted in (s.id, str(s.index), f"#{s.index}")]
        if not match:
            ids = ", ".join(s.id or str(s.index) for s in build.steps)
            raise InputError(f"{document.path}: no step {wanted!r}", f"one of {ids}")
        found.update(needed_for(build.steps, match[0]) if with_needed else match[:1])
    return frozenset(found)


def _environment(build: Build, step: Step, values: Mapping[str, str]) -> tuple[str, ...]:
    automap = step.automap_substitutions
    if automap is None:
        automap = build.options.automap_substitutions
    everything = dict(values) if automap else {}
    for text in (*build.options.env, *step.env):
        name, _, value = text.partition("=")
        everything[name] = value
    everything |= {"HOME": everything.get("HOME", HOME), "BUILDER_OUTPUT": OUTPUTS}
    return tuple(f"{name}={value}" for name, value in sorted(everything.items()))


def _workdir(folder: str) -> str:
    return str(PurePosixPath(WORKSPACE) / folder) if folder else WORKSPACE


# --- carrying it out ------------------------------------------------------------------------------


def run(
    plan: Plan,
    engine: Engine,
    on_line: OnLine,
    *,
    push: bool = True,
    with_socket: bool = True,
    artifacts: Path | None = None,
    workspace: Path | None = None,
    host: Host | None = None,
) -> Result:
    """Carry out a plan. Every line of the log goes to `on_line`, from several threads, one at a
    time. artifacts: the folder that objects are copied to; workspace: where to leave a copy of the
    workspace. host: what steps get of this machine beyond what the service would give.

    A build that fails is a Result. KeyboardInterrupt ends the build, removes what it had on the
    engine, and gives a Result with the status CANCELLED. Raises OutsideError where the engine
    cannot even make a network.
    """
    sandbox = Sandbox(engine, plan.build_id, with_socket, host)
    return _Run(plan, sandbox, on_line, push, artifacts, workspace).carry_out()


def host_access(network: bool, configuration: bool, logins: bytes = b"") -> Host:
    """What `--host-network`, `--host-configuration` and `--logins` ask for. Raises InputError for a
    CA bundle that cannot be read."""
    from builder.core.network import discover

    return Host(network, discover().secrets() if configuration else {}, logins)


def logins(plan: Plan) -> tuple[tuple[str, ...], bytes]:
    """The registries that a build names and this machine is logged in to, and the configuration of
    the docker command that holds these logins and no others.

    Raises InputError or OutsideError for a broken configuration or helper.
    """
    texts = [text for _, text in substitutions.templates(plan.build)]
    texts += [step.script for step in plan.build.steps]
    hosts = sorted({host for text in texts for host in _HOST.findall(text)})
    auths: dict[str, dict[str, str]] = {}
    for host in hosts:
        if known := registry.credentials_for(host):
            auths[host] = known.for_config()
    return tuple(auths), json.dumps({"auths": auths}).encode() if auths else b""


class _Failed(Exception):  # noqa: N818 - ends a build; what it means is its status
    def __init__(self, status: Status, detail: str, error: FactoryError | None = None) -> None:
        super().__init__(detail)
        self.status: Status = status
        self.detail = detail
        self.error = error


class _Run:
    """One build under way."""

    def __init__(
        self,
        plan: Plan,
        sandbox: Sandbox,
        on_line: OnLine,
        push: bool,
        artifacts: Path | None,
        workspace: Path | None,
    ) -> None:
        self.plan, self.sandbox, self.push = plan, sandbox, push
        self.artifacts, self.workspace = artifacts, workspace
        self._on_line = on_line
        self.changed = threading.Condition()
        self.ended: _Failed | None = None
        self.results = {
            one.step.index: StepResult(one.step.index, one.step.id, one.step.name, "QUEUED")
            for one in plan.steps
        }
        self.running: dict[int, str] = {}
        self.over: set[int] = set()
        self.images: list[Pushed] = []
        self.copied: list[Copied] = []
        self.not_done: list[str] = []
        self.talking = threading.Lock()

    def say(self, line: str) -> None:
        with self.talking:
            self._on_line(line)

    # --- the build --------------------------------------------------------------------------------

    def carry_out(self) -> Result:
        started = time.time()
        build = self.plan.build
        self.say(f'starting build "{self.plan.build_id}"')
        timer = threading.Timer(
            build.timeout,
            self.end,
            [_Failed("TIMEOUT", f"the build took longer than {build.timeout:g}s")],
        )
        timer.daemon = True
        timer.start()
        try:
            with self.sandbox:
                try:
                    self.fetch_source()
                    self.run_steps()
                    self.deliver()
                except _Failed as why:
                    self.end(why)
                except FactoryError as error:
                    self.end(_Failed("INTERNAL_ERROR", error.message, error))
                except KeyboardInterrupt:
                    self.end(_Failed("CANCELLED", "interrupted"))
                self.keep_workspace()
        except KeyboardInterrupt:
            self.end(_Failed("CANCELLED", "interrupted"))
            self.sandbox.__exit__()
        finally:
            timer.cancel()
            timer.join()
        self.not_done += [*_not_here(self.plan), *self.sandbox.left]
        failed = self.ended
        self.say("ERROR" if failed else "DONE")
        if failed:
            self.say(f"ERROR: {failed.detail}")
        return Result(
            build_id=self.plan.build_id,
            status=failed.status if failed else "SUCCESS",
            detail=failed.detail if failed else "",
            started=started,
            ended=time.time(),
            steps=tuple(self.results[index] for index in sorted(self.results)),
            images=tuple(self.images),
            artifacts=tuple(self.copied),
            not_done=tuple(self.not_done),
            error=failed.error if failed else None,
        )

    def end(self, failed: _Failed) -> None:
        """The first reason to end counts; whatever runs is killed."""
        with self.changed:
            self.ended = self.ended or failed
            running = list(self.running.values())
            self.changed.notify_all()
        for container in running:
            self.sandbox.kill(container)

    def check(self) -> None:
        if self.ended:
            raise self.ended

    def fetch_source(self) -> None:
        """The volumes, and the source in the workspace."""
        import tempfile

        from builder.cloudbuild import source

        if self.plan.source is not None:
            self.say("FETCHSOURCE")
        scripts = {
            one.step.index: self.script(one.step) for one in self.plan.steps if one.step.script
        }
        image = self.holding()
        self.sandbox.hold(image, scripts, tuple(one.step.index for one in self.plan.steps))
        if self.plan.source is None:
            return
        with tempfile.TemporaryFile() as file:
            count = source.archive(self.plan.source, file)
            size = file.tell()
            file.seek(0)
            self.sandbox.fill(WORKSPACE, file)
        self.say(f"{count} files, {size:,} bytes from {self.plan.source}")

    def holding(self) -> str:
        """An image to make the holder of: one of the steps', for it never runs."""
        for one in self.plan.steps:
            if self.sandbox.find(one.image):
                return one.image
        first = self.plan.steps[0]
        try:
            return self.available(first.image, self.say)
        except FactoryError as error:
            what = f'build step {first.step.index} "{first.step.name}" failed'
            raise _Failed("FAILURE", f"{what}: {error.message}", error) from None

    def run_steps(self) -> None:
        self.say("BUILD")
        with concurrent.futures.ThreadPoolExecutor(len(self.plan.steps)) as pool:
            futures = [pool.submit(self.step, one) for one in self.plan.steps]
            try:
                for future in futures:
                    future.result()
            except BaseException as error:
                failed = error if isinstance(error, _Failed) else None
                self.end(failed or _Failed("CANCELLED", "interrupted"))
                raise
        self.check()

    # --- a step -----------------------------------------------------------------------------------

    def step(self, planned: PlannedStep) -> None:
        """From waiting to its result. Raises nothing: a failure ends the build."""
        step = planned.step
        with self.changed:
            self.changed.wait_for(lambda: self.ended or planned.waits_for <= self.over)
            if self.ended:
                return
        prefix = f"{step.label}: " if len(self.plan.build.steps) > 1 else ""

        def tell(line: str) -> None:
            self.say(prefix + line)

        if prefix:
            self.say(f"Starting {step.label}")
        self.note(step, status="WORKING", started=time.time())
        try:
            self.execute(planned, tell)
        except _Failed as failed:
            self.end(failed)
        except FactoryError as error:
            self.note(step, status="FAILURE", ended=time.time(), detail=error.message)
            what = f'build step {step.index} "{step.name}" failed'
            if step.allow_failure and not step.allow_exit_codes:
                tell(f"{error.message}; allowed, the build goes on")
                self.finish(step)
            else:
                self.end(_Failed("FAILURE", f"{what}: {error.message}", error))
        except Exception as error:
            self.note(step, status="INTERNAL_ERROR", ended=time.time(), detail=repr(error))
            self.end(_Failed("INTERNAL_ERROR", f"build step {step.index}: {error!r}"))
        else:
            self.finish(step)
        if prefix:
            self.say(f"Finished {step.label}")

    def finish(self, step: Step) -> None:
        """Whoever waits for this step may go on."""
        with self.changed:
            self.over.add(step.index)
            self.changed.notify_all()

    def note(self, step: Step, **changes: Any) -> None:
        with self.changed:
            self.results[step.index] = dataclasses.replace(self.results[step.index], **changes)

    def available(self, image: str, tell: OnLine) -> str:
        """The image, pulled where the engine does not have it."""
        digest = self.sandbox.find(image)
        if digest:
            tell(f"Already have image (with digest): {image}")
            return image
        tell(f"Pulling image: {image}")
        self.sandbox.pull(image, tell)
        return image

    def execute(self, planned: PlannedStep, tell: OnLine) -> None:
        step = planned.step
        before = time.time()
        self.available(planned.image, tell)
        if planned.image != step.name:
            tell(f"{planned.image} stands in for {step.name}")
        self.note(
            step,
            image=self.sandbox.find(planned.image) or "",
            started=time.time(),
            pulled=time.time() - before,
        )
        container = self.sandbox.create(self.spec(planned))
        try:
            try:
                timed_out = self.follow(step, container, tell)
                code = self.sandbox.exit_code(container)
            except NotStarted as error:
                tell(str(error))
                timed_out, code = False, error.code
            self.note(step, ended=time.time(), exit_code=code)
            self.judge(step, code, timed_out, tell)
            self.note(step, output=self.sandbox.output(step.index))
        finally:
            with self.changed:
                self.running.pop(step.index, None)
            self.sandbox.discard(container)

    def follow(self, step: Step, container: str, tell: OnLine) -> bool:
        """Run the container to its end; whether its time was up."""
        with self.changed:
            if self.ended:
                self.note(step, status="CANCELLED", ended=time.time())
                raise self.ended
            self.running[step.index] = container
            follow = self.sandbox.start(container, tell)
        if step.timeout is None:
            follow()
            return False
        timed_out = threading.Event()

        def strike() -> None:
            timed_out.set()
            self.sandbox.kill(container)

        timer = threading.Timer(step.timeout, strike)
        timer.daemon = True
        timer.start()
        try:
            follow()
        finally:
            timer.cancel()
        return timed_out.is_set()

    def judge(self, step: Step, code: int, timed_out: bool, tell: OnLine) -> None:
        """Set the step's status. Raises _Failed where it ends the build."""
        if self.ended:
            timeout = self.ended.status == "TIMEOUT"
            self.note(step, status="TIMEOUT" if timeout else "CANCELLED")
            raise self.ended
        what = f'build step {step.index} "{step.name}" failed'
        if timed_out:
            self.note(step, status="TIMEOUT", detail=f"took longer than {step.timeout:g}s")
            raise _Failed("TIMEOUT", f"{what}: it took longer than its timeout, {step.timeout:g}s")
        if code == 0:
            self.note(step, status="SUCCESS")
            return
        detail = f"step exited with non-zero status: {code}"
        self.note(step, status="FAILURE", detail=detail)
        # allowExitCodes takes precedence where both are given
        allowed = code in step.allow_exit_codes if step.allow_exit_codes else step.allow_failure
        if not allowed:
            raise _Failed("FAILURE", f"{what}: {detail}")
        tell(f"{detail}; allowed, the build goes on")

    def spec(self, planned: PlannedStep) -> Spec:
        step = planned.step
        entrypoint: tuple[str, ...] | None = (step.entrypoint,) if step.entrypoint else None
        command: tuple[str, ...] | None = tuple(self.renamed(arg) for arg in step.args) or None
        if step.script:
            entrypoint, command = (f"{SCRIPTS}/step-{step.index}",), ()
        elif entrypoint is None:
            entrypoint = self.stand_in(planned)
        if entrypoint is not None and command is None:
            command = ()  # without its own arguments: they were for the image's entrypoint
        secrets = tuple(f"{name}={self.plan.secrets[name]}" for name in planned.secrets)
        volumes = (*self.plan.build.options.volumes, *step.volumes)
        return Spec(
            name=f"cloudbuild-{self.plan.build_id[:8]}-step-{step.index}",
            image=planned.image,
            command=command,
            entrypoint=entrypoint,
            environment=(*planned.environment, *secrets),
            workdir=planned.workdir,
            volumes={one.name: one.path for one in volumes},
            index=step.index,
        )

    def script(self, step: Step) -> bytes:
        """A step's script as a program: without a first line of its own it is the plain shell's."""
        begin = "" if step.script.startswith("#!") else "#!/bin/sh\n"
        return (begin + self.renamed(step.script)).encode()

    def stand_in(self, planned: PlannedStep) -> tuple[str, ...] | None:
        """The program of a public builder whose stand-in has no entrypoint of its own."""
        match = _BUILDER.fullmatch(planned.step.name)
        if planned.image == planned.step.name or not match or match[1] not in BUILDERS:
            return None
        found = self.sandbox.engine.image(planned.image)
        return None if found is None or found.entrypoint else (match[1],)

    def renamed(self, text: str) -> str:
        """`--network=cloudbuild` means this build's own network."""
        return _NETWORK.sub(rf"\g<1>{self.sandbox.network}", text)

    # --- what comes out ---------------------------------------------------------------------------

    def deliver(self) -> None:
        build = self.plan.build
        if self.plan.partial:
            if build.images or build.objects:
                self.not_done.append("images and artifacts: only some steps were run")
            return
        missing = [image for image in build.images if not self.sandbox.find(image)]
        if missing:
            raise _Failed(
                "FAILURE",
                "failed to find one or more images after execution of build steps: "
                + json.dumps(missing),
            )
        if (build.images and self.push) or build.objects:
            self.say("PUSH")
        for image in build.images if self.push else ():
            self.push_image(image)
        if build.images and not self.push:
            self.not_done += [f"not pushed (--no-push): {image}" for image in build.images]
        self.copy_objects()
        self.not_done += [f"artifacts.{name}: not uploaded here" for name in build.other_artifacts]

    def push_image(self, image: str) -> None:
        started = time.time()

        def attempt() -> str:
            self.check()
            self.say(f"Pushing {image}")
            try:
                return self.sandbox.push(image, self.say)
            except OutsideError as error:
                failed = _Failed("FAILURE", error.message, error)
                if re.search(r"denied|unauthorized|authentication|forbidden", error.message):
                    raise failed from None
                raise Passing(error.message, final=failed) from None

        digest = Retry(PUSH_ATTEMPTS, first=1.0).run(attempt, self.say, self.pause)
        self.say(f"{image}: digest: {digest}")
        self.images.append(Pushed(image, digest, time.time() - started))

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the build is cancelled."""
        with self.changed:
            self.changed.wait(seconds)

    def copy_objects(self) -> None:
        objects = self.plan.build.objects
        if objects is None:
            return
        if self.artifacts is None:
            self.not_done.append(f"artifacts for {objects.location}: no folder was named")
            return
        bucket = objects.location.removeprefix("gs://").strip("/")
        target = self.artifacts / bucket
        taken: dict[str, Copied] = {}
        for pattern in objects.paths:
            begin = len(taken)
            for file in self.workspace_files(pattern):
                if matches(file.path, pattern) and file.path not in taken:
                    name = PurePosixPath(file.path).name
                    copied = Copied(
                        f"gs://{bucket}/{name}", target / name, file.save(target / name)
                    )
                    # as gsutil: folders are not kept, and the later of two takes the name
                    taken = {k: v for k, v in taken.items() if v.path != copied.path}
                    taken[file.path] = copied
                    self.say(f"{file.path}: copied to {target / name}")
            if len(taken) == begin and not any(matches(path, pattern) for path in taken):
                raise _Failed("FAILURE", f"artifacts: nothing in the workspace matches {pattern!r}")
        self.copied += taken.values()
        manifest = "".join(_manifest_line(one) for one in self.copied)
        files.write(target / f"artifacts-{self.plan.build_id}.json", manifest)

    def workspace_files(self, pattern: str = "") -> Iterator[_File]:
        """The files of the workspace; of a pattern only those in the folder that it begins with."""
        fixed = re.split(r"[*?\[]", pattern.removeprefix(f"{WORKSPACE}/").removeprefix("./"))[0]
        start = PurePosixPath(WORKSPACE) / fixed.rpartition("/")[0].lstrip("/")
        above = start.parent  # an archive's names begin with the last folder that was asked for
        for member, content in self.sandbox.read(str(start)):
            if content:
                path = (above / member.name).relative_to(WORKSPACE)
                yield _File(str(path), content, member.mode)

    def keep_workspace(self) -> None:
        """A copy of the workspace, also after a failure."""
        if self.workspace is None or not self.sandbox.holder:
            return
        with contextlib.suppress(KeyboardInterrupt):
            for file in self.workspace_files():
                file.save(self.workspace / file.path)
            self.say(f"the workspace lies in {self.workspace}")


@dataclass(frozen=True)
class _File:
    """A file of the workspace; `path` is relative to it."""

    path: str
    content: IO[bytes]
    mode: int

    def save(self, to: Path) -> int:
        """Write it whole or not at all; its bytes."""
        with files.replacing(to, self.mode & 0o777) as file:
            shutil.copyfileobj(self.content, file)
            return file.tell()


def _not_here(plan: Plan) -> Iterator[str]:
    """What a file asks for that only the service has."""
    value = plan.document.value
    options = value.get("options", {})
    if plan.build.queue_ttl is not None:
        yield "queueTtl: there is no queue here"
    if value.get("dependencies"):
        yield "dependencies: not fetched here"
    if options.get("requestedVerifyOption") == "VERIFIED" or "steps.results" in plan.document.newer:
        yield "provenance and attestations: not made here"
    if options.get("pubsubTopic"):
        yield "pubsubTopic: nobody is told"


def matches(path: str, pattern: str) -> bool:
    """Whether a file of the workspace is one of a pattern's: `*` within a folder, `**` through
    several, as gsutil reads them; a folder stands for what lies in it."""
    pattern = pattern.removeprefix(f"{WORKSPACE}/").removeprefix("./")
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern.rstrip("/")):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        text += known.get(part, re.escape(part))
    return re.fullmatch(f"{text}(?:/.*)?" if pattern.endswith("/") else text, path) is not None


def _manifest_line(one: Copied) -> str:
    md5 = b64encode(hashlib.md5(one.path.read_bytes(), usedforsecurity=False).digest()).decode()
    hashes = [{"file_hash": [{"type": 2, "value": md5}]}]
    return json.dumps({"location": one.location, "file_hash": hashes}) + "\n"


def _step_json(one: StepResult) -> dict[str, Any]:
    value: dict[str, Any] = {"name": one.name, "id": one.id, "status": one.status}
    if one.started is not None:
        value["timing"] = {"startTime": _timestamp(one.started)}
        if one.ended is not None:
            value["timing"]["endTime"] = _timestamp(one.ended)
    if one.exit_code is not None:
        value["exitCode"] = one.exit_code
    if one.detail:
        value["detail"] = one.detail
    return value


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# --- for people -----------------------------------------------------------------------------------


def timeline(result: Result, width: int = 40) -> list[str]:
    """One line a step: when it ran, as a bar over the build's time."""
    total = max(result.ended - result.started, 0.001)
    names = [one.id or f"#{one.index} {one.name.rpartition('/')[2]}" for one in result.steps]
    longest = max((len(name) for name in names), default=0)
    lines = []
    for name, one in zip(names, result.steps, strict=True):
        if one.started is None:
            lines.append(f"  {name:<{longest}}  {one.status:<9}  {'not run':>9}")
            continue
        ended = one.ended or result.ended
        left = int((one.started - result.started) / total * width)
        long = max(1, round((ended - one.started) / total * width))
        bar = (" " * left + "=" * long)[:width].ljust(width)
        took = f"{ended - one.started:.1f} s"
        code = f"  exit code {one.exit_code}" if one.exit_code else ""
        lines.append(f"  {name:<{longest}}  {one.status:<9}  {took:>9}  |{bar}|{code}")
    return lines


def described(plan: Plan) -> list[dict[str, Any]]:
    """The steps of a plan for `--dry-run`: what would run, without the secrets' values."""
    return [
        {
            "step": one.step.index,
            "id": one.step.id,
            "image": one.image,
            **({"standsInFor": one.step.name} if one.image != one.step.name else {}),
            "entrypoint": one.step.entrypoint,
            "args": list(one.step.args),
            **({"script": one.step.script} if one.step.script else {}),
            "dir": one.workdir,
            "env": list(one.environment),
            "secretEnv": list(one.secrets),
            "waitsFor": sorted(one.waits_for),
            "timeout": one.step.timeout,
        }
        for one in plan.steps
    ]
