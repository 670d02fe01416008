"""One build under way: its source, its steps side by side, and its end."""

import concurrent.futures
import contextlib
import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloudbuild_local.errors import BuildError
from cloudbuild_local.reader.build import Step
from cloudbuild_local.runner import delivery, source
from cloudbuild_local.runner.engine import Engine, OnLine
from cloudbuild_local.runner.plan import WORKSPACE, BuildPlan, PlannedStep
from cloudbuild_local.runner.result import BuildEnd, Result, Status, StepResult
from cloudbuild_local.runner.sandbox import SCRIPTS, Host, Sandbox

_BUILDER = re.compile(r"gcr\.io/cloud-builders/([a-z]+)([:@].*)?")
"""Builders whose entrypoint is the program in their name. An image that stands in for one of them
and has no entrypoint gets that program."""

Words = tuple[str, ...] | None


def run(
    plan: BuildPlan,
    engine: Engine,
    on_line: OnLine,
    *,
    push: bool = True,
    with_socket: bool = True,
    artifacts: Path | None = None,
    host: Host | None = None,
) -> Result:
    """Carry out a plan.

    on_line: gets every line of the log, one at a time. push: False leaves the images on the engine.
    with_socket: give steps the engine's socket. artifacts: the folder for objects. host: what
    steps get of this machine.

    A build that fails gives a Result. KeyboardInterrupt ends the build, and gives a Result with the
    status CANCELLED. Raises OutsideError if the engine cannot make the build's network.
    """
    sandbox = Sandbox(engine, plan.build_id, with_socket, host or Host())
    return _Run(plan, sandbox, on_line).carry_out(push, artifacts)


class _Run:
    """A thread for each step; the first failure ends them all."""

    def __init__(self, plan: BuildPlan, sandbox: Sandbox, on_line: OnLine) -> None:
        self.plan, self.sandbox = plan, sandbox
        self._on_line = on_line
        self.changed = threading.Condition()
        self.end_reason: BuildEnd | None = None
        steps = [planned.step for planned in plan.steps]
        self.results = {s.index: StepResult(s.index, s.id, s.name, "QUEUED") for s in steps}
        self.containers: dict[int, str] = {}
        self.finished: set[int] = set()
        self.output = threading.Lock()
        self.delivery = delivery.Delivery(plan, sandbox, self.say, self.pause)

    def say(self, line: str) -> None:
        with self.output:
            self._on_line(line)

    def carry_out(self, push: bool, artifacts: Path | None) -> Result:
        started, timeout = time.time(), self.plan.build.timeout
        self.say(f'starting build "{self.plan.build_id}"')
        overdue = BuildEnd("TIMEOUT", f"the build took longer than {timeout:g}s")
        timer = threading.Timer(timeout, self.end, [overdue])
        timer.daemon = True
        timer.start()
        try:
            with self.sandbox, self.ending():
                self.fetch_source()
                self.run_steps()
                self.delivery.deliver(push, artifacts)
        except KeyboardInterrupt:
            self.end(BuildEnd("CANCELLED", "interrupted"))
        finally:
            timer.cancel()
            timer.join()
        end = self.end_reason or BuildEnd("SUCCESS", "")
        self.say(f"ERROR\nERROR: {end.detail}" if self.end_reason else "DONE")
        return Result(
            build_id=self.plan.build_id,
            status=end.status,
            detail=end.detail,
            started=started,
            ended=time.time(),
            steps=tuple(self.results[index] for index in sorted(self.results)),
            images=tuple(self.delivery.images),
            artifacts=tuple(self.delivery.copied),
            not_done=(*self.delivery.not_done, *self.sandbox.left),
            error=end.error,
        )

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Let whatever ends the block end the build."""
        try:
            yield
        except BuildEnd as reason:
            self.end(reason)
        except BuildError as error:
            self.end(BuildEnd("INTERNAL_ERROR", error.message, error))
        except KeyboardInterrupt:
            self.end(BuildEnd("CANCELLED", "interrupted"))

    def end(self, reason: BuildEnd) -> None:
        """End the build: kill every running step. Only the first reason counts."""
        with self.changed:
            self.end_reason = self.end_reason or reason
            containers = list(self.containers.values())
            self.changed.notify_all()
        for container in containers:
            self.sandbox.kill(container)

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds. Raises the reason if the build was ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.end_reason, seconds)
        if self.end_reason:
            raise self.end_reason

    def fetch_source(self) -> None:
        """Make the volumes, and put the source into the workspace."""
        if self.plan.source is not None:
            self.say("FETCHSOURCE")
        self.sandbox.hold(self.any_image(), [planned.step for planned in self.plan.steps])
        if self.plan.source is None:
            return
        with tempfile.TemporaryFile() as file:
            count = source.archive(self.plan.source, file)
            size = file.tell()
            file.seek(0)
            self.sandbox.fill(WORKSPACE, file)
        self.say(f"{count} files, {size:,} bytes from {self.plan.source}")

    def any_image(self) -> str:
        """Return the image of any step, for the holder, which never runs."""
        for planned in self.plan.steps:
            if self.sandbox.engine.image(planned.image):
                return planned.image
        first = self.plan.steps[0]
        try:
            self.pull(first.image, self.say)
        except BuildError as error:
            raise _failed(first.step, error.message, error) from None
        return first.image

    def run_steps(self) -> None:
        self.say("BUILD")
        with concurrent.futures.ThreadPoolExecutor(len(self.plan.steps)) as pool:
            futures = [pool.submit(self.step, planned) for planned in self.plan.steps]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self.end(BuildEnd("CANCELLED", "interrupted"))
                raise
        self.pause(0)

    def step(self, planned: PlannedStep) -> None:
        """Wait for the step's turn, run it, note its result. A failure ends the build."""
        step = planned.step
        with self.changed:
            self.changed.wait_for(lambda: self.end_reason or planned.waits_for <= self.finished)
            if self.end_reason:
                return
        several = len(self.plan.build.steps) > 1

        def tell(line: str) -> None:
            self.say(f"{step.label}: {line}" if several else line)

        if several:
            self.say(f"Starting {step.label}")
        self.note(step, status="WORKING", started=time.time())
        try:
            self.execute(planned, tell)
        except BuildEnd as reason:
            self.end(reason)
        except BuildError as error:
            self.note(step, status="FAILURE", ended=time.time(), detail=error.message)
            if step.allow_failure and not step.allow_exit_codes:
                tell(f"{error.message}; allowed, the build goes on")
                self.finish(step)
            else:
                self.end(_failed(step, error.message, error))
        except Exception as error:
            self.note(step, status="INTERNAL_ERROR", ended=time.time(), detail=repr(error))
            self.end(BuildEnd("INTERNAL_ERROR", f"build step {step.index}: {error!r}"))
        else:
            self.finish(step)
        if several:
            self.say(f"Finished {step.label}")

    def finish(self, step: Step) -> None:
        """Let the steps that wait for this one go on."""
        with self.changed:
            self.finished.add(step.index)
            self.changed.notify_all()

    def note(self, step: Step, **changes: Any) -> None:
        with self.changed:
            self.results[step.index] = dataclasses.replace(self.results[step.index], **changes)

    def pull(self, image: str, tell: OnLine) -> None:
        """Pull an image that the engine does not have. Raises OutsideError."""
        if self.sandbox.engine.image(image):
            tell(f"Already have image (with digest): {image}")
            return
        tell(f"Pulling image: {image}")
        self.sandbox.engine.pull(image, tell)

    def execute(self, planned: PlannedStep, tell: OnLine) -> None:
        step = planned.step
        self.pull(planned.image, tell)
        if planned.image != step.name:
            tell(f"{planned.image} stands in for {step.name}")
        image = self.sandbox.engine.image(planned.image)
        self.note(step, image=image.digest if image else "", started=time.time())
        secrets = tuple(f"{name}={self.plan.secrets[name]}" for name in planned.secrets)
        container = self.sandbox.create(planned, *self.program(planned), secrets)
        try:
            timed_out, code = self.follow(step, container, tell)
            self.note(step, ended=time.time(), exit_code=code)
            self.judge(step, code, timed_out, tell)
            self.note(step, output=self.sandbox.output(step.index))
        finally:
            with self.changed:
                self.containers.pop(step.index, None)
            self.sandbox.discard(container)

    def follow(self, step: Step, container: str, tell: OnLine) -> tuple[bool, int]:
        """Run the container to its end. Return whether its timeout ended it, and the exit code."""
        timed_out = threading.Event()

        def overdue() -> None:
            timed_out.set()
            self.sandbox.kill(container)

        with self.changed:
            self.containers[step.index] = container
        timer = threading.Timer(step.timeout or threading.TIMEOUT_MAX, overdue)
        timer.daemon = True
        with self.sandbox.engine.attached(container) as lines:
            self.sandbox.start(container)
            timer.start()
            try:
                if self.end_reason:  # the build ended before there was something to kill
                    self.sandbox.kill(container)
                for line in lines:
                    tell(line)
            finally:
                timer.cancel()
        return timed_out.is_set(), self.sandbox.exit_code(container)

    def judge(self, step: Step, code: int, timed_out: bool, tell: OnLine) -> None:
        """Set the step's status. Raises BuildEnd if that ends the build."""
        if self.end_reason:
            timeout = self.end_reason.status == "TIMEOUT"
            self.note(step, status="TIMEOUT" if timeout else "CANCELLED")
            raise self.end_reason
        if timed_out:
            detail = f"it took longer than its timeout, {step.timeout:g}s"
            self.note(step, status="TIMEOUT", detail=detail)
            raise _failed(step, detail, status="TIMEOUT")
        detail = f"step exited with non-zero status: {code}" if code else ""
        self.note(step, status="FAILURE" if code else "SUCCESS", detail=detail)
        # If both are set, allowExitCodes takes precedence.
        allowed = code in step.allow_exit_codes if step.allow_exit_codes else step.allow_failure
        if code and not allowed:
            raise _failed(step, detail)
        if code:
            tell(f"{detail}; allowed, the build goes on")

    def program(self, planned: PlannedStep) -> tuple[Words, Words]:
        """Return the entrypoint and the arguments of a step; None keeps the image's own."""
        step, entrypoint, arguments = planned.step, None, planned.step.args or None
        builder = _BUILDER.fullmatch(step.name) if planned.image != step.name else None
        if step.script:
            return (f"{SCRIPTS}/step-{step.index}",), ()
        if step.entrypoint:
            entrypoint = (step.entrypoint,)
        elif builder:
            image = self.sandbox.engine.image(planned.image)
            if image and not image.has_entrypoint:
                entrypoint = (builder[1],)
        # the image's own arguments are meant for its own entrypoint
        return entrypoint, () if entrypoint and arguments is None else arguments


def _failed(
    step: Step, detail: str, error: BuildError | None = None, status: Status = "FAILURE"
) -> BuildEnd:
    return BuildEnd(status, f'build step {step.index} "{step.name}" failed: {detail}', error)
