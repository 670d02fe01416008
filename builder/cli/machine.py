"""`builder doctor` and `builder engine`: the machine that builds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.common import EngineChoice, Json, Registry, out, reporter, say, settings, show

if TYPE_CHECKING:
    from builder.core.checkup import Finding

engine_app = typer.Typer(
    help="The private engine: for machines without Docker.", no_args_is_help=True
)


def doctor(registry: Registry = None, engine: EngineChoice = None, as_json: Json = False) -> None:
    """Check this machine: engine, disk, registry, network."""
    from builder.doctor import examine

    report(examine(settings(registry=registry, engine=engine)), "a build", as_json)


def report(findings: "Sequence[Finding]", what: str, as_json: bool) -> None:
    """Show findings. Raises CheckFailed where one of them prevents `what`."""
    from builder.core.errors import CheckFailed

    if as_json:
        out([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            show(f"{finding.state:<5} {finding.name}: {finding.seen}")
            if finding.remedy:
                show(f"      {finding.remedy}")
    bad = [finding for finding in findings if finding.state == "bad"]
    if bad:
        raise CheckFailed(f"{len(bad)} findings prevent {what}", bad[0].remedy)


def cache(
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the layers that no build has used of late.")
    ] = False,
    days: Annotated[int, typer.Option(help="With --prune: unused for this many days.", min=0)] = 30,
    as_json: Json = False,
) -> None:
    """Show what the factory keeps on this machine, and remove layers that are not used any more."""
    import time

    from builder.bases import store
    from builder.cli.console import size
    from builder.core import files

    freed = store.of_this_machine().prune(time.time() - days * 86400) if prune else 0
    sizes = files.sizes(files.cache_home())
    if as_json:
        out({"folder": str(files.cache_home()), "sizes": sizes, "freed": freed})
        return
    for name, count in sizes.items():
        show(f"{name:<12} {size(count)}")
    say(f"{files.cache_home()}: {size(sum(sizes.values()))}")
    if prune:
        say(f"freed {size(freed)}")


@engine_app.command("start")
def engine_start() -> None:
    """Start the private engine, unless it runs; needs root."""
    from builder.engine import private

    with reporter() as shown:
        endpoint = private.start(on_event=shown.on_event)
    show(f"export DOCKER_HOST={endpoint.host}")


@engine_app.command("stop")
def engine_stop(
    remove: Annotated[
        bool, typer.Option("--remove", help="Also remove its images and caches.")
    ] = False,
) -> None:
    """Stop the private engine."""
    from builder.engine import private

    say("stopped" if private.stop() else "the private engine was not running")
    if remove:
        private.remove()


@engine_app.command("status")
def engine_status(as_json: Json = False) -> None:
    """Say whether the private engine runs, and where."""
    from builder.engine import private

    found = private.status()
    if as_json:
        out({"state": found.state, "data": found.data, "version": found.version})
        return
    show(f"{found.state} {found.version} {found.detail}\ndata: {found.data}")
    if found.endpoint:
        show(f"export DOCKER_HOST={found.endpoint.host}")
