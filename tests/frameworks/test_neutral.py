"""The rest of the factory names no framework: it asks the value Framework.

What is searched is code, and not its comments and docstrings, which give examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from builder.facts import frameworks

BUILDER = Path(__file__).parents[2] / "builder"
NAMES = re.compile(rf"{'|'.join(frameworks.OWN)}|\bjax|keras", re.IGNORECASE)
EXCEPT = {
    "cli/inputs.py": "an example of a target's name",
    "config/image_yaml.py": "an example of a published image",
    "init/findings.py": "a package that the factory never takes over, a program that starts one",
    "config/locking.py": "a variable of uv",
    "devicecode/damage.py": "the names of libraries that have to hold code",
    "devicecode/reader.py": "the names of libraries that read flags",
    "devicecode/pruning/__main__.py": "its text is part of the key of pruned layers",
    "devicecode/pruning/prune.py": "its text is part of the key of pruned layers",
    "facts/frameworks.py": "the list of ours",
    "image/dockerfile.py": "the names of Google's published images",
    "jobs/convert.py": "an operator's kind of job is called so",
    "jobs/step.py": "variables, each of which one framework reads",
    "jobs/tensorboard.py": "TensorBoard asks for it by name",
    "prove/checks/loader.py": "how compiled modules are called, of which some are jaxlib's",
    "prove/checks/environment.py": "variables, each of which one framework reads",
    "prove/checks/shadows.py": "the words by which a program hides the accelerator",
    "prove/commands.py": "a program that starts one",
    "image/start/training_contract.py": "the variables by which a process knows its rank",
    "trust/sbom.py": "who makes a package",
}
"""Files that name one, and why they have to."""


def words(path: Path) -> Iterator[str]:
    """Yield the names and the texts in a module's code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) not in documents and isinstance(value := getattr(node, "value", None), str):
            yield value
        for field in ("id", "attr", "name", "arg", "module"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


def modules() -> list[str]:
    """All modules but the frameworks' own, and the cases of `job why`, which read any log."""
    names = (path.relative_to(BUILDER).as_posix() for path in BUILDER.rglob("*.py"))
    return sorted(name for name in names if not name.startswith(("frameworks/", "jobs/why/")))


def test_no_framework_is_named_but_where_it_has_to_be() -> None:
    named = {}
    for module in modules():
        if NAMES.search((BUILDER / module).read_text(encoding="utf-8")):
            named_here = [word for word in words(BUILDER / module) if NAMES.search(word)]
            named |= {module: named_here} if named_here else {}
    assert named.keys() == EXCEPT.keys(), named


def test_every_framework_is_asked() -> None:
    assert tuple(each.name for each in frameworks.every())[: len(frameworks.OWN)] == frameworks.OWN
    for framework in frameworks.every():
        assert framework.distributions and framework.module
