"""A first target for a repository that is there: image.yaml, from what its own files say."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.config import compatibility, image_yaml, lockfile
from builder.config.fields import NEWEST
from builder.config.image_yaml import ImageSpec
from builder.core import files, outgoing, project
from builder.core.errors import InputError
from builder.facts import accelerators, frameworks
from builder.facts.frameworks import Framework
from builder.init import imports
from builder.init.findings import BESIDE, GOT, IMPORTED, Findings, Wish, parsed_of
from builder.init.repository import look

SETTINGS: Final = """\
# The project's settings; this folder is its root. A flag or a variable (BUILDER_REGISTRY ...) wins.
#   registry = "europe-west4-docker.pkg.dev/my-project/training/images"
"""
IGNORED: Final = "/build/"
"""What builds write, as a line of .gitignore and .dockerignore."""
HEAD: Final = "# The image of one accelerator. `builder schema` describes every field in a file.\n"


@dataclass(frozen=True)
class Proposal:
    target: str
    files: dict[Path, str]
    """What is to be written, by path; it may be nothing."""
    values: dict[str, Any]
    """Those of image.yaml, {} where it is there."""
    findings: Findings


def propose(root: Path, target: str, force: bool = False) -> Proposal:
    """Return the files that a repository lacks for a target, and what they were taken from.

    target: an accelerator (v100), one and its framework (v100-torch), or a target that is there.
    A .gitignore gets its line. Another file that is there is not in the proposal, unless `force` is
    given: image.yaml is then written anew, and .dockerignore gets its line, too. Raises InputError
    for another target, for files that ask for two frameworks, or for one that does not work there,
    and for one that cannot be read.
    """
    name, findings, written = target.lower(), Findings(), dict[Path, str]()
    yaml, values = root / project.IMAGES / name / image_yaml.FILE, dict[str, Any]()
    if not (root / project.MARKER).exists():
        written[root / project.MARKER] = SETTINGS
    if force or name not in image_yaml.targets(root):
        look(root, findings)
        values = _values(root, name, findings)
        written[yaml] = HEAD + "".join(
            f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n"
            for key, value in values.items()
        )
        # without a program, what a folder `trainer` lacks is said above, and no fault of init's
        image_yaml.parse(written[yaml], yaml, root if findings.program else project.INSTALLED)
    for ignore in (".gitignore", ".dockerignore"):
        path = root / ignore
        outgoing.inside(root, path)
        text = files.text_of(path)
        if ignore == ".dockerignore" and not (root / project.DOCKERFILE).exists():
            continue
        if {IGNORED, IGNORED.strip("/"), IGNORED[1:], IGNORED[:-1]} & {*(text or "").split()}:
            continue
        if text is None or force or ignore == ".gitignore":
            written[path] = "\n".join([*(text or "").splitlines(), IGNORED, ""])
        else:
            findings.leave(ignore, f"has no line {IGNORED}", "add it, or give --force")
    for path in written:  # a folder of the repository may be a link to elsewhere
        outgoing.inside(root, path)
    changed = {path: text for path, text in written.items() if files.text_of(path) != text}
    return Proposal(name, changed, values, findings)


def write(proposal: Proposal) -> None:
    for path, text in proposal.files.items():
        files.write(path, text)


def _values(root: Path, target: str, findings: Findings) -> dict[str, Any]:
    accelerator, framework = _named(target, findings)
    wishes = findings.frameworks.pop(framework.name, [])
    for other in findings.frameworks.values():  # a library beside the framework
        for wish in other:
            parsed, problem = parsed_of(wish.text)
            if wish.requirement and parsed:
                findings.require(parsed, wish.where)
            elif wish.requirement:
                findings.leave(wish.where, wish.text, problem)
    values: dict[str, Any] = {"accelerator": accelerator}
    values |= _versions(target, accelerator, framework, wishes, findings)
    _companions(framework, values[framework.name], wishes, findings)
    if findings.apt:
        values["apt"] = sorted(dict.fromkeys(findings.apt))
    if findings.requirements:
        values["requirements"] = list(findings.requirements.values())
    if findings.program:
        package, module = findings.program
        values |= {"program": f"{package}:{module}", "suite": "program"}
        _name_imports(root, framework, findings)
    elif framework.name != frameworks.DEFAULT:
        why = f"the packaged trainer has no {framework.title}: write `program: FOLDER:MODULE`"
        findings.leave(image_yaml.FILE, "no program is recognized", why)
    else:
        why = "no program is recognized; for your own write `program: FOLDER:MODULE`"
        findings.taken.append(f"the packaged trainer, as {why}")
    if findings.environment:
        values["environment"] = findings.environment
    return values


def _name_imports(root: Path, framework: Framework, findings: Findings) -> None:
    """Name what the program imports, no file asks for and the framework does not bring; what a
    module is called on PyPI is not guessed, for it may be somebody else's."""
    assert findings.program
    brought = {framework.name}
    for name in image_yaml.targets(project.factory()):
        with contextlib.suppress(InputError):
            lock = lockfile.read(project.factory(), name)
            for file, pins in lock.wheels.items() if lock.framework == framework.name else ():
                brought |= {pin.name for pin in pins} if file != lockfile.EXTRA else set()
    asked = " ".join(findings.requirements).replace("-", "_")  # pyyaml has yaml
    imported = imports.packages(root, findings.program)
    known = {name.replace("-", "_") for name in brought}
    others = [name for name in imported if name.lower() not in known and name.lower() not in asked]
    if others:
        why = "no file asks for what is called so: add the packages with them to `requirements`"
        findings.leave(findings.program[1], f"imports {', '.join(others)}", why)


def _named(target: str, findings: Findings) -> tuple[str, Framework]:
    """Return the accelerator and the framework of a target. Raises InputError for no accelerator,
    and where the files ask for several frameworks and the target names none."""
    before, _, last = target.rpartition("-")
    if before and frameworks.is_known(last):
        return accelerators.find(before).name, frameworks.of(last)
    accelerator, asked = accelerators.find(target).name, findings.frameworks
    for rank in (GOT, BESIDE, IMPORTED):
        first = {
            name: wish
            for name, wishes in asked.items()
            for wish in reversed(wishes)
            if wish.rank == rank
        }
        if len(first) > 1:
            lines = "; ".join(f"{wish.where}: {wish.text}" for wish in first.values())
            choice = " or ".join(f"{target}-{name}" for name in first)
            raise InputError(f"{lines}: an image has one framework", f"pass --target {choice}")
        if first:
            return accelerator, frameworks.of(next(iter(first)))
    return accelerator, frameworks.of(frameworks.DEFAULT)


def _telling(wishes: Sequence[Wish]) -> Sequence[Wish]:
    """Return the wishes that decide the release: what pip would install before what the name of an
    image or a lock tells, and that before what lies beside the image."""
    for rank in (GOT, BESIDE):
        here = [wish for wish in wishes if wish.rank == rank and wish.specifier]
        if here:
            asked = [wish for wish in here if wish.requirement]
            return asked or here
    asked = [wish for wish in wishes if wish.requirement]
    return asked or wishes[:1]


def _companions(
    framework: Framework, release: str, wishes: Sequence[Wish], findings: Findings
) -> None:
    """Take over what is released together with a framework: as it is written where the files get
    the release that they ask for, else in the version that goes with the chosen one."""
    exact = [wish for wish in wishes if str(wish.specifier).startswith("==") and wish.requirement]
    kept = bool(exact) and all(release in wish.specifier for wish in exact)
    for name, entries in findings.companions.items():
        for where, parsed in entries:
            loose = all(bound.operator in {">=", ">", "!="} for bound in parsed.specifier)
            written = str(parsed)
            parsed.specifier = SpecifierSet(re.sub(r"\+[\w.]+", "", str(parsed.specifier)))
            last = framework.ended.get(name)
            if last and Version(release).release[:2] > Version(last).release:
                why = f"its last release is for {framework.title} {last}, not for {release}"
                findings.leave(where, written, f"{why}: do without it")
            elif name in framework.companions and not kept and not loose:
                parsed.specifier, parsed.marker = SpecifierSet(), None
                findings.requirements[name] = str(parsed)
                why = f"{parsed}, in the version that goes with {framework.name} {release}"
                findings.taken.append(f"{where}: {written} -> {why}")
            else:
                findings.require(parsed, where)


def _versions(
    target: str, accelerator: str, framework: Framework, wishes: Sequence[Wish], findings: Findings
) -> dict[str, str]:
    """Return the framework's release and Python, and note why they are these. Raises InputError
    where no release works on the accelerator."""

    def working(name: str, other: Framework) -> tuple[dict[str, str], dict[str, str]]:
        spec = ImageSpec.model_validate({"accelerator": name, other.name: NEWEST})
        return compatibility.working(spec, findings.pythons)

    any_release = [wish for wish in wishes if wish.requirement and not wish.specifier]
    wishes = _telling(wishes)
    works, refusals = working(accelerator, framework)
    if not works:
        what = f"{wishes[0].where}: {wishes[0].text}" if wishes else f"--target {target}"
        others = frameworks.every() if not wishes else ()
        before = target.removesuffix(f"-{framework.name}")
        here = [f"{before}-{each.name}" for each in others if working(accelerator, each)[0]]
        there = (each for each in accelerators.accelerators() if working(each, framework)[0])
        fix = f"pass --target {' or '.join(here or map(str.lower, there))}"
        raise InputError(f"{what}: {next(iter(refusals.values()))}", fix)
    allowed = (each for each in works if _allowed(each, wishes))
    release = next(allowed, "") or _nearest(framework, works, wishes)
    chosen = f"{framework.name}: {release}, python: {works[release]}"
    newer = (each for each in reversed(refusals) if Version(each) >= Version(release))
    why = next((f" ({refusals[each]})" for each in newer if _allowed(each, wishes)), "")
    for wish in dict.fromkeys([*any_release, *wishes]):
        if release in wish.specifier:
            findings.taken.insert(0, f"{wish.where}: {wish.text} -> {chosen}{why}")
        else:
            fits = [what for each, what in refusals.items() if each in wish.specifier]
            reason = fits[0] if fits else "the tables have no such release"
            instead = f"image.yaml has {chosen}, the nearest that works on {accelerator}"
            findings.left.insert(0, f"{wish.where}: {wish.text}: {reason}; {instead}")
    if not wishes:
        default = f"nothing names a framework: {framework.title}, the default"
        what = default if target == accelerator.lower() else f"--target {target}"
        findings.taken.insert(0, f"{what} -> {chosen}{why}")
    return {framework.name: release, "python": works[release]}


def _allowed(release: str, wishes: Sequence[Wish]) -> bool:
    return all(release in wish.specifier for wish in wishes)


def _nearest(framework: Framework, releases: Iterable[str], wishes: Sequence[Wish]) -> str:
    bounds = [bound for wish in wishes for bound in wish.specifier]
    exact = [bound for bound in bounds if bound.operator == "=="] or bounds
    wanted = max((bound.version.removesuffix(".*") for bound in exact), key=Version)
    return compatibility.nearest(framework, wanted, releases)
