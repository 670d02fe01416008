"""The start of an image that anybody made, as a service would start it: a container with the
image's own user, a root file system that it cannot write to, and no network."""

from __future__ import annotations

from typing import Final

from builder.core.events import OnEvent, step
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.prove.any_image import Result
from builder.prove.checks import starts
from builder.prove.judge import Run, explain
from builder.prove.receipts import Defect
from builder.prove.session import LABEL, Limits, Sandbox
from builder.prove.smoke import RECORDS, interruptible

NOT_STARTED: Final = Result(
    "start", "not there", note="only an image in the engine is started (docker load, docker pull)"
)
_FIX: Final = "builder -v prove shows every line that it prints"


def start(
    engine: ContainerEngine, image_id: str, name: str, command: str | None, on_event: OnEvent
) -> Result:
    """Start an image of the engine, and say how that went.

    command: what a shell of the image runs instead of its own command; it has to end well. The
    image's own command is given a minute, and need not end. Raises OutsideError.
    """
    limits = Limits()
    with refusals(name), interruptible(), step(f"start {name}", on_event):
        containers.sweep(engine.client, LABEL)
        image = engine.client.images.get(image_id)
        with Sandbox(engine.client, image, limits=limits, on_event=on_event) as sandbox:
            sandbox.fill(RECORDS)
            if command is not None:
                shell = ["/bin/sh", "-c"]
                run = sandbox.start([command], limits.training_seconds, entrypoint=shell)
                return _of_command(run, command)
            if not (sandbox.config.get("Entrypoint") or sandbox.config.get("Cmd")):
                return Result("start", "not there", note="the image names no command")
            return _of_image(sandbox.start([], starts.SECONDS))


def _of_command(run: Run, command: str) -> Result:
    if run.exit_code == 0 and not run.timed_out:
        return Result("start", "passed", note=f"{command}: {run.seconds:.0f} s")
    problem = explain(run, command)
    fix = _FIX if problem.fix.startswith("see build/") else problem.fix
    return Result("start", "refused", (Defect(problem.message, fix),))


def _of_image(run: Run) -> Result:
    """Judge the image's own command, of which nobody knows what it needs."""
    if run.timed_out:
        return Result("start", "passed", note=f"it ran for {starts.SECONDS:.0f} s")
    if run.exit_code == 0:
        return Result("start", "passed", note=f"ended well after {run.seconds:.0f} s")
    if run.exit_code in starts.NOT_EXECUTED or any(map(starts.FAILS.search, run.tail)):
        message = f"the image does not start: exit code {run.exit_code}; it said last: {run.last}"
        fix = "correct ENTRYPOINT or CMD, or install what is missing"
        return Result("start", "refused", (Defect(message, fix),))
    note = (
        f"exit code {run.exit_code}, it said last: {run.last}; name a command that works with --run"
    )
    return Result("start", "not there", note=note)
