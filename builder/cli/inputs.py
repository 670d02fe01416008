"""`builder lock`, `render`, `explain`, `check`, `schema`: what a person writes, what follows."""

import sys
from typing import Annotated

import typer

from builder.cli.common import Json, Targets, chosen, out, reporter, root, say, show
from builder.cli.console import size


def lock(
    targets: Targets = None,
    check: Annotated[bool, typer.Option("--check", help="Only report stale locks.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest allowed versions.")
    ] = False,
    verify_device_code: Annotated[
        bool,
        typer.Option(
            "--verify-device-code",
            help="Read the locked wheels (gigabytes) and compare them with the tables.",
        ),
    ] = False,
    propose: Annotated[
        bool,
        typer.Option("--propose", help="With --upgrade: on a branch, with a pull request's text."),
    ] = False,
    branch: Annotated[str | None, typer.Option(help="The branch that --propose makes.")] = None,
    osv: Annotated[
        str | None, typer.Option(help="For --propose: the address of OSV's API, or of a mirror.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose every version and hash; write the lock files.

    --upgrade --propose leaves your files as they are. It locks a copy of the last commit, reads the
    new wheels, asks what is known against them, makes a branch, and writes a pull request's text to
    stdout. It pushes nothing.
    """
    from builder.core import settings
    from builder.core.errors import InputError
    from builder.pipeline import choosing, committed
    from builder.prove import wheels

    names = chosen(targets, not targets)
    if propose:
        if not upgrade or check or verify_device_code:
            raise InputError("--propose: goes with --upgrade alone", "write --upgrade --propose")
        propose_newer(names, branch, osv, as_json)
        return
    if verify_device_code:
        compare_wheels(names, as_json)
        return
    if check:
        _check_locks(names, as_json)
        return
    with reporter() as shown:
        apt = choosing.LazyApt(root(), settings.load(root()), shown.on_event)
        for made in committed.lock(root(), names, apt, upgrade, shown.on_event):
            for moved in made.moved:
                say(f"  {made.target}: {moved.name} {moved.before} -> {moved.after}")
    if as_json:
        out(list(names))
    for name, found in wheels.check(root(), names).items():
        for hole in found:
            say(f"  {name}: {hole}")
    say("locked: " + ", ".join(names) + "; now: builder render")


def _check_locks(names: tuple[str, ...], as_json: bool) -> None:
    """`builder lock --check`."""
    from builder.core.errors import CheckFailed
    from builder.pipeline import committed

    stale = committed.stale(root(), names)
    if as_json:
        out([vars(one) for one in stale])
    for one in stale:
        say(f"{one.file}: {one.why}")
    if stale:
        raise CheckFailed(f"{len(stale)} locks are stale", stale[0].fix)


def propose_newer(
    names: tuple[str, ...], branch: str | None, osv: str | None, as_json: bool
) -> None:
    """`builder lock --upgrade --propose`."""
    from collections.abc import Mapping, Sequence
    from dataclasses import asdict
    from datetime import UTC, datetime
    from pathlib import Path

    from builder.core import settings
    from builder.core.errors import CheckFailed
    from builder.pipeline import advised, choosing, committed
    from builder.pipeline.propose import BRANCH, Tools, propose
    from builder.prove import wheels
    from builder.trust import advisories
    from builder.trust.advisories import Judged

    here, today = root(), datetime.now(UTC).date()

    def known(project: Path, targets: Sequence[str]) -> Mapping[str, Judged]:
        return advised.check(project, targets, osv or advisories.ADDRESS, today).targets

    with reporter() as shown:

        def newest(project: Path, targets: Sequence[str]) -> object:
            apt = choosing.LazyApt(project, settings.load(here), shown.on_event)
            return list(committed.lock(project, targets, apt, True, shown.on_event))

        def read(project: Path, targets: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
            return wheels.verify(project, targets, shown.on_event)

        made = propose(here, names, Tools(newest, known, read), branch or BRANCH)
    if as_json:
        out(asdict(made) if made else None)
    elif made:
        show(made.text)
    if made is None:
        say("nothing to propose: every lock has the newest versions that the rules allow")
        return
    say(f"made the branch {made.branch} ({made.commit[:12]}); nothing was pushed")
    if made.refused:
        raise CheckFailed(
            f"the new wheels of {', '.join(made.refused)} do not do what the tables say",
            "see Device code in the text; do not merge the branch",
        )


def compare_wheels(names: tuple[str, ...], as_json: bool) -> None:
    """`builder lock --verify-device-code`."""
    from builder.core.errors import CheckFailed
    from builder.prove import wheels

    with reporter() as shown:
        holes = wheels.verify(root(), names, shown.on_event)
    if as_json:
        out(holes)
    for name, found in holes.items():
        say(f"{name}:" if found else f"{name}: the wheels carry what the tables say")
        for line in found:
            say(f"  {line}")
    if any(holes.values()):
        raise CheckFailed(
            "the tables and the wheels disagree", "mend builder/facts, or the versions"
        )


def render(
    targets: Targets = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare with the committed files.")
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show what changed since HEAD, and which layers it rebuilds."),
    ] = False,
    since: Annotated[str, typer.Option(help="The commit that --diff compares with.")] = "HEAD",
    as_json: Json = False,
) -> None:
    """Write the Dockerfiles, or show what changed."""
    from dataclasses import asdict

    from builder.core.errors import CheckFailed
    from builder.render import cloud, committed
    from builder.render.dockerfiles import load_all

    names = chosen(targets, not targets)
    if diff:
        show_changes(names, since, as_json)
        return
    if check:
        made = load_all(root(), names)
        drifted = committed.check(root(), made)
        drifted += cloud.check_cloud(root(), made) if not targets else ()
        if as_json:
            out([asdict(one) for one in drifted])
        if drifted:
            say("".join(one.diff for one in drifted).rstrip())
            raise CheckFailed(
                ", ".join(one.file for one in drifted) + " differs from what render writes",
                "builder render",
            )
        return
    written = committed.write(root(), names)
    written += cloud.write_cloud(root()) if not targets else ()
    for path in written:
        say(f"wrote {path.relative_to(root())}")
    if not written:
        say("nothing to write: every Dockerfile is up to date")
    if as_json:
        out([str(path) for path in written])


def show_changes(names: tuple[str, ...], since: str, as_json: bool) -> None:
    """`builder render --diff`."""
    from dataclasses import asdict

    from builder.render import basechanges, changes

    found = {
        name: (basechanges.changes(root(), name, since), changes.changes(root(), name, since))
        for name in names
    }
    if as_json:
        out(
            {
                name: {"base": [asdict(one) for one in base], "image": [asdict(o) for o in image]}
                for name, (base, image) in found.items()
            }
        )
    for name, (base, image) in found.items():
        if not base and not image:
            say(f"{name}: nothing changed since {since}")
        for layer in base:
            about = f", about {size(layer.download)}" if layer.download else ""
            say(f"{name}: base: {layer.name}: {layer.change}{about}")
            for text in layer.detail:
                say(f"    {text}")
        for one in image:
            say(f"{one.file}:{one.line}: {one.change}: {one.instruction}")
            for text in one.detail:
                say(f"    {text}")
            for rebuilt in one.rebuilds:
                say(f"  rebuilds {rebuilt.instruction}: about {size(rebuilt.bytes)}")


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
        show(f"{fact.statement}: {fact.value}{mark}\n    {fact.source}")


def check(
    advisories: Annotated[
        bool, typer.Option("--advisories", help="Ask what is known against the locked packages.")
    ] = False,
    osv: Annotated[
        str | None, typer.Option(help="The address of OSV's API, or of a mirror of it.")
    ] = None,
) -> None:
    """Check that tables, targets, locks, jobs and schemas agree.

    With --advisories, ask OSV what is known against the locked packages instead. What could not be
    looked up is a failure (exit code 3); what is known against a package is one, too (4), unless
    image.yaml accepts it.
    """
    if advisories:
        _check_advisories(osv)
        return
    from builder.core.errors import CheckFailed
    from builder.jobs.places.vertex import checks
    from builder.pipeline import committed
    from builder.spec import catalogue

    problems = (*committed.problems(root()), *checks.committed(root()))
    for problem in problems:
        say(problem)
    if problems:
        raise CheckFailed(f"{len(problems)} problems", "see the lines above")
    count = len(catalogue.targets(root()))
    say(f"{count} targets: the tables agree, and the wheels carry what the tables say")


def _check_advisories(osv: str | None) -> None:
    """`builder check --advisories`."""
    from datetime import UTC, datetime

    from builder.core.errors import CheckFailed
    from builder.pipeline import advised
    from builder.spec import catalogue
    from builder.trust import advisories

    today = datetime.now(UTC).date()
    targets = catalogue.targets(root())
    found = advised.check(root(), targets, osv or advisories.ADDRESS, today)
    for line in found.told:
        say(line)
    if found.failed:
        raise CheckFailed(
            f"{found.failed} advisories or exceptions of {found.asked} locked packages fail",
            "take newer versions: builder lock --upgrade; or accept them in image.yaml: advisories",
        )
    accepted = any(one.accepted for one in found.targets.values())
    known = (
        "what is known against them is accepted" if accepted else "nothing is known against them"
    )
    say(f"{found.asked} locked packages: {known}")


def schema(
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print it instead of writing it.")
    ] = False,
) -> None:
    """Write images/schema.json, for editors of image.yaml."""
    from builder.core.files import write
    from builder.spec.schema import schema_text

    if stdout:
        sys.stdout.write(schema_text())
        return
    write(root() / "images" / "schema.json", schema_text())
    say("wrote images/schema.json")
