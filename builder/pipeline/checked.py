"""What the last whole check of a target found, for as long as nothing that it read has changed.

A check loads image.yaml, joins the tables, reads the locks and renders the Dockerfiles. Most of its
time goes into loading the libraries for that, and what it finds depends on files alone. So what is
needed of it is kept in build/<target>/checked.json, under a hash over the content of all of them.
Another hash, a torn file or none: it is checked again. Only what passed is ever kept.
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
"""What a check is made with: another version may find something else."""

_FACTORY = Path(__file__).parents[1]
_ROOMS = (
    "core",
    "facts",
    "spec",
    "lock",
    "registry",
    "render",
    "devicecode",
    "devicecode/pruning",
    "tensorflow",
    "pipeline",
)
"""The packages that a check runs or reads."""


@dataclass(frozen=True)
class CheckedProgram:
    """Of a checked image.yaml: the trainer's folder, its module, and whether that lies flat in it.
    All else that a training image is made of stands in the committed Dockerfile."""

    package: str
    module: str
    flat: bool


def recall(root: Path, target: str) -> CheckedProgram | None:
    """What the check of a target would find; None where it has to be made."""
    try:
        content = json.loads(_file(root, target).read_text(encoding="utf-8"))
        program = CheckedProgram(**content["program"])
        return program if content["inputs"] == inputs(root, target, program) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(root: Path, target: str, program: CheckedProgram, seen: str) -> None:
    """Note that a check passed. `seen`: the inputs as they were before it; where they are others
    now, or nothing can be written, nothing is noted."""
    if seen == inputs(root, target, program):
        try:
            content = {"inputs": seen, "program": asdict(program)}
            files.write(_file(root, target), json.dumps(content, indent=1) + "\n")
        except OSError:
            return


def inputs(root: Path, target: str, program: CheckedProgram) -> str:
    """Hash over everything that a check of a target reads, and over what it reads that with.

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
        (root / IMAGES, "*.lock"),
        (root / TEMPLATES, "**/*"),
        (PACKAGED, "**/*"),
        *((_FACTORY / room, "*.py") for room in _ROOMS),
        *((_FACTORY / room, "*.yaml") for room in ("facts", "tensorflow")),
    ):
        yield from sorted(path for path in folder.glob(pattern) if path.is_file())


def _seen(root: Path, program: CheckedProgram) -> list[object]:
    """What the catalogue looks at in the trainer's folder. Its other files are in the image's own
    hash."""
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
