"""`builder cloud validate` and `run-local`: a cloudbuild.yaml without the cloud.

They work on any project's file: no builder.toml is needed.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.common import OPTIONS, EngineChoice, Json, out, reporter, say, show
from builder.cli.console import duration

if TYPE_CHECKING:
    from builder.cloudbuild.runner import BuildPlan, Host, Result
    from builder.engine import Engine
    from builder.engine.private.memory import PeakMemory

FILE = Path("cloudbuild.yaml")

File = Annotated[Path, typer.Argument(help="A cloudbuild.yaml or .json.", metavar="FILE")]
Files = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files, or globs like 'ci/**/*.yaml' (default: cloudbuild.yaml).", metavar="FILE"
    ),
]
Substitutions = Annotated[
    list[str] | None,
    typer.Option("--substitutions", metavar="_NAME=VALUE,...", help="As gcloud takes them."),
]
AsTrigger = Annotated[
    bool,
    typer.Option("--as-trigger", help="Substitutions as for a trigger: loose, with expansions."),
]
Steps = Annotated[
    list[str] | None,
    typer.Option("--step", metavar="ID", help="Run only this step (its id or number). Repeatable."),
]
WithNeeded = Annotated[
    bool, typer.Option("--with-needed", help="With --step: also run what it waits for.")
]
Source = Annotated[
    Path | None, typer.Option(help="The folder that becomes /workspace; else the current one.")
]
NoSource = Annotated[bool, typer.Option("--no-source", help="An empty /workspace.")]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="IMAGE=LOCAL",
        help="An image of the engine for a builder that cannot be pulled; * is a pattern.",
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=FILE]",
        help="A secret variable's value: from a file, or this shell's variable of that name.",
    ),
]
NoPush = Annotated[bool, typer.Option("--no-push", help="Leave images on the engine.")]
NoDocker = Annotated[bool, typer.Option("--no-docker", help="Steps get no access to the engine.")]
HostNetwork = Annotated[
    bool,
    typer.Option("--host-network", help="Steps share this machine's network and its loopback."),
]
HostConfiguration = Annotated[
    bool,
    typer.Option(
        "--host-configuration",
        help="Steps find this machine's CA bundle, proxies and indexes below /run/secrets.",
    ),
]
Logins = Annotated[
    bool,
    typer.Option(
        "--logins",
        help="Steps get this machine's logins to the registries that the build names.",
    ),
]
Metadata = Annotated[
    bool,
    typer.Option(
        "--metadata",
        help="Steps get tokens of your Google login from a metadata server: they can do what you "
        "can.",
    ),
]
Artifacts = Annotated[Path, typer.Option(help="The folder for objects of Cloud Storage.")]
WriteWorkspace = Annotated[
    Path | None, typer.Option(help="Leave a copy of /workspace in this folder.")
]
ProjectId = Annotated[str | None, typer.Option(help="$PROJECT_ID.")]
Location = Annotated[str, typer.Option(help="$LOCATION.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run.")]


class EngineProfile(StrEnum):
    """Engines that are made for one build."""

    HOSTED = "hosted"


Profile = Annotated[
    EngineProfile | None,
    typer.Option(
        "--engine-profile",
        help="hosted: an empty engine for this build alone, of the version, and with the memory, "
        "that a worker has. Needs root.",
    ),
]


class Format(StrEnum):
    """The forms of the findings."""

    TEXT = "text"
    GITHUB = "github"
    SARIF = "sarif"


def validate(
    files: Files = None,
    substitutions: Substitutions = None,
    as_trigger: AsTrigger = False,
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="As this trigger: of builder.toml, of the project, or an exported file.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="github: beside the lines of a pull request. sarif: code scanning."
        ),
    ] = Format.TEXT,
    as_json: Json = False,
) -> None:
    """Show what Cloud Build would refuse in files, each finding with its line.

    It checks fields and types, limits, substitutions, the order of the steps, volumes, secrets and
    names. It sends nothing anywhere. The exit code is 2 if there is an error.
    """
    from builder.cloudbuild.reader import findings
    from builder.cloudbuild.reader.substitutions import assignments
    from builder.core.errors import InputError

    if as_json and form != Format.TEXT:
        raise InputError(f"--json and --format {form.value} exclude each other", "leave one out")
    given = assignments(tuple(substitutions or ()))
    names, account = files or [str(FILE)], ""
    if trigger:
        path, values, account = _trigger(trigger)
        given, names, as_trigger = {**values, **given}, files or [path], True
    found = [
        findings.of_file(one, given, as_trigger, strict, account)
        for one in findings.files_of(names)
    ]
    if as_json:
        rows = [one.summary for one in found]
        out(rows[0] if len(names) == 1 and Path(names[0]).exists() else rows)
    elif form == Format.SARIF:
        out(findings.sarif(found))
    else:
        lines = findings.github if form == Format.GITHUB else findings.plain
        for line in lines(found):
            show(line)
    for one in found:
        errors = len([finding for finding in one.findings if finding.level == "error"])
        warnings = len(one.findings) - errors
        if not as_json:
            say(f"{one.path}: {one.steps} steps, {errors} errors, {warnings} warnings")
    if any(one.bad for one in found):
        raise typer.Exit(2)


def _trigger(name: str) -> tuple[str, dict[str, str], str]:
    """The file, the substitutions and the account of a trigger."""
    from builder.cli.cloud_triggers import connected
    from builder.cloudbuild import adoption, triggers
    from builder.cloudbuild.trigger_table import wanted
    from builder.core.project import find_root
    from builder.core.settings import load_cloud

    if adoption.is_file(name):
        return triggers.judged_with(triggers.content(adoption.from_file(Path(name))))
    ours = wanted(find_root(), load_cloud(find_root()))
    if name in ours:
        return triggers.judged_with(ours[name])
    return triggers.judged_with(triggers.content(triggers.named(connected(), name)))


def schema() -> None:
    """Print a JSON Schema of cloudbuild.yaml, for editors."""
    from builder.cloudbuild.reader.jsonschema import json_schema

    out(json_schema())


def run_local(
    file: File = FILE,
    substitutions: Substitutions = None,
    steps: Steps = None,
    with_needed: WithNeeded = False,
    source: Source = None,
    no_source: NoSource = False,
    images: Images = None,
    secrets: Secrets = None,
    no_push: NoPush = False,
    no_docker: NoDocker = False,
    host_network: HostNetwork = False,
    host_configuration: HostConfiguration = False,
    logins: Logins = False,
    metadata: Metadata = False,
    artifacts: Artifacts = Path("build/cloudbuild/artifacts"),
    write_workspace: WriteWorkspace = None,
    project: ProjectId = None,
    region: Location = "global",
    as_trigger: AsTrigger = False,
    dry_run: DryRun = False,
    engine: EngineChoice = None,
    engine_profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Carry out a cloudbuild.yaml on this machine's engine, as Cloud Build would.

    The log goes to stdout (with --json to stderr). Exit codes: 2 for a file that Cloud Build would
    refuse, 3 for an image that cannot be pulled or pushed, 4 for a failed build.
    """
    from builder.cloudbuild import runner
    from builder.cloudbuild.reader import buildfile
    from builder.cloudbuild.reader.substitutions import assignments

    folder = None if no_source else _folder(source)
    plan = runner.prepare(
        buildfile.load(file),
        source=folder,
        given=assignments(tuple(substitutions or ())),
        builds_in=_built_in(folder, project, region),
        secrets=_secrets(tuple(secrets or ())),
        images=_pairs("--map", tuple(images or ())),
        only=tuple(steps or ()),
        with_needed=with_needed,
        trigger=as_trigger,
    )
    if dry_run:
        _show_plan(plan, as_json)
        return
    host = _host(plan, host_network, host_configuration, logins, metadata)
    with _working(engine, engine_profile, plan) as (where, memory):
        result = runner.run(
            plan, where, _log(sys.stderr if as_json else sys.stdout), push=not no_push,
            with_socket=not no_docker, artifacts=artifacts, workspace=write_workspace, host=host,
        )  # fmt: skip
        _conclude(result, memory, as_json)


def _host(
    plan: "BuildPlan", network: bool, configuration: bool, logins: bool, metadata: bool
) -> "Host":
    """What the steps get of this machine; says whose logins they get."""
    from builder.cloudbuild import runner

    config, caller = b"", None
    if logins:
        hosts, config = runner.logins(plan)
        say(f"logins for the steps: {', '.join(hosts) or 'none, the build names no known host'}")
    if metadata:
        caller = runner.caller(plan.values["PROJECT_ID"], plan.values["PROJECT_NUMBER"])
        say(f"metadata server: the steps can get tokens of {caller.email}")
    return runner.host_access(network, configuration, config, caller)


def _folder(source: Path | None) -> Path:
    from builder.core.errors import InputError

    folder = source or Path.cwd()
    if not folder.is_dir():
        raise InputError(f"--source: {folder} is not a folder", "name a folder, or --no-source")
    return folder


def _built_in(folder: Path | None, project: str | None, region: str) -> dict[str, str]:
    from builder.cloudbuild.commit import from_git

    variables = ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT")
    known = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    return {
        **from_git(folder or Path.cwd()),
        "PROJECT_ID": project or known or "local-project",
        "PROJECT_NUMBER": "0",
        "LOCATION": region,
    }


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    from builder.core.errors import InputError

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise InputError(f"{option}: {text!r} is not IMAGE=LOCAL", "for example ubuntu=debian")
        pairs[key] = value
    return pairs


def _secrets(texts: tuple[str, ...]) -> dict[str, str]:
    from builder.core.errors import InputError

    values = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if equals:
            try:
                values[name] = Path(file).read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not text"
                raise InputError(
                    f"--secret {name}: {file} cannot be read: {reason}", "name a text file"
                ) from None
        elif name in os.environ:
            values[name] = os.environ[name]
        else:
            raise InputError(
                f"--secret {name}: this shell has no variable {name}", f"--secret {name}=FILE"
            )
    return values


@contextmanager
def _working(
    choice: str | None, profile: EngineProfile | None, plan: "BuildPlan"
) -> Iterator[tuple["Engine", "PeakMemory | None"]]:
    """The engine that carries the build out, and what watches its memory. Says what it is.

    SIGTERM and SIGHUP end the build as Ctrl-C does. Raises InputError for two engines.
    """
    from builder.core.errors import InputError
    from builder.engine import hosted

    if choice and profile:
        raise InputError("--engine and --engine-profile exclude each other", "leave one out")
    _end_on_signals()
    if profile is None:
        yield _engine(choice), None
        return
    name = plan.build.options.machine_type
    with ExitStack() as stack:
        with reporter() as shown:
            worker = stack.enter_context(hosted.worker(hosted.memory_of(name), shown.on_event))
        say(f"Docker {worker.engine.version}, {worker.memory.limit / 1e9:.1f} GB for containers")
        yield worker.engine, worker.memory


def _engine(choice: str | None) -> "Engine":
    from builder.core.errors import InputError
    from builder.core.project import find_root
    from builder.core.settings import Settings, load
    from builder.engine import connect

    try:
        where = load(find_root(), engine=choice)
    except InputError:
        if choice not in (None, "auto", "machine", "private"):
            raise
        where = Settings(engine=choice or "auto")  # type: ignore[arg-type]  # checked above
    return connect(where)


def _end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a build as Ctrl-C does: its containers are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _log(stream: Any) -> Any:
    def write(line: str) -> None:
        if not OPTIONS.quiet:
            stream.write(line + "\n")
            stream.flush()

    return write


def _show_plan(plan: "BuildPlan", as_json: bool) -> None:
    from builder.cloudbuild.runner import described

    steps = described(plan)
    if as_json:
        out({"steps": steps, "images": list(plan.build.images), "timeout": plan.build.timeout})
        return
    for step in steps:
        name = f"Step #{step['step']}" + (f' - "{step["id"]}"' if step["id"] else "")
        after = ", ".join(f"#{n}" for n in step["waitsFor"]) or "nothing"
        show(f"{name}: {step['image']}, after {after}")
        for key in ("standsInFor", "dir", "entrypoint", "args", "env", "secretEnv", "timeout"):
            if value := step.get(key):
                shown = value if isinstance(value, str) else json.dumps(value)
                show(f"  {key}: {shown}")
        if step.get("script"):
            show("  script:")
            for line in step["script"].splitlines():
                show(f"    {line}")
    for image in plan.build.images:
        show(f"push: {image}")


def _summary(result: "Result", memory: "PeakMemory | None") -> None:
    from builder.cloudbuild.runner import timeline

    say(f"{result.status} in {duration(result.ended - result.started)}")
    for line in timeline(result):
        say(line)
    for image in result.images:
        say(f"  {image.name}@{image.digest}")
    for line in result.not_done:
        say(f"  {line}")
    if memory:
        used, limit = memory.peak / 1e9, memory.limit / 1e9
        say(f"  memory of all containers: {used:.2f} GB at most, of {limit:.1f} GB")


def _conclude(result: "Result", memory: "PeakMemory | None", as_json: bool) -> None:
    """Print how the build went. Raises what ends the command."""
    from builder.core.errors import CheckFailed

    _summary(result, memory)
    if as_json:
        used = {"memory": {"peak": memory.peak, "limit": memory.limit}} if memory else {}
        out({**result.json(), **used})
    if result.status == "SUCCESS":
        return
    if result.status == "CANCELLED":
        raise typer.Exit(130)
    if result.error:
        raise result.error
    raise CheckFailed(result.detail, "the log above shows why; --step ID runs one step alone")
