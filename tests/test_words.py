"""One word has one meaning: the tables of docs/contributing.md, and the small words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests import ROOT

WORDS = (
    (ROOT / "docs/contributing.md").read_text("utf-8").split("\n## Words\n")[1].split("\n## ")[0]
)
SMALL = dict.fromkeys(("where", "what", "how", "shown"), ("str", "str | None"))
KINDS = {**SMALL, "root": ("Path", "Path | None"), "repository": ("str", "str | None")}
"""What a parameter, a field or a result of this name is: a text, the project's folder, the place of
images in a registry."""
FILES = {
    "builder/pipeline/records.py": "root, a key of image.json",
    "builder/cloudbuild/trigger_table.py": "repository, a key of [[cloud.trigger]]",
}
"""Fields that have the name of a key in a file."""
APART = re.compile(r"builder/(devicecode/pruning|image/start|frameworks/\w+/probes/compile)")
"""What runs inside images, without the rest of builder/."""


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path of each module, from the root, and its syntax tree."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


@cache
def classes() -> dict[str, set[str]]:
    """Return the modules of builder/ that define a class of a name."""
    found: dict[str, set[str]] = {}
    for path, tree in modules("builder"):
        if not APART.match(path):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).add(path)
    return found


def test_a_class_of_the_tables_is_defined_there_and_nowhere_else() -> None:
    rows = re.findall(r"`(\w+)`(?:, | \| )`(builder/[\w/]+\.py)`", WORDS)
    assert len(rows) > 35
    assert [row for row in rows if classes().get(row[0]) != {row[1]}] == []


def test_no_two_classes_are_called_alike() -> None:
    named = {name: paths for name, paths in classes().items() if name[0] != "_"}
    twice = {name: paths for name, paths in named.items() if len(paths) > 1}
    assert twice == {}


def test_the_table_has_every_value_for_an_image() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", WORDS, re.MULTILINE))
    assert {name for name in classes() if "Image" in name} == named


def of_other_kinds(tree: ast.Module) -> Iterator[str]:
    """Yield the parameters, fields and results that have a word's name and are something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name, kind = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, kind = ast.unparse(node.target), node.annotation
        elif isinstance(node, ast.FunctionDef):
            name, kind = node.name.lstrip("_"), node.returns
        else:
            continue
        said = ast.unparse(kind) if kind else "nothing"
        if said not in KINDS.get(name, said):
            yield f"{node.lineno}: {name}: {said}"


def test_a_small_word_has_one_kind() -> None:
    mistake = "def send(where: Settings, what: str, root: Path) -> None: ..."
    assert list(of_other_kinds(ast.parse(mistake))) == ["1: where: Settings"]
    folders = ("builder", "trainer", "packages", "examples")
    found = {path: list(of_other_kinds(tree)) for path, tree in modules(*folders)}
    assert {path for path, lines in found.items() if lines} == set(FILES), found
