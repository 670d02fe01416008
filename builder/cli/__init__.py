"""The command line: parse, call one function, print. No logic."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from builder.cli import job_local
from builder.cli.cloud import cloud_app
from builder.cli.common import (
    OPTIONS,
    All,
    EngineChoice,
    Json,
    Registry,
    Targets,
    chosen,
    out,
    reporter,
    root,
    say,
    settings,
)
from builder.cli.console import duration, size
from builder.cli.job import job_app
from builder.cli.job_local import Module, Package
from builder.core.errors import FactoryError

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.engine import Engine

HELP = """From one small file per accelerator to a proven TensorFlow training image.

The way of an image, each step a command:

\b
  images/v100/image.yaml     what you write, about ten lines    builder schema, explain
    -> lock                  every version and hash             builder lock
    -> render                two plain Dockerfiles, committed   builder render
    -> build                 base (reused by hash) and image    builder build
    -> smoke                 loader check, real training run    builder smoke
    -> push                  by digest, with its receipt        builder push, verify, promote

`builder image v100` does build and smoke in one go and does nothing when nothing changed.
"""

app = typer.Typer(
    name="builder",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
engine_app = typer.Typer(
    help="The private engine: for machines without Docker.", no_args_is_help=True
)
app.add_typer(engine_app, name="engine")
app.add_typer(cloud_app, name="cloud")
app.add_typer(job_app, name="job")


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
) -> None:
    OPTIONS.debug, OPTIONS.verbose, OPTIONS.quiet = debug, verbose, quiet


# --- the main job ---------------------------------------------------------------------------------


@app.command()
def image(
    targets: Targets = None,
    everything: All = False,
    push: Annotated[bool, typer.Option("--push", help="Push what was proven.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="A further tag for the push.")] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse Debian packages whose locked version is gone.")
    ] = False,
    package: Package = None,
    module: Module = None,
    as_json: Json = False,
) -> None:
    """Build and prove images: the whole way.

    Base and training image, then the smoke run whose receipt allows the push. Does nothing where
    nothing changed. With --package and --module, any Python program in the trainer's place.
    """
    if package is not None:
        job_local.image_of_package(
            chosen(targets, everything), package, module, push, settings(registry, engine), as_json
        )
        return
    from builder.engine import connect
    from builder.pipeline import image as pipeline

    with reporter() as shown:
        where = settings(registry=registry, engine=engine)
        prepared = [pipeline.prepare(root(), target) for target in chosen(targets, everything)]
        docker = connect(where, on_event=shown.on_event)
        made = [
            pipeline.make(root(), where, docker, item, locked=locked, on_event=shown.on_event)
            for item in prepared
        ]
        pushed = [
            pipeline.push_target(
                root(), where, docker, one.record.target, tag or (), on_event=shown.on_event
            )
            for one in made
            if push
        ]
    for one in made:
        if one.unchanged:
            say(f"{one.record.target}: nothing to do, {one.record.reference} is up to date")
            say(f"  {one.record.image_id}, proven {one.receipt.made_at} on {one.receipt.device}")
        else:
            summary(one.record)
            proven(one.receipt)
    for two in pushed:
        told(two)
    if as_json:
        out([record_json(one.record, one.receipt) for one in made])


@app.command()
def build(
    targets: Targets = None,
    everything: All = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer anew.")] = False,
    to_registry: Annotated[
        bool,
        typer.Option(
            "--to-registry",
            help="Put the image onto its base in the registry, without pulling the base.",
        ),
    ] = False,
    base_only: Annotated[
        bool, typer.Option("--base-only", help="Only the base: from the registry, else built.")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse Debian packages whose locked version is gone.")
    ] = False,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Build images; what several share is built once."""
    if to_registry:
        build_to_registry(chosen(targets, everything), settings(registry, engine), as_json)
        return
    from builder.engine import connect
    from builder.pipeline import image as pipeline

    with reporter() as shown:
        where = settings(registry=registry, engine=engine)
        prepared = [pipeline.prepare(root(), target) for target in chosen(targets, everything)]
        if base_only:
            made = pipeline.bases(
                root(),
                where,
                connect(where, on_event=shown.on_event),
                prepared,
                no_cache=no_cache,
                locked=locked,
                on_event=shown.on_event,
            )
        else:
            records = pipeline.build(
                root(),
                where,
                connect(where, on_event=shown.on_event),
                prepared,
                no_cache=no_cache,
                locked=locked,
                on_event=shown.on_event,
            )
    if base_only:
        for base in made.values():
            say(f"{base.reference}  {base.digest or base.image_id}  ({base.origin})")
        if as_json:
            out([vars(base) for base in made.values()])
        return
    for record in records:
        summary(record)
    if as_json:
        out([record_json(record) for record in records])


def build_to_registry(targets: tuple[str, ...], where: "Settings", as_json: bool) -> None:
    """`builder build --to-registry`."""
    from builder.pipeline import to_registry

    def engine() -> "Engine":
        from builder.engine import connect

        return connect(where, on_event=shown.on_event)

    with reporter() as shown:
        sent = to_registry.build(root(), where, targets, engine, shown.on_event)
    for one in sent:
        say(f"{one.reference}  {one.digest}")
    if as_json:
        out([{"reference": one.reference, "digest": one.digest} for one in sent])


@app.command()
def smoke(
    targets: Targets = None,
    everything: All = False,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Prove images by a real training run.

    In a container without network: the loader finds every library, the image holds nothing that
    it should not, a training run is killed, resumes and learns, and its outputs can be read.
    """
    from builder.engine import connect
    from builder.pipeline import image as pipeline

    with reporter() as shown:
        docker = connect(settings(engine=engine), on_event=shown.on_event)
        receipts = []
        for target in chosen(targets, everything):
            item = pipeline.prepare(root(), target)
            receipts.append(pipeline.prove_built(root(), docker, item, shown.on_event))
    for receipt in receipts:
        proven(receipt)
    if as_json:
        out([receipt.model_dump(mode="json") for receipt in receipts])


@app.command()
def push(
    targets: Targets = None,
    registry: Registry = None,
    tag: Annotated[list[str] | None, typer.Option(help="A further tag.")] = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Push proven images, each with its receipt.

    Without TARGET: every target that has a built image. An image without a valid receipt is refused
    (exit code 4).
    """
    from builder.engine import connect
    from builder.pipeline import image as pipeline

    where = settings(registry=registry, engine=engine)
    names = tuple(targets) if targets else pipeline.built_targets(root())
    with reporter() as shown:
        docker = connect(where, on_event=shown.on_event)
        pushed = [
            pipeline.push_target(root(), where, docker, name, tag or (), shown.on_event)
            for name in names
        ]
    for one in pushed:
        told(one)
    if as_json:
        from dataclasses import asdict

        out([asdict(one) for one in pushed])


@app.command()
def verify(
    reference: Annotated[str, typer.Argument(help="A reference, or a tag of the registry.")],
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Check an image in a registry by its receipt."""
    from builder.pipeline.image import required
    from builder.pipeline.push import verify as check

    with reporter() as shown:
        found = check(
            reference, settings(registry=registry), required=required, on_event=shown.on_event
        )
    say(f"{found.reference}: proven on {found.receipt.device}, {found.receipt.made_at}")
    for one in found.receipt.checks:
        say(f"  {one.name} {one.version}: passed")
    if as_json:
        out(
            {
                "reference": found.reference,
                "digest": found.digest,
                "receipt": found.receipt.model_dump(mode="json"),
            }
        )


@app.command()
def promote(
    reference: Annotated[str, typer.Argument(help="A reference or tag; with --back, the tag.")],
    tag: Annotated[str | None, typer.Argument(help="The tag to move, e.g. production.")] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Move the tag back to where it was before.")
    ] = False,
    registry: Registry = None,
) -> None:
    """Move a tag to a proven image, or back.

    builder promote v100-2.21.0-1a2b3c4d5e6f production
    builder promote --back production
    """
    from builder.core.errors import InputError
    from builder.pipeline import push as pushing
    from builder.pipeline.image import required

    where = settings(registry=registry)
    if back == (tag is not None):
        raise InputError(
            "promote takes an image and a tag, or --back and a tag",
            "builder promote v100 production; builder promote --back production",
        )
    with reporter() as shown:
        if tag is None:
            moved = pushing.rollback(reference, where, on_event=shown.on_event)
        else:
            moved = pushing.promote(
                reference, tag, where, required=required, on_event=shown.on_event
            )
    say(f"{moved.tag} -> {moved.reference}" + (f" (was {moved.previous})" if moved.moved else ""))


# --- what is written and what it resolves to ------------------------------------------------------


@app.command()
def lock(
    targets: Targets = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is stale.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest versions that the rules allow.")
    ] = False,
    verify_device_code: Annotated[
        bool,
        typer.Option(
            "--verify-device-code",
            help="Read the locked wheels (gigabytes) and compare them with the tables.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose every version and hash, and write them."""
    from builder.core.errors import CheckFailed
    from builder.lock import lock as locking
    from builder.spec import catalogue, compatibility

    names = chosen(targets, not targets)
    if verify_device_code:
        from builder.prove import wheels

        with reporter() as shown:
            holes = wheels.verify(root(), names, shown.on_event)
        if as_json:
            out(holes)
        for name, found in holes.items():
            say(f"{name}: the wheels carry what the tables say" if not found else f"{name}:")
            for line in found:
                say(f"  {line}")
        if any(holes.values()):
            raise CheckFailed(
                "the tables and the wheels disagree", "mend builder/facts, or the versions"
            )
        return
    from functools import partial

    from builder.prove import wheels

    stale: list[locking.Staleness] = []
    with reporter() as shown:
        for name in names:
            spec = catalogue.load(root(), name)
            stack = compatibility.resolve(spec)
            if check:
                stale += locking.check(root(), spec, stack)
            else:
                require = partial(wheels.require, root(), stack)
                made = locking.lock(root(), spec, stack, upgrade, shown.on_event, require)
                for moved in made.moved:
                    say(f"  {name}: {moved.name} {moved.before} -> {moved.after}")
    if as_json:
        out([vars(one) for one in stale] if check else list(names))
    if stale:
        for one in stale:
            say(f"{one.file}: {one.why}")
        raise CheckFailed(f"{len(stale)} locks are stale", stale[0].fix)
    if not check:
        for name, found in wheels.check(root(), names).items():
            for hole in found:
                say(f"  {name}: {hole}")
        say("locked: " + ", ".join(names) + "; now: builder render")


@app.command()
def render(
    targets: Targets = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare with what is committed.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="What changed since HEAD, and what it rebuilds.")
    ] = False,
    since: Annotated[str, typer.Option(help="The commit that --diff compares with.")] = "HEAD",
    as_json: Json = False,
) -> None:
    """Write the Dockerfiles, or show what changed."""
    from dataclasses import asdict

    from builder.core.errors import CheckFailed
    from builder.render import dockerfiles as rendering

    names = chosen(targets, not targets)
    if diff:
        found = {name: rendering.changes(root(), name, since) for name in names}
        if as_json:
            out({name: [asdict(one) for one in changes] for name, changes in found.items()})
        for name, changes in found.items():
            if not changes:
                say(f"{name}: nothing changed since {since}")
            for one in changes:
                say(f"{one.file}:{one.line}: {one.change}: {one.instruction}")
                for text in one.detail:
                    say(f"    {text}")
                for layer in one.rebuilds:
                    say(f"  rebuilds {layer.instruction}: about {size(layer.bytes)}")
        return
    if check:
        drifted = rendering.check(root(), names)
        drifted += rendering.check_cloud(root()) if not targets else ()
        if as_json:
            out([asdict(one) for one in drifted])
        if drifted:
            say("".join(one.diff for one in drifted).rstrip())
            raise CheckFailed(
                ", ".join(one.file for one in drifted) + ": not what would be rendered",
                "builder render",
            )
        return
    written = rendering.write(root(), names)
    written += rendering.write_cloud(root()) if not targets else ()
    for path in written:
        say(f"wrote {path.relative_to(root())}")
    if not written:
        say("nothing to write: every Dockerfile is what its image.yaml and lock give")
    if as_json:
        out([str(path) for path in written])


@app.command()
def audit(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Targets, images (engine or registry), folders, wheels.", metavar="SOURCE"
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every GPU target, as one table.")
    ] = False,
    gpu: Annotated[
        list[str] | None, typer.Option(help="V100, or a compute capability: 7.0.")
    ] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Say which GPUs the libraries have kernels for.

    A target is judged for its own GPU (exit code 4 where it does not run there), anything else for
    every GPU that is known, or those of --gpu.
    """
    from functools import cache

    from builder import engine as engines
    from builder.core.errors import InputError
    from builder.core.settings import load
    from builder.prove import audit as auditing

    project: Path | None = None
    try:
        project = root()
    except InputError:  # folders, wheels and images can be read anywhere
        if everything:
            raise
    where = load(project or Path.cwd(), registry=registry, engine=engine)
    with reporter() as shown:
        found = auditing.audit(
            project,
            where,
            cache(lambda: engines.connect(where, on_event=shown.on_event)),
            sources or (),
            everything,
            gpu or (),
            shown.on_event,
        )
    if as_json:
        out([one.as_dict() for one in found])
    else:
        for line in auditing.table(found):
            sys.stdout.write(f"{line}\n")
    auditing.require(found)


@app.command()
def report(
    target: Annotated[str, typer.Argument(help="A folder of images/.")],
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Say what is left in an image, by package and library."""
    from builder.devicecode import carries
    from builder.engine import connect
    from builder.prove import audit as auditing

    with reporter() as shown:
        where = settings(engine=engine)
        (found,) = auditing.audit(
            root(),
            where,
            lambda: connect(where, on_event=shown.on_event),
            [target],
            gpus=["V100"],  # libraries are listed, nothing is judged
            on_event=shown.on_event,
        )
    packages = auditing.left(found.found)
    rows = [
        (package, library, auditing.device_code(library), carries(library))
        for package in packages
        for library in package.libraries
    ]
    if as_json:
        out(
            [
                {
                    "package": package.name,
                    "library": library.path,
                    "bytes": library.size,
                    "device_code_bytes": kernels,
                    "carries": held,
                }
                for package, library, kernels, held in rows
            ]
        )
        return
    told = None
    for package, library, kernels, held in rows:
        if package is not told:
            count = f"{len(package.libraries)} libraries"
            sys.stdout.write(f"{package.name or 'no package'}: {size(package.size)} in {count}\n")
            told = package
        if library.size >= 1_000_000:
            what = f", {size(kernels)} device code: {', '.join(held)}" if kernels else ""
            sys.stdout.write(f"    {size(library.size):>9}  {library.name}{what}\n")


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="A folder of images/.")], as_json: Json = False
) -> None:
    """Say why each version is what it is."""
    from dataclasses import asdict

    from builder.spec import catalogue, compatibility

    facts = compatibility.explain(catalogue.load(root(), target))
    if as_json:
        out([asdict(fact) for fact in facts])
        return
    for fact in facts:
        mark = "" if fact.verified else "  (not verified)"
        sys.stdout.write(f"{fact.statement}: {fact.value}{mark}\n    {fact.source}\n")


@app.command()
def check() -> None:
    """Join all tables, targets, the wheels of their locks and the schema; fail on any hole."""
    from builder.core.errors import CheckFailed
    from builder.prove import wheels
    from builder.spec import catalogue, compatibility

    specs = catalogue.load_all(root())
    problems = [f"{one.where}: {one.what}" for one in compatibility.check_tables(specs)]
    for spec in specs:
        compatibility.resolve(spec)
    for name, holes in wheels.check(root(), [spec.name for spec in specs]).items():
        problems += [f"{name}: {hole}" for hole in holes]
    schema_file = root() / "images" / "schema.json"
    if not schema_file.is_file() or schema_file.read_text() != catalogue.schema_text():
        problems.append("images/schema.json: not today's schema; write it with builder schema")
    problems += jobs_problems()
    for problem in problems:
        say(problem)
    if problems:
        raise CheckFailed(f"{len(problems)} holes in the tables", "see the lines above")
    say(f"{len(specs)} targets, every table joins, and the wheels carry what the tables say")


def jobs_problems() -> list[str]:
    """What is wrong with jobs/: each file, the schema beside them, and what they ask for."""
    from builder.core.errors import InputError
    from builder.jobs import checks, description

    problems = []
    for name in description.names(root()):
        try:
            job = description.load(root(), name)
            checks.machines_of(job)
        except InputError as error:
            problems.append(error.message)
    file = root() / description.JOBS / description.SCHEMA
    if file.parent.is_dir() and (
        not file.is_file() or file.read_text() != description.schema_text()
    ):
        problems.append("jobs/schema.json: not today's schema; write it with builder job schema")
    return problems


@app.command()
def schema(
    stdout: Annotated[bool, typer.Option("--stdout", help="Print it instead.")] = False,
) -> None:
    """Write images/schema.json, which editors complete image.yaml with."""
    from builder.core.project import write
    from builder.spec import catalogue

    if stdout:
        sys.stdout.write(catalogue.schema_text())
        return
    write(root() / "images" / "schema.json", catalogue.schema_text())
    say("wrote images/schema.json")


@app.command("list")
def list_targets(as_json: Json = False) -> None:
    """The targets, and which are built and proven."""
    from builder.pipeline import image as pipeline

    rows = pipeline.overview(root())
    if as_json:
        out(rows)
        return
    for row in rows:
        sys.stdout.write(
            f"{row['target']:<8} {row['accelerator']:<10} TensorFlow {row['tensorflow']:<8} "
            f"{row['state']:<18} {size(row['compressed_bytes']) if row['digest'] else ''}\n"
        )


@app.command()
def tensorboard(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Jobs, folders, gs:// addresses (default: all here)."),
    ] = None,
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 6006,
    host: Annotated[str, typer.Option(help="0.0.0.0 shows it to the network.")] = "localhost",
) -> None:
    """TensorBoard over jobs, several in one view."""
    from builder.jobs import tensorboard as board

    found = board.sources(root(), jobs or ())
    raise typer.Exit(board.serve(found, host=host, port=port, on_line=say))


# --- the machine ----------------------------------------------------------------------------------


@app.command()
def doctor(registry: Registry = None, engine: EngineChoice = None, as_json: Json = False) -> None:
    """Look at engine, disk, registry and network."""
    from dataclasses import asdict

    from builder.core.errors import CheckFailed
    from builder.doctor import examine

    findings = examine(settings(registry=registry, engine=engine))
    if as_json:
        out([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.state:<5} {finding.name}: {finding.seen}\n")
            if finding.remedy:
                sys.stdout.write(f"      {finding.remedy}\n")
    if any(finding.state == "bad" for finding in findings):
        bad = [finding for finding in findings if finding.state == "bad"]
        raise CheckFailed(f"{len(bad)} findings stand in the way of a build", bad[0].remedy)


@engine_app.command("start")
def engine_start() -> None:
    """Start the private engine (needs root), or say that it runs."""
    from builder.engine import private

    with reporter() as shown:
        endpoint = private.start(on_event=shown.on_event)
    sys.stdout.write(f"export DOCKER_HOST={endpoint.host}\n")


@engine_app.command("stop")
def engine_stop(
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove its images and caches, too.")
    ] = False,
) -> None:
    """Stop the private engine."""
    from builder.engine import private

    say("stopped" if private.stop() else "it did not run")
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
    sys.stdout.write(f"{found.state} {found.version} {found.detail}\ndata: {found.data}\n")
    if found.endpoint:
        sys.stdout.write(f"export DOCKER_HOST={found.endpoint.host}\n")


# --- showing --------------------------------------------------------------------------------------


def summary(record: Any) -> None:
    """What a build made, for a person."""
    budget = size(record.budget_bytes)
    over = "  OVER BUDGET" if record.over_budget else ""
    say(f"{record.target}: {record.reference}")
    say(f"  image     {record.image_id}")
    say(
        f"  size      {size(record.compressed_bytes)} to pull (budget {budget}){over}, "
        f"{size(record.unpacked_bytes)} unpacked"
    )
    say("  largest   " + ", ".join(f"{name} {size(count)}" for name, count in record.packages[:4]))
    say(f"  base      {record.base} ({record.base_origin})")
    say(f"  OS root   {record.root}")
    if record.prune == "all":
        from builder.devicecode.pruning.prune import EULA

        say(f"  EULA      {EULA}")
    for one in record.drift:
        say(f"  DRIFT     {one}: the locked version is gone; builder lock --upgrade takes note")
    say("  time      " + ", ".join(f"{name} {duration(s)}" for name, s in record.phases.items()))


def proven(receipt: Any) -> None:
    """A receipt, for a person."""
    took = sum(check.seconds for check in receipt.checks)
    checks = ", ".join(check.name for check in receipt.checks)
    say(f"{receipt.target}: proven on {receipt.device} in {duration(took)}: {checks}")


def told(pushed: Any) -> None:
    """A push, for a person."""
    if pushed.unchanged:
        say(f"{pushed.reference}: already there, nothing sent")
        return
    say(f"{pushed.reference}: {size(pushed.sent)} sent in {duration(pushed.seconds)}")
    say("  tags " + ", ".join(pushed.tags))


def record_json(record: Any, receipt: Any = None) -> dict[str, Any]:
    """image.json, with what the receipt says."""
    from dataclasses import asdict

    found: dict[str, Any] = {**asdict(record), "over_budget": record.over_budget}
    if receipt is not None:
        found["receipt"] = receipt.model_dump(mode="json")
    return found


def main() -> NoReturn:
    """Run the command line; errors are two lines and an exit code."""
    try:
        app()
    except FactoryError as error:
        if OPTIONS.debug:
            raise
        for line in getattr(error, "log", ()):  # what a failed step of a build printed last
            sys.stderr.write(f"    {line}\n")
        sys.stderr.write(f"error: {error.message}\n")
        if error.fix:
            sys.stderr.write(f"fix:   {error.fix}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if OPTIONS.debug:
            raise
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        sys.stderr.write("fix:   this is a fault of the factory; --debug shows where\n")
        sys.exit(1)
    sys.exit(0)
