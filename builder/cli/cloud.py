"""`builder cloud`: parse, call one function, print. No logic."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import cloud_local
from builder.cli.common import chosen, cloud_clients, out, reporter, root, say, settings, show
from builder.cli.console import duration
from builder.cli.options import (
    ALL,
    JSON,
    REGISTRY,
    TARGETS,
    InCloud,
    argument,
    expanded,
    flag,
    option,
)
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.cloudbuild.clients import Clients

cloud_app = typer.Typer(
    help="Google Cloud Build: in the cloud, on every push to git, and on this machine.",
    no_args_is_help=True,
)
cloud_app.command("validate", context_settings=cloud_local.PASSED_ON)(cloud_local.validate)
cloud_app.command("run-local", context_settings=cloud_local.PASSED_ON)(cloud_local.run_local)


# --- builds ---------------------------------------------------------------------------------------


@cloud_app.command("build")
@expanded
def cloud_build(
    cloud: InCloud,
    targets: list[str] | None = TARGETS,
    everything: bool = ALL,
    file: Path | None = option("Another file than cloudbuild.yaml."),
    substitutions: list[str] | None = option(
        "Values of cloudbuild.yaml's substitutions.", metavar="_NAME=VALUE,..."
    ),
    dry_run: bool = flag("--dry-run", "Print the request."),
    run_async: bool = flag("--async", "Start the build, and return."),
    registry: str | None = REGISTRY,
    as_json: bool = JSON,
) -> None:
    """Build, prove and push targets in Cloud Build, and follow the log.

    After Ctrl-C the build goes on; `gcloud builds cancel` ends it.
    """
    from builder.cloudbuild import buildfile, submit

    names: tuple[str, ...] = ()
    if file is None or targets or everything:
        names = chosen(targets, everything)
    path, clients = file or root() / "cloudbuild.yaml", cloud_clients(cloud, sending=not dry_run)
    build, repository = _loaded(path), settings(registry=registry).registry
    values = submit.substitutions(
        build, names, repository, clients.settings.region, submit.commit(root()),
        buildfile.assignments(substitutions or ()),
    )  # fmt: skip
    cloud_local.refuse(path, values)
    if dry_run:
        out(submit.request(clients, build, values, names))
        say("not sent; a submission adds the staged source's name and a tag of its own")
        return
    with submit.submitted(clients, build, root(), values, names, run_async) as (started, source):
        say(f"source: {source} ({source.size:,} bytes)\nbuild {started.id}\n  {started.log_url}")
        _follow(clients, started, run_async, as_json, source)


def _loaded(path: Path) -> Any:
    """Read a build file. Raises InputError, with the line where cloudbuild-local is installed."""
    from builder.cloudbuild import buildfile

    try:
        return buildfile.load(path)
    except InputError:
        cloud_local.refuse(path, {})
        raise


def _follow(
    clients: "Clients", build: Any, run_async: bool, as_json: bool, source: Any = None
) -> None:
    """Follow a build's log to its end, on stderr. Raises if the build did not succeed."""
    from builder.cloudbuild import follow, outcome

    if run_async:
        if as_json:
            out(outcome.row(build))
        return
    with _left_running(build, source), reporter() as progress:
        done = outcome.judged(follow.watch(clients, build, progress.line))
    say(f"build {done.id}: {done.status} in {duration(done.seconds)}")
    for image in done.images:
        say(f"  {image.name}  {image.digest}")
    if done.note:
        say(f"note: {done.note}")
    if as_json:
        out(asdict(done))


@contextmanager
def _left_running(build: Any, source: Any = None) -> Iterator[None]:
    """Say at Ctrl-C that the build goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if source:
            source.keep = True  # the build still reads it
        say(f"\nbuild {build.id} goes on: builder cloud logs {build.id}")
        raise


@cloud_app.command("logs")
@expanded
def cloud_logs(
    cloud: InCloud,
    build: str = argument("A build's id.", default=..., metavar="BUILD"),
) -> None:
    """Show a build's log, and follow it while it runs."""
    from builder.cloudbuild import builds, follow, outcome

    clients = cloud_clients(cloud)
    known = builds.get(clients, build)
    with _left_running(known):
        done = follow.watch(clients, known, show)
    if done.note:
        say(f"note: {done.note}")
    outcome.judged(done)


# --- triggers -------------------------------------------------------------------------------------

triggers_app = typer.Typer(
    help="Triggers: what a push to git builds, as builder.toml says it.", no_args_is_help=True
)
cloud_app.add_typer(triggers_app, name="triggers")


@triggers_app.command("apply")
@expanded
def triggers_apply(
    cloud: InCloud,
    dry_run: bool = flag("--dry-run", "Only show what would change."),
    as_json: bool = JSON,
) -> None:
    """Make the project's triggers as builder.toml says. Shows the difference first.

    Triggers that builder.toml does not name stay as they are.
    """
    from builder.cloudbuild import triggers

    clients = cloud_clients(cloud)
    changes = triggers.plan(root(), clients)
    for change in changes:
        say("\n  ".join([f"{change.name}: {change.action}", *change.diff]))
    if all(change.action == "unchanged" for change in changes):
        say("nothing to change")
    if not dry_run:
        triggers.carry_out(clients, changes, on_done=say)
    if as_json:
        out([change.summary for change in changes])


# --- the project's own build ----------------------------------------------------------------------


@cloud_app.command("changed")
def cloud_changed(
    targets: list[str] | None = argument("Only of these (default: all).", metavar="TARGET"),
    registry: str | None = REGISTRY,
    as_json: bool = JSON,
) -> None:
    """Print the targets whose image in the registry is not made from the files here, one a line.

    A target counts as changed if the registry cannot tell.
    """
    from builder.pipeline.changes import changed

    verdicts = changed(root(), settings(registry=registry), targets or ["all"])
    if as_json:
        out([asdict(verdict) for verdict in verdicts])
    for verdict in () if as_json else verdicts:
        say(f"{verdict.target}: {verdict.why}")
        if verdict.changed:
            show(f"{verdict.target}")
