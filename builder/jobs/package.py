"""Any Python program as a training image, without a Dockerfile.

A folder and a module become a small project below build/packages/: the target's image.yaml with
this `program`, the target's locks (so that everything that stays the same keeps its version and its
layers), and a copy of the folder. This project's image is made like any other: locked with hashes,
rendered, built, proven and pushed. The options of such a program are not known, so a label of its
image names a suite of checks that asks for less than the trainer's.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from builder.config import compatibility, image_yaml, lockfile, locking
from builder.core import files, outgoing, project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.settings import Settings
from builder.engine import Engine
from builder.image import dockerfile, layers_lock
from builder.image import program as programs
from builder.image.apt import ContainerApt
from builder.pipeline import make, proof, push, records
from builder.prove import receipts
from builder.prove.receipts import Receipt
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
        """Return the folder's name as a part of an image's tag."""
        name = re.sub(r"[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")
        return name[:30].strip("-") or "program"

    @property
    def copy(self) -> str:
        """Return the name of its copy in the project of its own."""
        return "program" if self.flat else self.folder.name


@dataclass(frozen=True)
class ProvenPackage:
    """A program's proven image."""

    root: Path
    """The program's own project."""
    target: str
    """The image's name there."""
    record: records.ImageRecord
    receipt: Receipt
    unchanged: bool

    def push(
        self, settings: Settings, engine: Engine, on_event: OnEvent = ignore
    ) -> push.PushedImage:
        """Push the image with its base and its receipt. Raises OutsideError, CheckFailed."""
        owner = project.owner(self.root)
        return push.push_target(
            self.root, settings, engine, self.target, on_event=on_event, project=owner
        )


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


def derive(root: Path, target: str, program: PythonProgram) -> tuple[Path, str]:
    """Write the program's own project. Returns its root, and its target's name there.

    Raises InputError.
    """
    spec = image_yaml.load(root, target)
    name = f"{target}-{program.slug}"
    home = root / project.PACKAGES / name
    with files.locked(home.parent / f".{name}.lock"):
        _copy_program(program, home)
        _copy_locks(root, target, home, name)
        values = {key: value for key, value in spec.written().items() if key != "smoke"}
        values["program"] = f"{program.copy}:{program.module}"
        values["suite"] = receipts.PROGRAM
        if spec.size_budget:
            values["size_budget"] = f"{(spec.size_budget + ADDED_SIZE) / 1e9:.2f} GB"
        text = json.dumps(values, indent=1) + "\n"  # JSON is YAML
        files.write(home / image_yaml.IMAGES / name / image_yaml.FILE, text)
        files.write(home / project.MARKER, (root / project.MARKER).read_bytes())
        templates = home / "templates"
        if (root / "templates").is_dir() and not templates.exists():
            templates.symlink_to((root / "templates").absolute())
    return home, name


def _copy_program(program: PythonProgram, home: Path) -> None:
    """Put the folder's files, as an image gets them, in place of what was there."""
    text, source = requirements(program)
    paths = list(programs.walk(program.folder))
    for path in paths:
        programs.check(program.folder, path)
    copy = home / program.copy
    if copy.is_dir():
        shutil.rmtree(copy)
    copy.mkdir(parents=True)
    for path in paths:
        to = copy / path.relative_to(program.folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    if source:
        (copy / image_yaml.REQUIREMENTS).write_text(text, encoding="utf-8")


def _copy_locks(root: Path, target: str, home: Path, name: str) -> None:
    """Copy the target's locks to start from; again where the target was locked anew since."""
    source, to = root / image_yaml.IMAGES / target, home / image_yaml.IMAGES / name
    lock, marker = lockfile.read(root, target).document, to / _TARGETS_LOCK
    if marker.is_file() and marker.read_text(encoding="utf-8") == lock:
        return
    for path in to.glob("*.lock"):
        path.unlink()
    for path in source.glob("*.lock"):
        files.write(to / path.name, path.read_bytes())
    images = source.parent
    shared = (*images.glob("os-*.lock"), *images.glob(f"{rebuilders.FOLDER}/*.json"))
    for path in (*shared, root / layers_lock.FILE):
        if path.is_file():
            files.write(to.parent / path.relative_to(images), path.read_bytes())
    files.write(marker, lock)


def build(
    root: Path,
    settings: Settings,
    engine: Engine,
    target: str,
    program: PythonProgram,
    on_event: OnEvent = ignore,
) -> ProvenPackage:
    """Lock, render, build and prove a program's image; does nothing where nothing changed.

    Raises InputError for requirements that cannot be, CheckFailed, OutsideError.
    """
    with step(f"{target}-{program.slug}: copy", on_event) as copying:
        home, name = derive(root, target, program)
        copying.detail = str(program.folder)
        programs.report(program.folder, copying)
    with files.locked(home.parent / f".{name}.lock"):
        try:
            spec = image_yaml.load(home, name)
            apt = ContainerApt(root, settings, on_event)
            locking.lock(home, spec, compatibility.resolve(spec), apt, on_event=on_event)
        except InputError as error:
            raise _in_users_words(error, program, target) from None
        dockerfile.write(home, dockerfile.texts(home, dockerfile.load_all(home, [name])))
        options = make.BuildOptions(settings, on_event, signed=rebuilders.required)
        (made,) = make.make(home, [name], options, lambda: engine, proof.prove_once)
    return ProvenPackage(home, name, made.record, made.receipt, made.unchanged)


def _in_users_words(error: InputError, program: PythonProgram, target: str) -> InputError:
    """Return the error with the user's file and target in place of those of the copy."""
    copy, source = f"{program.copy}/{image_yaml.REQUIREMENTS}", requirements(program)[1]
    lines = "" if source.endswith(image_yaml.REQUIREMENTS) else r"(:\d+)?"
    message, fix = (
        text.replace(f"{target}-{program.slug}", target) for text in (error.message, error.fix)
    )
    return InputError(re.sub(re.escape(copy) + lines, lambda _: source or copy, message), fix)
