"""`builder doctor`, `cache` and `engine`: the machine that builds."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from builder.cli.common import cloud_clients, reporter, results, root, say, settings, show
from builder.cli.options import (
    ENGINE,
    JSON,
    REGISTRY,
    BackendOptions,
    SendingOptions,
    expanded,
    flag,
    option,
)
from builder.core import files
from builder.core.display import columns, size
from builder.core.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.core.findings import DoctorFinding
    from builder.core.settings import Settings

engine_app = typer.Typer(
    help="The private engine: for machines without Docker.", no_args_is_help=True
)


@expanded
def doctor(
    on: SendingOptions,
    cloud: bool = flag("--cloud", "Check a build in Cloud Build instead."),
    job: str | None = option("Check a job and the backend that gets it.", metavar="JOB"),
    registry: str | None = REGISTRY,
    engine: str | None = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Check this machine, or what a build in the cloud or a job needs. Changes nothing.

    \b
    builder doctor                           engine, disk, registry, network
    builder doctor --cloud                   APIs, rights, account
    builder doctor --on kubernetes           access, JobSet, rights, queue, accounts
    builder doctor --job cats                and what this job needs: image, bucket

    Each finding that prevents the work has the command that mends it; then the exit code is 4.
    """
    from builder.core.findings import examine
    from builder.doctor import machine

    chosen = settings(registry=registry, engine=engine)
    findings: list[DoctorFinding] = []
    if cloud:
        findings += _cloud(on)
    if job or on.backend:
        findings += _jobs(job, chosen, on)
    if not (cloud or job or on.backend):
        findings += examine(machine.Machine(chosen))
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.severity:<8} {finding.name}: {finding.message}")
        lines += [f"         {finding.remedy}"] if finding.remedy else []
    results(as_json, [asdict(finding) for finding in findings], lines)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise CheckFailed(f"{len(errors)} errors prevent the work", errors[0].remedy)


def _cloud(on: BackendOptions) -> "Iterable[DoctorFinding]":
    from builder.core.findings import examine
    from builder.doctor import cloudbuild

    return examine(cloudbuild.of(cloud_clients(on.flags["project"], on.flags["region"])))


def _jobs(job: str | None, chosen: "Settings", on: SendingOptions) -> "Iterable[DoctorFinding]":
    from builder.jobs import request

    asked = request.JobRequest(root(), job, on.flags, chosen) if job is not None else None
    with reporter() as progress:
        return request.examine(asked, root(), on.flags, progress.on_event)


def cache(
    prune: bool = flag("--prune", "Remove the layers that no build has used of late."),
    days: int = option("With --prune: unused for this many days.", default=30, min=0),
    as_json: bool = JSON,
) -> None:
    """Show what the factory keeps on this machine; remove old layers."""
    from builder.image import content_store

    freed = content_store.of_this_machine().prune(time.time() - days * 86400) if prune else 0
    sizes = files.sizes(files.cache_home())
    content = {"folder": str(files.cache_home()), "sizes": sizes, "freed": freed}
    results(as_json, content, columns((name, size(count)) for name, count in sizes.items()))
    say(f"{files.cache_home()}: {size(sum(sizes.values()))}")
    if prune:
        say(f"freed {size(freed)}")


@engine_app.command("start")
def engine_start() -> None:
    """Start the private engine, unless it runs; needs root."""
    from builder.engine import private

    with reporter() as progress:
        engine = private.start(on_event=progress.on_event)
    show(f"export DOCKER_HOST={engine.host}")


@engine_app.command("stop")
def engine_stop(remove: bool = flag("--remove", "Also remove its images and caches.")) -> None:
    """Stop the private engine."""
    from builder.engine import private

    say("stopped" if private.stop() else "the private engine was not running")
    if remove:
        private.remove()


@engine_app.command("status")
def engine_status(as_json: bool = JSON) -> None:
    """Say whether the private engine runs, and where."""
    from builder.engine import private

    status = private.status()
    lines = [f"{status.state} {status.version} {status.detail}", f"data: {status.data}"]
    lines += [f"export DOCKER_HOST={status.engine.host}"] if status.engine else []
    content = {"state": status.state, "data": status.data, "version": status.version}
    results(as_json, content, lines)
