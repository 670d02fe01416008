"""The result of the last check of a target, valid until a file that the check read changes.

A check loads image.yaml, joins the tables, reads the locks and renders the Dockerfiles. It takes
most of its time to load the libraries for that, and its result depends on files alone. So the
result is kept in build/<target>/checked.json, under a hash over the content of these files. With
another hash, a damaged file or none, the target is checked again. Only a check that passed is kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.core import files, project
from builder.core.project import BUILD, IMAGES
from builder.core.templates import PACKAGED, TEMPLATES

FILE = "checked.json"
LIBRARIES = ("jinja2", "packaging", "pydantic", "pydantic-core", "ruamel.yaml")
"""The libraries of a check: another version may have another result."""

_FACTORY = Path(__file__).parents[1]
_ROOMS = (
    "core",
    "facts",
    "spec",
    "lock",
    "registry",
    "bases",
    "render",
    "render/start",
    "devicecode",
    "devicecode/pruning",
    "tensorflow",
    "pipeline",
)
"""The packages that a check runs or reads."""


@dataclass(frozen=True)
class CheckedProgram:
    """The program of a checked image.yaml. The committed Dockerfile has all the rest of the image.

    package: the program's folder. flat: the module lies in the folder itself, not in a package of
    the folder's name. compression: of the image's layers.
    """

    package: str
    module: str
    flat: bool
    compression: str


def recall(root: Path, target: str) -> CheckedProgram | None:
    """The result that a check of the target would have; None where it has to be checked."""
    try:
        content = json.loads(_file(root, target).read_text(encoding="utf-8"))
        program = CheckedProgram(**content["program"])
        return program if content["inputs"] == inputs(root, target, program) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(root: Path, target: str, program: CheckedProgram, seen: str) -> None:
    """Keep the result of a check that passed. seen: `inputs` before the check.

    Nothing is kept where the inputs have changed since, or the file cannot be written.
    """
    if seen == inputs(root, target, program):
        try:
            content = {"inputs": seen, "program": asdict(program)}
            files.write(_file(root, target), json.dumps(content, indent=1) + "\n")
        except OSError:
            return


def inputs(root: Path, target: str, program: CheckedProgram) -> str:
    """Hash over everything that a check of a target reads, and over the program that reads it.

    Raises OSError where one of the files cannot be read.
    """
    from importlib.metadata import version

    found = hashlib.sha256()
    facts = (sys.version, *map(version, LIBRARIES), target, asdict(program), _seen(root, program))
    found.update(json.dumps(facts).encode())
    for path in _files(root, target):
        content = path.read_bytes()
        found.update(f"\n{path} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _files(root: Path, target: str) -> Iterator[Path]:
    for folder, pattern in (
        (root / IMAGES / target, "*"),
        (root / IMAGES, "*/image.yaml"),
        (root / IMAGES, "*.lock"),
        (root / TEMPLATES, "**/*"),
        (PACKAGED, "**/*"),
        *((_FACTORY / room, "*.py") for room in _ROOMS),
        *((_FACTORY / room, "*.yaml") for room in ("facts", "tensorflow")),
    ):
        yield from sorted(path for path in folder.glob(pattern) if path.is_file())


def _seen(root: Path, program: CheckedProgram) -> list[object]:
    """What the catalogue looks at in the trainer's folder. The image's own hash covers its other
    files."""
    folder = root / program.package
    steps = program.module.split(".")
    modules = (folder.joinpath(*steps), folder.parent.joinpath(*steps))
    requirements = folder / "requirements.txt"
    return [
        str(folder.resolve()),
        [project.is_module(module) for module in modules],
        requirements.read_text(errors="replace") if requirements.is_file() else None,
    ]


def _file(root: Path, target: str) -> Path:
    return root / BUILD / target / FILE
