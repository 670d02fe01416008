"""One build under way: its source, its steps side by side, and its end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild import source
from builder.cloudbuild.reader.build import Step
from builder.cloudbuild.runner import workspace as files
from builder.cloudbuild.runner.delivery import Delivery
from builder.cloudbuild.runner.plan import BuildPlan, PlannedStep
from builder.cloudbuild.runner.result import Failed, Result, StepResult
from builder.cloudbuild.runner.sandbox import (
    SCRIPTS,
    WORKSPACE,
    ContainerSpec,
    Host,
    NotStarted,
    OnLine,
    Sandbox,
)
from builder.core.errors import FactoryError

if TYPE_CHECKING:
    from builder.engine import Engine

BUILDERS = (
    "bazel", "curl", "docker", "dotnet", "gcloud", "git", "go", "gradle", "gsutil", "javac",
    "kubectl", "mvn", "npm", "wget", "yarn",
)  # fmt: skip
"""Images of gcr.io/cloud-builders whose entrypoint is the program in their name. An image that
stands in for one of them and has no entrypoint gets that program."""

_BUILDER = re.compile(r"gcr\.io/cloud-builders/([a-z]+)([:@].*)?")


def run(
    plan: BuildPlan,
    engine: Engine,
    on_line: OnLine,
    *,
    push: bool = True,
    with_socket: bool = True,
    artifacts: Path | None = None,
    workspace: Path | None = None,
    host: Host | None = None,
) -> Result:
    """Carry out a plan.

    on_line: gets every line of the log, from several threads, one line at a time. push: False
    leaves the images on the engine. with_socket: whether steps get the engine's socket. artifacts:
    the folder for objects. workspace: a folder for a copy of the workspace. host: what steps get of
    this machine beyond what the service would give.

    A build that fails gives a Result. KeyboardInterrupt ends the build, removes what it had on the
    engine, and gives a Result with the status CANCELLED. Raises OutsideError if the engine cannot
    make the build's network.
    """
    sandbox = Sandbox(engine, plan.build_id, with_socket, host)
    return BuildRun(plan, sandbox, on_line, push, artifacts, workspace).carry_out()


class BuildRun:
    """One build under way: a thread for each step, and the first failure ends them all."""

    def __init__(
        self,
        plan: BuildPlan,
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
        self.ended: Failed | None = None
        self.results = {
            one.step.index: StepResult(one.step.index, one.step.id, one.step.name, "QUEUED")
            for one in plan.steps
        }
        self.running: dict[int, str] = {}
        self.over: set[int] = set()
        self.talking = threading.Lock()
        self.delivery = Delivery(plan, sandbox, self.say, self.check, self.pause)

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
            [Failed("TIMEOUT", f"the build took longer than {build.timeout:g}s")],
        )
        timer.daemon = True
        timer.start()
        try:
            with self.sandbox:
                try:
                    self.fetch_source()
                    self.run_steps()
                    self.delivery.deliver(self.push, self.artifacts)
                except Failed as why:
                    self.end(why)
                except FactoryError as error:
                    self.end(Failed("INTERNAL_ERROR", error.message, error))
                except KeyboardInterrupt:
                    self.end(Failed("CANCELLED", "interrupted"))
                self.keep_workspace()
        except KeyboardInterrupt:
            self.end(Failed("CANCELLED", "interrupted"))
            self.sandbox.__exit__()
        finally:
            timer.cancel()
            timer.join()
        delivery = self.delivery
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
            images=tuple(delivery.images),
            artifacts=tuple(delivery.copied),
            not_done=(*delivery.not_done, *_not_here(self.plan), *self.sandbox.left),
            error=failed.error if failed else None,
        )

    def end(self, failed: Failed) -> None:
        """End the build: kill every running step. Only the first reason counts."""
        with self.changed:
            self.ended = self.ended or failed
            running = list(self.running.values())
            self.changed.notify_all()
        for container in running:
            self.sandbox.kill(container)

    def check(self) -> None:
        """Raises the reason if the build was ended."""
        if self.ended:
            raise self.ended

    def pause(self, seconds: float) -> None:
        """Wait, at most until the build is ended."""
        with self.changed:
            self.changed.wait(seconds)

    def fetch_source(self) -> None:
        """Make the volumes, and put the source into the workspace."""
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
        """The image of the holder. Any step's will do, because the holder never runs."""
        for one in self.plan.steps:
            if self.sandbox.find(one.image):
                return one.image
        first = self.plan.steps[0]
        try:
            return self.available(first.image, self.say)
        except FactoryError as error:
            what = f'build step {first.step.index} "{first.step.name}" failed'
            raise Failed("FAILURE", f"{what}: {error.message}", error) from None

    def run_steps(self) -> None:
        self.say("BUILD")
        with concurrent.futures.ThreadPoolExecutor(len(self.plan.steps)) as pool:
            futures = [pool.submit(self.step, one) for one in self.plan.steps]
            try:
                for future in futures:
                    future.result()
            except BaseException as error:
                failed = error if isinstance(error, Failed) else None
                self.end(failed or Failed("CANCELLED", "interrupted"))
                raise
        self.check()

    # --- a step -----------------------------------------------------------------------------------

    def step(self, planned: PlannedStep) -> None:
        """Wait for the step's turn, run it, note its result. A failure ends the build."""
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
        except Failed as failed:
            self.end(failed)
        except FactoryError as error:
            self.note(step, status="FAILURE", ended=time.time(), detail=error.message)
            what = f'build step {step.index} "{step.name}" failed'
            if step.allow_failure and not step.allow_exit_codes:
                tell(f"{error.message}; allowed, the build goes on")
                self.finish(step)
            else:
                self.end(Failed("FAILURE", f"{what}: {error.message}", error))
        except Exception as error:
            self.note(step, status="INTERNAL_ERROR", ended=time.time(), detail=repr(error))
            self.end(Failed("INTERNAL_ERROR", f"build step {step.index}: {error!r}"))
        else:
            self.finish(step)
        if prefix:
            self.say(f"Finished {step.label}")

    def finish(self, step: Step) -> None:
        """Let the steps that wait for this one go on."""
        with self.changed:
            self.over.add(step.index)
            self.changed.notify_all()

    def note(self, step: Step, **changes: Any) -> None:
        with self.changed:
            self.results[step.index] = dataclasses.replace(self.results[step.index], **changes)

    def available(self, image: str, tell: OnLine) -> str:
        """The image, pulled if the engine does not have it. Raises OutsideError."""
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
        """Run the container to its end. Returns whether the step's timeout ended it."""
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

        def end() -> None:
            timed_out.set()
            self.sandbox.kill(container)

        timer = threading.Timer(step.timeout, end)
        timer.daemon = True
        timer.start()
        try:
            follow()
        finally:
            timer.cancel()
        return timed_out.is_set()

    def judge(self, step: Step, code: int, timed_out: bool, tell: OnLine) -> None:
        """Set the step's status. Raises Failed if that ends the build."""
        if self.ended:
            timeout = self.ended.status == "TIMEOUT"
            self.note(step, status="TIMEOUT" if timeout else "CANCELLED")
            raise self.ended
        what = f'build step {step.index} "{step.name}" failed'
        if timed_out:
            self.note(step, status="TIMEOUT", detail=f"took longer than {step.timeout:g}s")
            raise Failed("TIMEOUT", f"{what}: it took longer than its timeout, {step.timeout:g}s")
        if code == 0:
            self.note(step, status="SUCCESS")
            return
        detail = f"step exited with non-zero status: {code}"
        self.note(step, status="FAILURE", detail=detail)
        # If both are given, allowExitCodes takes precedence.
        allowed = code in step.allow_exit_codes if step.allow_exit_codes else step.allow_failure
        if not allowed:
            raise Failed("FAILURE", f"{what}: {detail}")
        tell(f"{detail}; allowed, the build goes on")

    def spec(self, planned: PlannedStep) -> ContainerSpec:
        step = planned.step
        entrypoint: tuple[str, ...] | None = (step.entrypoint,) if step.entrypoint else None
        command: tuple[str, ...] | None = step.args or None
        if step.script:
            entrypoint, command = (f"{SCRIPTS}/step-{step.index}",), ()
        elif entrypoint is None:
            entrypoint = self.stand_in(planned)
        if entrypoint is not None and command is None:
            command = ()  # the image's own arguments are meant for its entrypoint
        secrets = tuple(f"{name}={self.plan.secrets[name]}" for name in planned.secrets)
        volumes = (*self.plan.build.options.volumes, *step.volumes)
        return ContainerSpec(
            name=f"step_{step.index}",
            image=planned.image,
            command=command,
            entrypoint=entrypoint,
            environment=(*planned.environment, *secrets),
            workdir=planned.workdir,
            volumes={one.name: one.path for one in volumes},
            index=step.index,
        )

    def script(self, step: Step) -> bytes:
        """A step's script as a program. Without a `#!` line, /bin/sh runs it."""
        begin = "" if step.script.startswith("#!") else "#!/bin/sh\n"
        return (begin + step.script).encode()

    def stand_in(self, planned: PlannedStep) -> tuple[str, ...] | None:
        """The entrypoint of a public builder's stand-in that has none of its own."""
        match = _BUILDER.fullmatch(planned.step.name)
        if planned.image == planned.step.name or not match or match[1] not in BUILDERS:
            return None
        found = self.sandbox.engine.image(planned.image)
        return None if found is None or found.entrypoint else (match[1],)

    def keep_workspace(self) -> None:
        """Leave a copy of the workspace, also after a failure."""
        if self.workspace is None or not self.sandbox.holder:
            return
        with contextlib.suppress(KeyboardInterrupt):
            for file in files.files_of(self.sandbox):
                file.save(self.workspace / file.path)
            self.say(f"the workspace is in {self.workspace}")


def _not_here(plan: BuildPlan) -> Iterator[str]:
    """The parts of a file that only the hosted service can do."""
    value = plan.file.value
    options = value.get("options", {})
    if plan.build.queue_ttl is not None:
        yield "queueTtl: there is no queue here"
    if value.get("dependencies"):
        yield "dependencies: not fetched here"
    if options.get("requestedVerifyOption") == "VERIFIED" or "steps.results" in plan.file.newer:
        yield "provenance and attestations: not made here"
    if options.get("pubsubTopic"):
        yield "pubsubTopic: no message is sent here"
