"""`cloudbuild-local validate | run | schema`: parse, call one function, print."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

from cloudbuild_local import __version__
from cloudbuild_local.errors import BuildError, BuildFailedError

FILE = "cloudbuild.yaml"
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return its exit code: 2 for what the user wrote, 3 for the engine, a
    registry or Google, 4 for a failed build, 130 for an interrupted one."""
    try:
        return int(app(list(arguments), prog_name="cloudbuild-local", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BuildError as error:
        _say(f"error: {error.message}\nfix:   {error.fix}")
        return error.exit_code


def script() -> None:
    """Run the command as a program."""
    sys.exit(main(sys.argv[1:]))


def _say(text: str) -> None:
    """Write a line for people to stderr, because stdout carries results only."""
    sys.stderr.write(text + "\n")


def _out(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=sorted) + "\n")


@click.group()
@click.version_option(__version__)
def app() -> None:
    """Validate and run a cloudbuild.yaml of Google Cloud Build on this machine."""


def _common(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of `validate` and `run`."""
    for option in (
        click.option("--quiet", is_flag=True, help="No log, no summary."),
        click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout."),
        click.option("--as-trigger", is_flag=True, help="Loose substitutions, with expansions."),
        click.option(
            "--substitutions",
            multiple=True,
            metavar="_NAME=VALUE,...",
            help="As gcloud takes them.",
        ),
    ):
        command = option(command)
    return command


@app.command()
@click.argument("files", nargs=-1)
@_common
@click.option("--strict", is_flag=True, help="Take warnings for errors.")
def validate(
    files: tuple[str, ...], substitutions: tuple[str, ...], as_trigger: bool, as_json: bool,
    quiet: bool, strict: bool,
) -> int:  # fmt: skip
    """Show what Cloud Build would refuse in FILES, each finding with its line.

    FILES are names, or globs like 'ci/**/*.yaml'; by default cloudbuild.yaml. Nothing is sent
    anywhere. The exit code is 2 if there is an error.
    """
    from cloudbuild_local import reports
    from cloudbuild_local.reader.substitutions import assignments

    overrides, names = assignments(substitutions), files or (FILE,)
    checked = [reports.report(path, overrides, as_trigger, strict) for path in reports.paths(names)]
    if as_json:
        rows = [report.row for report in checked]
        _out(rows[0] if len(names) == 1 and Path(names[0]).exists() else rows)
    else:
        sys.stdout.writelines(f"{line}\n" for line in reports.lines(checked))
    for report in () if as_json or quiet else checked:
        _say(report.summary)
    return 2 if any(report.bad for report in checked) else 0


@app.command()
def schema() -> None:
    """Print a JSON Schema of cloudbuild.yaml, for editors."""
    from cloudbuild_local.reader.schema import for_editors

    _out(for_editors())


_MAP = "An image of the engine for a builder that cannot be pulled; * is a pattern."
_SECRET = "A secret's value: from a file, or this shell's variable of that name."
_LOGINS = "Give steps your logins to the registries that the build names."
_OBJECTS = "Where objects for Cloud Storage go."


@app.command()
@click.argument("file", type=Path, default=FILE)
@_common
@click.option("--step", "steps", multiple=True, metavar="ID", help="Run only this step.")
@click.option("--source", type=FOLDER, help="The folder for /workspace; else the current one.")
@click.option("--no-source", is_flag=True, help="An empty /workspace.")
@click.option("--map", "images", multiple=True, metavar="IMAGE=LOCAL", help=_MAP)
@click.option("--secret", "secrets", multiple=True, metavar="NAME[=FILE]", help=_SECRET)
@click.option("--no-push", is_flag=True, help="Leave images on the engine.")
@click.option("--no-docker", is_flag=True, help="Give steps no access to the engine.")
@click.option("--host-network", is_flag=True, help="Let steps use this machine's network.")
@click.option("--run-secrets", type=FOLDER, metavar="DIR", help="Files for steps, in /run/secrets.")
@click.option("--logins", "with_logins", is_flag=True, help=_LOGINS)
@click.option(
    "--artifacts", type=Path, metavar="DIR", default="cloudbuild-artifacts", help=_OBJECTS
)
@click.option("--project", help="$PROJECT_ID.")
@click.option("--region", default="global", help="$LOCATION.")
@click.option("--dry-run", is_flag=True, help="Show what would run.")
@click.option("--engine", metavar="ADDRESS", help="Such as unix:///run/docker.sock; else docker's.")
def run(
    file: Path, substitutions: tuple[str, ...], as_trigger: bool, as_json: bool, quiet: bool,
    steps: tuple[str, ...], source: Path | None, no_source: bool,
    images: tuple[str, ...], secrets: tuple[str, ...], no_push: bool, no_docker: bool,
    artifacts: Path, project: str | None, region: str, dry_run: bool, engine: str | None,
    **access: Any,
) -> int:  # fmt: skip
    """Run FILE (by default cloudbuild.yaml) on a Docker engine, as Cloud Build would.

    The log goes to stdout (with --json to stderr). Exit codes: 2 for a file that Cloud Build would
    refuse, 3 for an image that cannot be pulled or pushed, 4 for a failed build.
    """
    from cloudbuild_local.reader import document
    from cloudbuild_local.reader.substitutions import assignments
    from cloudbuild_local.runner import engine as engines
    from cloudbuild_local.runner import host, plan
    from cloudbuild_local.runner.engine import OnLine
    from cloudbuild_local.runner.run import run as carry_out

    folder = None if no_source else source or Path.cwd()
    planned = plan.prepare(
        document.read(file, as_trigger),
        source=folder,
        overrides=assignments(substitutions),
        built_in=host.built_in(folder or Path.cwd(), project, region),
        secrets=host.secrets(secrets),
        images=host.stand_ins(images),
        only=steps,
    )
    if dry_run:
        _out(plan.described(planned))
        return 0
    stream = sys.stderr if as_json else sys.stdout
    say: OnLine = _say
    log: OnLine = partial(print, file=stream, flush=True)
    if quiet:
        say = log = lambda _: None
    for_steps = host.access(planned, say=say, **access)
    _end_on_signals()
    result = carry_out(
        planned,
        engines.connect(engine),
        log,
        push=not no_push,
        with_socket=not no_docker,
        artifacts=artifacts,
        host=for_steps,
    )
    for line in result.summary():
        say(line)
    if as_json:
        _out(result.json())
    if result.status in ("SUCCESS", "CANCELLED"):
        return 130 if result.status == "CANCELLED" else 0
    fix = "the log above shows why; --step ID runs one step alone"
    raise result.error or BuildFailedError(result.detail, fix)


def _end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a build as Ctrl-C does: its containers are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
