"""A first target for a repository that is there: image.yaml, from what its own files say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builder.config import image_yaml
from builder.config.repository import Findings, look, text_of
from builder.core import files, project
from builder.facts import accelerators

SETTINGS: Final = """\
# The project's settings; this folder is its root. A flag or a variable (BUILDER_REGISTRY ...) wins.
#   registry = "europe-west4-docker.pkg.dev/my-project/training/images"
"""
IGNORED: Final = "/build/"
"""What builds write, as a line of .gitignore and .dockerignore."""


@dataclass(frozen=True)
class Proposal:
    """A target for a repository. files: what is to be written, by path; it may be nothing."""

    target: str
    files: dict[Path, str]
    findings: Findings


def propose(root: Path, target: str, force: bool = False) -> Proposal:
    """Return the files that a repository lacks for a target, and what they were taken from.

    A file that is there is not in the proposal, unless `force` is given: image.yaml is then written
    anew, and the ignore files get their line. Raises InputError for a target that is no
    accelerator, and for a file that cannot be read.
    """
    accelerator = accelerators.find(target)
    name, findings, written = target.lower(), Findings(), dict[Path, str]()
    yaml = root / project.IMAGES / name / image_yaml.FILE
    if not (root / project.MARKER).exists():
        written[root / project.MARKER] = SETTINGS
    if force or not yaml.exists():
        look(root, findings)
        written[yaml] = _image_yaml(accelerator.name, findings)
    for ignore in (".gitignore", ".dockerignore"):
        path = root / ignore
        text = text_of(path)
        if ignore == ".dockerignore" and not (root / project.DOCKERFILE).exists():
            continue
        if IGNORED in (text or "").split():
            continue
        if text is None or force:
            written[path] = "\n".join([*(text or "").splitlines(), IGNORED, ""])
        else:
            findings.leave(ignore, IGNORED, "it is there already: add this line, or give --force")
    changed = {path: text for path, text in written.items() if text_of(path) != text}
    return Proposal(name, changed, findings)


def write(proposal: Proposal) -> None:
    """Write the files of a proposal."""
    for path, text in proposal.files.items():
        files.write(path, text)


def _image_yaml(accelerator: str, findings: Findings) -> str:
    """Return image.yaml with what was taken over. Everything else keeps its default."""
    values: dict[str, Any] = {"accelerator": accelerator}
    if findings.tensorflow:
        values["tensorflow"] = findings.tensorflow
    if findings.python and findings.python != "3.11":
        values["python"] = findings.python
    if findings.apt:
        values["apt"] = sorted(dict.fromkeys(findings.apt))
    if findings.requirements:
        values["requirements"] = list(findings.requirements.values())
    if findings.program:
        package, module = findings.program
        values |= {"program": f"{package}:{module}", "suite": "program"}
    if findings.environment:
        values["environment"] = findings.environment
    head = (
        "# The image of one accelerator; every other field has a default: builder schema --stdout\n"
    )
    return head + "".join(
        f"{key}: {value if isinstance(value, str) and key != 'tensorflow' else json.dumps(value)}\n"
        for key, value in values.items()
    )
