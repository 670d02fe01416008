"""`builder cloud`: parse, call one function, print. No logic."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import cloud_local, options
from builder.cli.common import (
    chosen,
    cloud_clients,
    out,
    reporter,
    results,
    root,
    say,
    settings,
    show,
)
from builder.cli.options import argument, flag, option
from builder.core.display import duration
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
def cloud_build(
    project: str | None = options.PROJECT,
    region: str | None = options.REGION,
    targets: list[str] | None = options.TARGETS,
    everything: bool = options.ALL,
    file: Path | None = option("Another file than cloudbuild.yaml."),
    substitutions: list[str] | None = option(
        "Values of cloudbuild.yaml's substitutions.", metavar="_NAME=VALUE,..."
    ),
    dry_run: bool = flag("--dry-run", "Print the request."),
    run_async: bool = flag("--async", "Start the build, and return."),
    registry: str | None = options.REGISTRY,
    as_json: bool = options.JSON,
) -> None:
    """Build, prove and push targets in Cloud Build: one is followed by its log.

    Several have a build each, side by side, followed in a table; of --all, those that the registry
    does not hold as they are here. After Ctrl-C builds go on; `gcloud builds cancel` ends one.
    """
    from builder.cloudbuild import buildfile, submit

    names: tuple[str, ...] = ()
    if file is None or targets or everything:
        names = chosen(targets, everything)
    path, clients = file or root() / "cloudbuild.yaml", cloud_clients(project, region, not dry_run)
    build, given = _loaded(path), buildfile.assignments(substitutions or ())
    several = len(names) > 1 and submit.is_for_targets(build, given)
    if several and everything:
        names = _changed(names, given.get(submit.REGISTRY) or registry)
        if not names:
            say("nothing to build")
            results(as_json, [], ())
            return
    repository = settings(registry=registry).registry
    own = (repository, clients.settings.region, submit.commit(root()))
    submissions = submit.submissions(build, names, *own, given)
    for submission in submissions:
        cloud_local.refuse(path, submission.substitutions)
    if dry_run:
        requests = [submit.request(clients, build, submission) for submission in submissions]
        out(requests if several else requests[0])
        say("not sent; a submission adds the staged source's name and a tag of its own")
        return
    with submit.submitted(clients, build, root(), submissions, run_async) as (started, source):
        say(f"source: {source} ({source.size:,} bytes)")
        for name, one in started.items():
            say(f"{name + ': ' if several else ''}build {one.id}\n  {one.log_url}")
        _follow(clients, started, several, run_async, as_json, source)


def _changed(names: tuple[str, ...], registry: str | None) -> tuple[str, ...]:
    """Return the targets whose image in the registry is not made from the files here; all of them
    where the registry is written in other substitutions."""
    from builder.pipeline.changes import changed

    if registry and "$" in registry:
        return names
    verdicts = changed(root(), settings(registry=registry), names)
    for verdict in verdicts:
        say(f"{verdict.target}: {verdict.why}")
    return tuple(verdict.target for verdict in verdicts if verdict.changed)


def _loaded(path: Path) -> Any:
    """Read a build file. Raises InputError, with the line where cloudbuild-local is installed."""
    from builder.cloudbuild import buildfile

    try:
        return buildfile.load(path)
    except InputError:
        cloud_local.refuse(path, {})
        raise


def _follow(
    clients: "Clients",
    started: dict[str, Any],
    several: bool,
    run_async: bool,
    as_json: bool,
    source: Any,
) -> None:
    """Follow builds to their end, on stderr: one by its log, several in a table.

    Raises if one of them did not succeed.
    """
    from builder.cloudbuild import follow, outcome

    def result(rows: dict[str, dict[str, Any]]) -> None:
        named = [{"target": name, **row} for name, row in rows.items()]
        results(as_json, named if several else next(iter(rows.values())), ())

    if run_async:
        rows = {
            name: {"id": one.id, "status": outcome.status(one), "log_url": one.log_url}
            for name, one in started.items()
        }
        result(rows)
        return
    with _left_running(started.values(), source), reporter() as progress:
        if several:
            done = follow.watch_all(clients, started, progress.on_event)
        else:
            done = {
                name: follow.watch(clients, one, progress.line) for name, one in started.items()
            }
    for name, ended in done.items():
        title = f"{name}: build" if several else "build"
        say(f"{title} {ended.id}: {ended.short}, {duration(ended.seconds)}")
        for image in ended.images:
            say(f"  {image.name}  {image.digest}")
        if ended.note:
            say(f"note: {ended.note}")
    result({name: asdict(ended) for name, ended in done.items()})
    outcome.all_judged(done)


@contextmanager
def _left_running(builds: Iterable[Any], source: Any = None) -> Iterator[None]:
    """Say at Ctrl-C that the builds go on."""
    try:
        yield
    except KeyboardInterrupt:
        if source:
            source.keep = True  # the builds still read it
        for build in builds:
            say(f"\nbuild {build.id} goes on: builder cloud logs {build.id}")
        raise


@cloud_app.command("logs")
def cloud_logs(
    build: str = argument("A build's id.", default=..., metavar="BUILD"),
    project: str | None = options.PROJECT,
    region: str | None = options.REGION,
) -> None:
    """Show a build's log, and follow it while it runs."""
    from builder.cloudbuild import builds, follow, outcome

    clients = cloud_clients(project, region)
    known = builds.get(clients, build)
    with _left_running([known]):
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
def triggers_apply(
    project: str | None = options.PROJECT,
    region: str | None = options.REGION,
    dry_run: bool = flag("--dry-run", "Only show what would change."),
    as_json: bool = options.JSON,
) -> None:
    """Make the project's triggers as builder.toml says. Shows the difference first.

    A table that names no _GPU gives a trigger for each target, started by the files that touch it.
    Triggers that builder.toml does not name stay as they are.
    """
    from builder.cloudbuild import triggers
    from builder.pipeline.changes import touching

    clients = cloud_clients(project, region)
    changes = triggers.plan(root(), clients, touching(root()))
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
    registry: str | None = options.REGISTRY,
    as_json: bool = options.JSON,
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
