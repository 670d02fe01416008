"""The start of an image that anybody made, as a service would start it: a container with the
image's own user, a root file system that it cannot write to, and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from builder.config import compatibility, image_yaml
from builder.core.errors import InputError
from builder.core.events import OnEvent, step
from builder.engine import containers, refusals
from builder.engine.containers import ContainerEngine
from builder.pipeline.any_image import Answer
from builder.prove.checks import starts
from builder.prove.judge import explain
from builder.prove.receipts import Defect
from builder.prove.run import Run
from builder.prove.session import LABEL, Limits, Session
from builder.prove.smoke import RECORDS, interruptible
from builder.prove.subject import Subject

_SUBJECT: Final = "accelerator: CPU\n"


def of_name(
    name: str,
    image_id: str,
    engine: Callable[[bool], ContainerEngine],
    command: str | None,
    on_event: OnEvent,
) -> Answer:
    """Start an image if the engine has it (image_id is not ""). engine: connects to it.

    Raises InputError where a command is named for an image that the engine does not have.
    """
    if image_id:
        with step(f"start {name}", on_event):
            return start(engine(True), image_id, command, on_event)
    if command is not None:
        fix = "docker pull or docker load it, and name it as the engine does"
        raise InputError(f"--run: {name} is not in the engine, not started", fix)
    return Answer("start", "not there", note="only an image in the engine is started")


def start(engine: ContainerEngine, image_id: str, command: str | None, on_event: OnEvent) -> Answer:
    """Start an image of the engine, and say how that went.

    command: what a shell of the image runs instead of its own command; it has to end well. The
    image's own command is given a minute, and need not end. Raises OutsideError.
    """
    spec = image_yaml.parse(_SUBJECT, Path("images/any/image.yaml"))
    subject = Subject(image_id, spec, compatibility.resolve(spec), {}, RECORDS)
    limits = Limits()
    with refusals(image_id), interruptible():
        containers.sweep(engine.client, LABEL)
        image = engine.client.images.get(image_id)
        with Session(engine.client, subject, image, limits, on_event=on_event) as session:
            session.fill()
            if command is not None:
                shell = ["/bin/sh", "-c"]
                run = session.start([command], limits.training_seconds, entrypoint=shell)
                return _of_command(run, command)
            if not (session.config.get("Entrypoint") or session.config.get("Cmd")):
                return Answer("start", "not there", note="the image names no command")
            return _of_image(session.start([], starts.SECONDS))


def _of_command(run: Run, command: str) -> Answer:
    if run.exit_code == 0 and not run.timed_out:
        return Answer("start", "passed", note=f"{command}: {run.seconds:.0f} s")
    problem = explain(run, command)
    fix = _FIX if problem.fix.startswith("see build/") else problem.fix
    return Answer("start", "refused", (Defect(message=problem.message, fix=fix),))


_FIX: Final = "builder -v prove shows every line that it prints"


def _of_image(run: Run) -> Answer:
    """Judge the image's own command, of which nobody knows what it needs."""
    if run.timed_out:
        return Answer("start", "passed", note=f"it ran for {starts.SECONDS:.0f} s")
    if run.exit_code == 0:
        return Answer("start", "passed", note=f"ended well after {run.seconds:.0f} s")
    last = run.tail[-1].strip()[:200] if run.tail else "nothing"
    if run.exit_code in starts.NOT_EXECUTED or any(map(starts.FAILS.search, run.tail)):
        message = f"the image does not start: exit code {run.exit_code}; it said last: {last}"
        fix = "correct ENTRYPOINT or CMD, or install what is missing"
        return Answer("start", "refused", (Defect(message=message, fix=fix),))
    note = f"exit code {run.exit_code}, it said last: {last}; name a command that works with --run"
    return Answer("start", "not there", note=note)
