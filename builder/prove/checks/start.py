"""Does an image that anybody made start, as a service would start it? In a container with the
image's own user, a root file system that it cannot write to, and no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from builder.core.events import OnEvent
from builder.engine.containers import ContainerEngine
from builder.prove.checks import starts
from builder.prove.checks.compile import CompileTarget
from builder.prove.image import Image, NotThereError, Started
from builder.prove.judge import Run, explain
from builder.prove.receipts import Defect
from builder.prove.session import Limits
from builder.prove.smoke import sandbox
from builder.prove.suite import Answer, Check

_FIX: Final = "builder -v prove shows every line that it prints"


def start(
    engine: ContainerEngine,
    image_id: str,
    name: str,
    command: str | None,
    on_event: OnEvent,
    target: CompileTarget | None = None,
    arguments: Sequence[str] = (),
) -> Started | None:
    """Start an image of the engine, and return how that went; None where it names no command.

    command: what a shell of the image runs instead of its own command; it has to end well. The
    image's own command is given a minute, and need not end. target: what its step is compiled for,
    in a second start, None for nothing; arguments: those of that start. Raises OutsideError.
    """
    with sandbox(engine, image_id, name, "start", on_event) as made:
        shell = ["/bin/sh", "-c"] if command is not None else None
        if command is not None:
            arguments = [command]
            run = made.start(arguments, made.limits.training_seconds, entrypoint=shell)
        elif made.config.get("Entrypoint") or made.config.get("Cmd"):
            run = made.start([], starts.SECONDS)
        else:
            return None
        if target is None:
            return Started(run, command, made.ledger)
        compiled = target.compile(made, arguments, shell)
        return Started(run, command, made.ledger, target.topology, compiled)


def run(image: Image) -> Answer:
    """Say how the start went. Raises NotThereError for an image that was not started, and where the
    way its own command ended says nothing."""
    if image.started is None and image.content.image_id:
        raise NotThereError("the image names no command")
    if image.started is None:
        raise NotThereError("only an image in the engine is started (docker load, docker pull)")
    if image.started.command is not None:
        return _of_command(image.started.run, image.started.command)
    return _of_image(image.started.run)


def _of_command(run: Run, command: str) -> Answer:
    defect = ended_badly(run, command)
    return ([defect], {}) if defect else ([], {"note": f"{command}: {run.seconds:.0f} s"})


def ended_badly(run: Run, who: str) -> Defect | None:
    """Return why a container of an image that anybody made did not end well."""
    if run.exit_code == 0 and not run.timed_out:
        return None
    problem = explain(run, who)
    fix = _FIX if problem.fix.startswith("see build/") else problem.fix
    return Defect(problem.message, fix)


def _of_image(run: Run) -> Answer:
    """Judge the image's own command, of which nobody knows what it needs."""
    if run.flooded:
        note = f"it printed more than {Limits().output >> 20} MiB in {run.seconds:.0f} s"
        return [], {"note": f"{note}, and was stopped"}
    if run.filled:
        note = f"it wrote more than {Limits().disk >> 30} GiB in {run.seconds:.0f} s"
        return [], {"note": f"{note}, and was stopped"}
    if run.timed_out:
        return [], {"note": f"it ran for {starts.SECONDS:.0f} s"}
    if run.exit_code == 0:
        return [], {"note": f"ended well after {run.seconds:.0f} s"}
    if run.exit_code in starts.NOT_EXECUTED or any(map(starts.FAILS.search, run.tail)):
        message = f"the image does not start: exit code {run.exit_code}; it said last: {run.last}"
        return [Defect(message, "correct ENTRYPOINT or CMD, or install what is missing")], {}
    raise NotThereError(
        f"exit code {run.exit_code}, it said last: {run.last}; name a command that works with --run"
    )


CHECK = Check.of("start", 2, run)
