"""`builder init`, `lock`, `render`, `explain`, `check`, `schema`: from what a person writes."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from builder.cli import checks
from builder.cli.common import chosen, out, project, reporter, results, root, say, show
from builder.cli.options import AGAINST, JSON, OSV, TARGET, TARGETS, flag, option
from builder.core import files
from builder.core.errors import CheckFailed


def init(
    target: str = option(
        "An accelerator (v100, b200, tpu-v6e, cpu ...), or one and its framework: b200-jax",
        default="cpu",
    ),
    force: bool = flag("--force", "Write files that are there already, too."),
    cloud_build: bool = flag(
        "--cloud-build",
        "Let Cloud Build run this factory: put its wheel, and a lock of what it needs,"
        " into requirements/; `builder render` then writes cloudbuild.yaml.",
    ),
    as_json: bool = JSON,
) -> None:
    """Make this repository a project: write builder.toml and images/TARGET/image.yaml.

    Looks at the Dockerfile, the files that name packages (requirements.txt, pyproject.toml,
    setup.py, environment.yml, cog.yaml ...) and the modules here; says what it took over, and what
    it could not. Changes no file that is there but .gitignore, and a second run changes nothing.
    """
    from builder.init import proposal as proposals
    from builder.init.findings import folded

    folder = project() or Path.cwd()
    proposal = proposals.propose(folder, target, force)
    paths = [*proposal.files]
    if cloud_build:  # first, because it may fail: then nothing is written
        from builder.init import factory_wheel

        paths += factory_wheel.bring(folder, proposal.findings, force)
    proposals.write(proposal)
    written = [path.relative_to(folder).as_posix() for path in paths]
    if as_json:
        findings = proposal.findings
        kinds = {"image": proposal.values, "taken": findings.taken, "left": findings.left}
        out({"target": proposal.target, "written": written, **kinds})
        return
    for heading, lines in (
        ("wrote", written),
        ("took", proposal.findings.taken),
        ("did not take", folded(proposal.findings.left)),
    ):
        for line in lines:
            show(f"{heading:<12} {line}")
    if not written:
        show("nothing to write: the files are there (--force writes them anew)")
    say(f"now: builder image {proposal.target}")


def lock(
    targets: list[str] | None = TARGETS,
    check: bool = flag("--check", "Only report stale locks."),
    upgrade: bool = flag("--upgrade", "Take the newest allowed versions, seven days old at least."),
    now: list[str] | None = option(
        "Upgrade this one even to a release of less than seven days.", metavar="PACKAGE"
    ),
    verify_device_code: bool = flag(
        "--verify-device-code",
        "Read the locked wheels (gigabytes) and compare them with the tables.",
    ),
    as_json: bool = JSON,
) -> None:
    """Choose every version and hash; write the lock files."""
    from builder.core import settings
    from builder.image.apt import ContainerApt
    from builder.pipeline import committed
    from builder.prove import wheels

    if check and not verify_device_code:
        checks.lock(targets or (), as_json)
        return
    names = chosen(targets, not targets)
    if verify_device_code:
        compare_wheels(names, as_json)
        return
    with reporter() as progress:
        apt = ContainerApt(root(), settings.load(root()), progress.on_event)
        for made in committed.lock(
            root(), names, apt, upgrade or bool(now), progress.on_event, now or ()
        ):
            for moved in made.moved:
                say(f"  {made.target}: {moved.name} {moved.before} -> {moved.after}")
    if as_json:
        out(list(names))
    for name, lines in wheels.check(root(), names).items():
        for line in lines:
            say(f"  {name}: {line}")
    say("locked: " + ", ".join(names) + "; now: builder render")


def compare_wheels(names: tuple[str, ...], as_json: bool) -> None:
    """Run `builder lock --verify-device-code`."""
    from builder.prove import wheels

    with reporter() as progress:
        problems = wheels.verify(root(), names, progress.on_event)
    if as_json:
        out(problems)
    for name, lines in problems.items():
        say(f"{name}:" if lines else f"{name}: the wheels carry what the tables say")
        for line in lines:
            say(f"  {line}")
    if any(problems.values()):
        raise CheckFailed(
            "the tables and the wheels disagree", "mend builder/facts, or the versions"
        )


def render(
    targets: list[str] | None = TARGETS,
    check: bool = flag("--check", "Only compare with the committed files."),
    as_json: bool = JSON,
) -> None:
    """Write the Dockerfiles and cloudbuild.yaml."""
    from builder.image import dockerfile

    if check:
        checks.render(targets or (), as_json)
        return
    written = dockerfile.write(root(), checks.rendered(targets or ()))
    for name in written:
        say(f"wrote {name}")
    if not written:
        say("nothing to write: every Dockerfile is up to date")
    if as_json:
        out(written)


def explain(target: str = TARGET, as_json: bool = JSON) -> None:
    """Say why each version is what it is."""
    from builder.config import targets

    facts = targets.of(root(), target).facts
    lines: list[str] = []
    for fact in facts:
        doubt = "" if fact.verified else "  (not verified)"
        lines += [f"{fact.statement}: {fact.value}{doubt}", f"    {fact.source}"]
    results(as_json, [asdict(fact) for fact in facts], lines)


def check(
    advisories: bool = flag("--advisories", "Ask what is known against the locked packages."),
    osv: str | None = OSV,
    against: str | None = AGAINST,
    as_json: bool = JSON,
) -> None:
    """Check that tables, targets, locks, jobs and schemas agree.

    The lines of images/layers.lock are compared with the branch that this one goes into, too.
    With --advisories, ask OSV what is known against the locked packages instead. What could not be
    looked up is a failure (exit code 3); what is known against a package is one, too (4), unless
    image.yaml accepts it.
    """
    if advisories:
        _check_advisories(osv, as_json)
        return
    from builder.config import image_yaml
    from builder.core import settings
    from builder.jobs import checks, cost
    from builder.pipeline import committed, layer_lines

    trust = settings.load(root()).trust
    problems = (
        *committed.problems(root()),
        *layer_lines.problems(root(), trust, against),
        *checks.committed(root()),
        *cost.gaps(),
    )
    results(as_json, problems, problems)
    if problems:
        raise CheckFailed("not everything agrees", "see the lines above")
    count = len(image_yaml.targets(root()))
    these = f"{count} target" + "s" * (count != 1)
    say(f"{these}: the tables agree, and the wheels carry what the tables say")


def _check_advisories(osv: str | None, as_json: bool) -> None:
    """Run `builder check --advisories`."""
    from builder.config import image_yaml
    from builder.pipeline import advisories as project
    from builder.trust import advisories

    targets, today = image_yaml.targets(root()), datetime.now(UTC).date()
    report = project.check(root(), targets, osv or advisories.ADDRESS, today)
    data = {"packages": report.packages, "failures": report.failures, "notes": report.notes}
    results(as_json, data, report.failures)
    for line in report.notes:
        say(line)
    if report.failures:
        raise CheckFailed(
            f"{len(report.failures)} advisories or exceptions of {report.packages} locked packages"
            " fail",
            "take newer versions: builder lock --upgrade; or accept them in image.yaml: advisories",
        )
    known = "what is known" if any(report.targets.values()) else "nothing is known"
    accepted = " is accepted" if any(report.targets.values()) else ""
    say(f"{report.packages} locked packages: {known} against them{accepted}")


def schema() -> None:
    """Write images/schema.json, for editors of image.yaml."""
    from builder.config.schema import schema_text

    files.write(root() / "images" / "schema.json", schema_text())
    say("wrote images/schema.json")
