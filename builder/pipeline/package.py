"""Any Python program as a training image, without a Dockerfile.

A folder and a module stand in for the program of a target's image.yaml. The image is made like any
other: locked with hashes, rendered, built, proven and pushed. Its locks lie below build/packages/,
and begin with the target's, so that everything that stays the same keeps its version and its
layers. The options of such a program are not known, so a label of its image names a suite of checks
that asks for less than the trainer's.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from builder.config import image_yaml, lockfile, locking, targets
from builder.config.image_yaml import Program, ProgramFolder
from builder.config.locking import Apt
from builder.config.targets import TargetFiles
from builder.core import files, outgoing, project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import Engine
from builder.image import layers_lock
from builder.image import program as programs
from builder.image.apt import ContainerApt
from builder.pipeline import make, proof
from builder.pipeline.make import ProvenImage
from builder.prove import receipts
from builder.trust import rebuilders

ADDED_SIZE = 4_000_000_000
"""Bytes that a program's requirements may add to the target's size budget."""

_TARGETS_LOCK = "target.lock"
"""The file with the lock of the target that the program's locks began with."""


@dataclass(frozen=True)
class PythonProgram:
    """A folder with a Python program, and the module to start."""

    folder: Path
    module: str
    flat: bool
    """The module lies in the folder itself, not in a package of the folder's name."""

    @property
    def slug(self) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")
        return name[:30].strip("-") or "program"


def find(text: str) -> PythonProgram:
    """Return the program of FOLDER:MODULE. Raises InputError with the modules that are."""
    name, _, module = text.partition(":")
    folder, module = Path(name).absolute(), module.removesuffix(".py").replace("/", ".")
    steps = module.split(".")
    if module and project.is_module(folder.joinpath(*steps)):
        return PythonProgram(folder, module, flat=True)
    if steps[0] == folder.name and project.is_module(folder.parent.joinpath(*steps)):
        return PythonProgram(folder, module, flat=False)
    if not folder.is_dir():
        raise InputError(f"--program {text}: there is no folder {folder}", "write FOLDER:MODULE")
    names = [path.stem for path in sorted(folder.glob("*.py")) if not path.stem.startswith("__")]
    near = difflib.get_close_matches(steps[-1], names, n=1) or [", ".join(names) or "no .py file"]
    raise InputError(f"--program {text}: there is no such module", f"{folder} holds {near[0]}")


def requirements(program: PythonProgram) -> tuple[str, str]:
    """Return the program's requirements, and the file that they come from; both may be "".

    requirements.txt in the folder, else pyproject.toml's dependencies, else (for a package) the
    same of the folder above, where such files usually lie. Raises InputError.
    """
    above = () if program.flat else (program.folder.parent,)
    for folder in (program.folder, *above):
        path = folder / image_yaml.REQUIREMENTS
        outgoing.inside(folder, path)
        if (text := files.text_of(path)) is not None:
            return text, str(path)
        path = folder / "pyproject.toml"
        outgoing.inside(folder, path)
        if (text := files.text_of(path)) is not None:
            try:
                table = files.parsed(tomllib.loads, text).get("project", {})
            except ValueError as error:
                raise InputError(f"{path}: not TOML: {error}", "mend the file") from None
            dependencies = table.get("dependencies", []) if isinstance(table, dict) else None
            if not isinstance(dependencies, list):
                raise InputError(f"{path}: project.dependencies is no list", "mend the file")
            text = "".join(f"{requirement}\n" for requirement in dependencies)
            return text, f"{path}: project.dependencies"
    return "", ""


def on_target(target: TargetFiles, program: PythonProgram) -> TargetFiles:
    """Return a target with this program in place of its own.

    Raises InputError, for each requirement that cannot be installed.
    """
    text, source = requirements(program)
    folder = ProgramFolder(program.flat, image_yaml.requirements_in(text, source))
    budget = target.spec.size_budget and target.spec.size_budget + ADDED_SIZE
    changed = {"suite": receipts.PROGRAM, "smoke": (), "size_budget": budget}
    if "+" in target.stack.release:  # the build that its lock has, of an index in use then
        changed["release"] = target.stack.release
    chosen = Program(str(program.folder), program.module)
    name = f"{target.name}-{program.slug}"
    spec = target.spec.with_program(name, chosen, folder, **changed)
    return TargetFiles(target.root, spec, target.root / project.PACKAGES / name)


def _begin(target: TargetFiles, package: TargetFiles) -> None:
    """Give a package its target's lock to start from; again where that was locked anew since."""
    root, home, lock = package.root, package.home, target.lock
    marker = home / image_yaml.IMAGES / package.name / _TARGETS_LOCK
    if files.text_of(marker) == lock.document:
        return
    lockfile.write(home, replace(lock, target=package.name))
    signed = (root / image_yaml.IMAGES / rebuilders.FOLDER).glob("*.json")
    for path in (root / layers_lock.FILE, *signed):
        if path.is_file():
            files.write(home / path.relative_to(root), path.read_bytes())
    files.write(marker, lock.document)


def locked(
    target: TargetFiles, program: PythonProgram, apt: Apt, on_event: OnEvent = ignore
) -> TargetFiles:
    """Return a target with this program, locked.

    Raises InputError for requirements that cannot be, OutsideError.
    """
    package = on_target(target, program)
    spec, stack = package.spec, package.stack
    programs.files(package.root, spec, stack)  # what must not be in an image is refused first
    with files.locked(package.home.parent / f".{package.name}.lock"):
        _begin(target, package)
        try:
            locking.lock(package.home, spec, stack, apt, on_event=on_event)
        except InputError as error:  # `builder explain` knows the target
            fix = error.fix.replace(package.name, target.name)
            raise InputError(error.message, fix) from None
    return package


def build(
    root: Path,
    name: str,
    program: PythonProgram,
    settings: Settings,
    engine: Engine,
    on_event: OnEvent = ignore,
) -> tuple[TargetFiles, ProvenImage]:
    """Return a target with this program, and its image, locked, built and proven, where anything
    changed. Raises InputError, CheckFailed, OutsideError.
    """
    apt = ContainerApt(root, settings, on_event)
    package = locked(targets.of(root, name), program, apt, on_event)
    options = make.BuildOptions(settings, on_event, signed=rebuilders.required)
    (made,) = make.make(root, [package], options, lambda: engine, proof.prove_once)
    return package, made
