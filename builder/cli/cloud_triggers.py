"""`builder cloud triggers`, and how a command reaches the project in the cloud."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import Json, out, root, say, show

if TYPE_CHECKING:
    from builder.cloudbuild.clients import Clients

triggers_app = typer.Typer(
    help="Triggers: what a push to git builds, as builder.toml says it.", no_args_is_help=True
)

Project = Annotated[str | None, typer.Option(help="The project's id; wins over builder.toml.")]
Region = Annotated[str | None, typer.Option(help="global, or a region.")]
Substitutions = Annotated[list[str] | None, typer.Option("--substitutions", help="_NAME=VALUE,...")]


def connected(sending: bool = True, **flags: str | None) -> "Clients":
    """The clients of the project, by builder.toml and the flags of a command."""
    from builder.cloudbuild.clients import connect, for_show
    from builder.core.settings import load_cloud

    return (connect if sending else for_show)(load_cloud(root(), environ=None, **flags))


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]


@triggers_app.command("list")
def triggers_list(project: Project = None, region: Region = None, as_json: Json = False) -> None:
    """List the project's triggers, and whether they are as builder.toml says."""
    from builder.cloudbuild import triggers

    clients = connected(project=project, region=region)
    rows = triggers.overview(root(), clients)
    if as_json:
        out(rows)
        return
    for row in rows:
        show(f"{row['name']:<32} {row['state']:<12} {row['event']}")


@triggers_app.command("apply")
def triggers_apply(
    dry_run: DryRun = False,
    project: Project = None,
    region: Region = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Write files for `gcloud builds triggers import` instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the project's triggers as builder.toml says. Shows the difference first.

    Triggers that builder.toml does not name stay as they are; `delete` removes one.
    """
    from builder.cloudbuild import triggers

    if files is not None:
        written = triggers.write(root(), files, dry_run)
        for path in written:
            say(f"gcloud builds triggers import --source={path}")
        if as_json:
            out([str(path) for path in written])
        return
    clients = connected(project=project, region=region)
    plan = triggers.plan(root(), clients)
    _shown(plan)
    if not dry_run:
        triggers.carry_out(clients, plan, on_done=say)
    if as_json:
        out([one.summary for one in plan])


@triggers_app.command("delete")
def triggers_delete(
    names: Annotated[list[str], typer.Argument(help="Names of triggers.", metavar="NAME")],
    dry_run: DryRun = False,
    project: Project = None,
    region: Region = None,
) -> None:
    """Delete triggers by name."""
    from builder.cloudbuild import triggers

    clients = connected(project=project, region=region)
    plan = triggers.deletion(clients, names)
    _shown(plan)
    if not dry_run:
        triggers.carry_out(clients, plan, on_done=say)


@triggers_app.command("adopt")
def triggers_adopt(
    name: Annotated[
        str, typer.Argument(help="A trigger's name, or an exported file.", metavar="NAME|FILE")
    ],
    dry_run: DryRun = False,
    project: Project = None,
    region: Region = None,
) -> None:
    """Write a trigger that was made elsewhere into builder.toml: applying it changes nothing."""
    from builder.cloudbuild import adoption

    clients = connected(project=project, region=region)
    sys.stdout.write(adoption.adopt(root(), clients, name, dry_run))


@triggers_app.command("export")
def triggers_export(
    name: Annotated[str, typer.Argument(help="A trigger's name.", metavar="NAME")],
    project: Project = None,
    region: Region = None,
) -> None:
    """Print a trigger as YAML, as `gcloud builds triggers import` takes it."""
    from builder.cloudbuild import triggers

    clients = connected(project=project, region=region)
    sys.stdout.write(triggers.as_yaml(triggers.content(triggers.named(clients, name))))


@triggers_app.command("run")
def triggers_run(
    name: Annotated[str, typer.Argument(help="A trigger's name.", metavar="NAME")],
    branch: Annotated[str, typer.Option(help="Build this branch.")] = "",
    tag: Annotated[str, typer.Option(help="Build this tag.")] = "",
    commit: Annotated[str, typer.Option(help="Build this commit.")] = "",
    substitutions: Substitutions = None,
    project: Project = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Run a trigger now. `builder cloud logs` follows the build."""
    from builder.cloudbuild import submission, triggers
    from builder.cloudbuild.reader.substitutions import assignments
    from builder.core.errors import InputError

    at = {"branch_name": branch, "tag_name": tag, "commit_sha": commit}
    at = {key: value for key, value in at.items() if value}
    if len(at) > 1:
        raise InputError("--branch, --tag and --commit exclude each other", "name one of them")
    clients = connected(project=project, region=region)
    build = triggers.start(clients, name, at, assignments(tuple(substitutions or ())))
    say(f"build {build.id}\n  {build.log_url}\n  builder cloud logs {build.id}")
    if as_json:
        out(submission.row(build))


def _shown(plan: Any) -> None:
    for one in plan:
        say(f"{one.name}: {one.action}")
        for line in one.diff:
            say(f"  {line}")
    if not any(one.action != "unchanged" for one in plan):
        say("nothing to change")
