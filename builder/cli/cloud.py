"""`builder cloud`: parse, call one function, print. No logic."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import cloud_local
from builder.cli.cloud_triggers import Project, Region, Substitutions, connected, triggers_app
from builder.cli.common import (
    All,
    Json,
    Registry,
    Targets,
    chosen,
    out,
    reporter,
    root,
    say,
    settings,
    show,
)
from builder.cli.console import duration

if TYPE_CHECKING:
    from builder.cloudbuild.clients import Clients
    from builder.cloudbuild.doctor import Needs
    from builder.cloudbuild.reader.buildfile import BuildFile
    from builder.cloudbuild.submission import Finished
    from builder.cloudbuild.submission.staging import StagedSource

cloud_app = typer.Typer(
    help="Google Cloud Build: in the cloud, on every push to git, and on this machine.",
    no_args_is_help=True,
)
cloud_app.add_typer(triggers_app, name="triggers")

# --- on this machine (builder/cli/cloud_local.py) -------------------------------------------------

cloud_app.command("validate")(cloud_local.validate)
cloud_app.command("run-local")(cloud_local.run_local)
cloud_app.command("schema")(cloud_local.schema)

# --- in the cloud ---------------------------------------------------------------------------------

BuildId = Annotated[str, typer.Argument(metavar="BUILD", help="A build's id.")]

File = Annotated[Path | None, typer.Option(help="Another file than cloudbuild.yaml.")]
Async = Annotated[bool, typer.Option("--async", help="Submit the build, and return.")]
KeepSource = Annotated[
    bool, typer.Option("--keep-source", help="Leave the staged source, for builder cloud retry.")
]
ServiceAccount = Annotated[str | None, typer.Option(help="The account that the build runs as.")]
WorkerPool = Annotated[str | None, typer.Option(help="A private pool.")]
StagingBucket = Annotated[str | None, typer.Option(help="The bucket for the source.")]
MachineType = Annotated[str | None, typer.Option(help="For example E2_HIGHCPU_8.")]
ShowRequest = Annotated[
    bool, typer.Option("--dry-run", help="Print the request as JSON, and send nothing.")
]
Logging = Annotated[str | None, typer.Option(help="CLOUD_LOGGING_ONLY, GCS_ONLY, LEGACY or NONE.")]


@cloud_app.command("build")
def cloud_build(
    targets: Targets = None,
    everything: All = False,
    file: File = None,
    substitutions: Substitutions = None,
    dry_run: ShowRequest = False,
    run_async: Async = False,
    keep_source: KeepSource = False,
    registry: Registry = None,
    project: Project = None,
    region: Region = None,
    service_account: ServiceAccount = None,
    worker_pool: WorkerPool = None,
    staging_bucket: StagingBucket = None,
    machine_type: MachineType = None,
    logging: Logging = None,
    as_json: Json = False,
) -> None:
    """Build, prove and push targets in Cloud Build, and follow the log.

    Ctrl-C asks whether to cancel the build.
    """
    from builder.cloudbuild import submission
    from builder.cloudbuild.reader.buildfile import load

    names = _targets(targets, everything) if file is None or targets or everything else ()
    where = settings(registry=registry)
    read = load(file or root() / "cloudbuild.yaml")
    clients = connected(
        sending=not dry_run,
        project=project,
        region=region,
        service_account=service_account,
        worker_pool=worker_pool,
        staging_bucket=staging_bucket,
        machine_type=machine_type,
        logging=logging,
    )
    given = _substitutions(read, names, where.registry, clients, substitutions)
    if dry_run:
        out(submission.shown(clients, read, given, names))
        _say_forecast(clients, read, names)
        say("not sent; a submission adds the staged source's name and a tag of its own")
        return
    keep = keep_source or run_async
    with submission.submitted(clients, read, root(), given, names, keep, _say_source) as made:
        say(f"build {made.build.id}\n  {made.build.log_url}")
        if run_async:
            if as_json:
                out(submission.row(made.build))
            return
        with _cancelling(clients, made.build, made.staging):
            done = _follow(clients, made.build)
        done = submission.compared(done)
    _told(done, as_json)


def _targets(targets: list[str] | None, everything: bool) -> tuple[str, ...]:
    from builder.pipeline.changes import known_targets

    return known_targets(root(), chosen(targets, everything))


def _substitutions(
    file: "BuildFile",
    targets: tuple[str, ...],
    registry: str | None,
    clients: "Clients",
    given: list[str] | None,
) -> dict[str, str]:
    from builder.cloudbuild import submission
    from builder.cloudbuild.commit import from_git, is_clean
    from builder.cloudbuild.reader.substitutions import assignments

    commit = from_git(root()) if is_clean(root()) else {}
    region = clients.settings.region
    return submission.values(
        file, targets, registry, region, commit, assignments(tuple(given or ()))
    )


def _say_source(source: "StagedSource") -> None:
    say(f"source: {source} ({source.size:,} bytes)")


def _follow(clients: "Clients", build: Any) -> "Finished":
    """Follow a build's log to its end, on stderr. Raises if the build did not succeed."""
    from builder.cloudbuild import submission

    with reporter() as shown:
        done = submission.watch(clients, build, shown.line, shown.on_event)
    if done.note:
        say(f"note: {done.note}")
    return submission.judged(done)


@contextmanager
def _cancelling(clients: "Clients", build: Any, staging: Any = None) -> Iterator[None]:
    """Ctrl-C asks whether to cancel the build. Without a terminal, the build goes on."""
    from builder.cloudbuild import submission

    try:
        yield
    except KeyboardInterrupt:
        say()
        asked = f"cancel build {build.id}, too?"
        if sys.stdin.isatty() and typer.confirm(asked, default=False, err=True):
            submission.cancel(clients, build.id)
            say(f"build {build.id} is cancelled")
        else:
            if staging:
                staging.keep = True  # the build still reads it
            say(f"build {build.id} goes on: builder cloud logs {build.id}")
        raise


def _told(done: "Finished", as_json: bool) -> None:
    from dataclasses import asdict

    took = f" in {duration(done.seconds)}" if done.seconds else ""
    say(f"build {done.id}: {done.status}{took}")
    for image in done.images:
        same = "as in the registry" if image.registry else "not compared with the registry"
        say(f"  {image.name}  {image.digest}  ({same})")
    if done.note:
        say(f"note: {done.note}")
    if as_json:
        out(asdict(done))


@cloud_app.command("doctor")
def cloud_doctor(
    file: File = None,
    registry: Registry = None,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Look at what a build needs in the project, and at what it may cost. Changes nothing."""
    from dataclasses import asdict

    from builder.cloudbuild.doctor import examine
    from builder.cloudbuild.reader.buildfile import load
    from builder.core.errors import CheckFailed

    read = load(file or root() / "cloudbuild.yaml")
    clients = connected(project=project, region=region)
    findings = examine(clients, read, settings(registry=registry).registry, _needs(read))
    if as_json:
        out([asdict(finding) for finding in findings])
    for finding in () if as_json else findings:
        show(f"{finding.state:<5} {finding.name}: {finding.seen}")
        if finding.remedy:
            show(f"      {finding.remedy}")
    bad = [finding for finding in findings if finding.state == "bad"]
    if bad:
        raise CheckFailed(f"{len(bad)} findings prevent a build", bad[0].remedy)


def _needs(file: "BuildFile", targets: tuple[str, ...] = ()) -> "Needs | None":
    """What a build of these targets, or of all, uses. None for a file of another's making."""
    from builder.cloudbuild.doctor import Needs
    from builder.render import cloud
    from builder.render.dockerfiles import load_all

    if file.path != root() / cloud.CLOUDBUILD or not cloud.has_cloud(root()):
        return None
    machine = file.build.options.machine_type
    made = load_all(root(), targets or None)
    return Needs(cloud.memory_gb(machine), cloud.disk_gb(made, cloud.side_by_side(machine)))


def _say_forecast(clients: "Clients", file: "BuildFile", targets: tuple[str, ...]) -> None:
    from builder.cloudbuild.doctor import forecast

    for finding in forecast(clients.settings, file, _needs(file, targets)):
        say(f"{finding.name}: {finding.seen}")


@cloud_app.command("status")
def cloud_status(
    build: BuildId, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """Show the state of a build."""
    from builder.cloudbuild import submission

    found = submission.row(submission.get(connected(project=project, region=region), build))
    if as_json:
        out(found)
        return
    show(f"{found['id']} {found['status']} {duration(found['seconds'])}")
    for step in found["steps"]:
        show(f"  {step['status']:<20} {step['id']}")
    for image in found["images"]:
        show(f"  {image['name']}  {image['digest']}")
    show(f"  {found['detail'] or found['log_url']}")


@cloud_app.command("logs")
def cloud_logs(
    build: BuildId, project: Project = None, region: Region = None, as_json: Json = False
) -> None:
    """Show a build's log, and follow it while it runs."""
    from builder.cloudbuild import submission

    clients = connected(project=project, region=region)
    found = submission.get(clients, build)
    with _cancelling(clients, found), reporter() as shown:
        line = shown.line if as_json else _print
        done = submission.watch(clients, found, line)
    if done.note:
        say(f"note: {done.note}")
    if as_json:
        out(submission.row(submission.get(clients, build)))
    submission.judged(done)


def _print(line: str) -> None:
    show(line)
    sys.stdout.flush()


@cloud_app.command("cancel")
def cloud_cancel(build: BuildId, project: Project = None, region: Region = None) -> None:
    """Cancel a build."""
    from builder.cloudbuild import submission

    found = submission.cancel(connected(project=project, region=region), build)
    say(f"build {found.id}: {submission.status(found)}")


@cloud_app.command("retry")
def cloud_retry(
    build: BuildId,
    run_async: Annotated[bool, typer.Option("--async", help="Start it, and return.")] = False,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Run a build again, from the same source."""
    from builder.cloudbuild import submission

    clients = connected(project=project, region=region)
    again = submission.retry(clients, build)
    say(f"build {again.id}\n  {again.log_url}")
    if run_async:
        if as_json:
            out(submission.row(again))
        return
    with _cancelling(clients, again):
        done = _follow(clients, again)
    _told(submission.compared(done), as_json)


@cloud_app.command("list")
def cloud_list(
    tag: Annotated[str, typer.Option(help="Only builds with this tag.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """List the latest builds."""
    from builder.cloudbuild import submission

    clients = connected(project=project, region=region)
    rows = [submission.row(one) for one in submission.listed(clients, tag, limit)]
    if as_json:
        out(rows)
        return
    for row in rows:
        what = row["substitutions"].get("_GPU") or " ".join(row["tags"])
        show(
            f"{row['id']}  {(row['created'] or '')[:19]}  {row['status']:<10} "
            f"{duration(row['seconds']):>12}  {what}"
        )


@cloud_app.command("changed")
def cloud_changed(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Only of these (default: all).", metavar="TARGET")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Compare with this commit instead of with the registry.")
    ] = None,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Print the targets whose image in the registry is not made from the files here, one a line.

    A target counts as changed if the registry cannot tell.
    """
    from dataclasses import asdict

    from builder.pipeline.changes import changed

    found = changed(root(), settings(registry=registry), targets or ["all"], since)
    if as_json:
        out([asdict(one) for one in found])
        return
    for one in found:
        say(f"{one.target}: {one.why}")
        if one.changed:
            show(f"{one.target}")


@cloud_app.command("builder-image")
def cloud_builder_image(
    registry: Registry = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="auto, machine or private.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build the image that cloudbuild.yaml's steps run in, on this machine's engine.

    For `run-local` on a machine that cannot reach Docker Hub or gcr.io: the image stands in for
    theirs.
    """
    from builder.engine import connect
    from builder.pipeline.builder_image import build

    with reporter() as shown:
        where = settings(registry=registry, engine=engine)
        made = build(root(), where, connect(where, on_event=shown.on_event), shown.on_event)
    say(f"{made.reference}")
    say(f"builder cloud run-local --map gcr.io/cloud-builders/docker={made.reference}")
    if as_json:
        out({"reference": made.reference, "digest": made.digest})
