"""The size of the code; every folder has a place in the import contract and the architecture.

These limits are of the whole tree: `make check` runs them, for each commit.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import ROOT

BUILDER, TRAINER, PACKAGES = ROOT / "builder", ROOT / "trainer", ROOT / "packages"
MODULE_LINES, FUNCTION_LINES, TOP_MODULES = 500, 60, 3
FILES = 91
"""Of builder/ that the way of an image reaches."""
CARRIED_LINES = 8_150
"""Of Python that device-code-audit may carry: it had 17,400 when it held half of the factory."""


def long_modules(folder: Path) -> list[str]:
    """Return the modules that have too many lines."""
    lines = {path: len(path.read_text().splitlines()) for path in sorted(folder.rglob("*.py"))}
    return [f"{path}: {count} lines" for path, count in lines.items() if count > MODULE_LINES]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node, and theirs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def long_functions(folder: Path) -> list[str]:
    """Return the functions that have too many lines, decorators left out."""
    too_long = []
    for path in sorted(folder.rglob("*.py")):
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    too_long.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return too_long


@pytest.mark.parametrize("folder", [BUILDER, TRAINER, PACKAGES], ids=lambda path: path.name)
@pytest.mark.parametrize("rule", [long_modules, long_functions])
def test_nothing_is_too_long(rule: Callable[[Path], list[str]], folder: Path) -> None:
    assert rule(folder) == []


def imported(node: ast.AST) -> Iterator[str]:
    """The modules that a file imports, inside of functions too; not those for types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from imported(ast.Module(child.orelse, []))
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from imported(child)


def reached(module: str) -> set[Path]:
    """The files of builder/ that the imports of a module reach, packages' __init__.py included."""
    files: set[Path] = set()
    modules = [module]
    while modules:
        steps = modules.pop().split(".")
        for number in range(1, len(steps) + 1 if steps[0] == "builder" else 0):
            path = ROOT.joinpath(*steps[:number])
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if path.is_file() and path not in files:
                files.add(path)
                modules += imported(ast.parse(path.read_text()))
    return files


def test_the_way_of_an_image_reaches_few_files() -> None:
    files = reached("builder.pipeline.make")
    assert {ROOT / "builder/image/wheel_layers.py", ROOT / "builder/image/loading.py"} <= files
    assert len(files) <= FILES, sorted(map(str, files))


def test_the_package_of_the_audit_carries_few_lines() -> None:
    """Asked in a process of its own: what else a process has imported changes what is found."""
    path = PACKAGES / "device-code-audit/assemble.py"
    told = f"import runpy; print(*runpy.run_path({str(path)!r})['parts'](), sep='\\n')"
    command = [sys.executable, "-c", told]
    carried = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    lines = [len(Path(each).read_text().splitlines()) for each in carried if each.endswith(".py")]
    assert 0 < sum(lines) < CARRIED_LINES


def top() -> tuple[set[str], set[str]]:
    """Return the names of the folders and of the modules at the top of builder/."""
    folders = {path.parent.name for path in BUILDER.glob("*/__init__.py")}
    return folders, {path.stem for path in BUILDER.glob("*.py")} - {"__init__", "__main__"}


def test_the_import_contract_orders_every_folder() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [line for contract in settings["contracts"] for line in contract.get("layers", [])]
    ordered = set(re.findall(r"\bbuilder\.(\w+)", " ".join(layers)))
    folders, modules = top()
    assert folders | modules <= ordered and len(modules) <= TOP_MODULES


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = [path.parent.relative_to(ROOT).as_posix() for path in TRAINER.glob("*/__init__.py")]
    names += [f"builder/{name}" for name in top()[0]]
    assert [name for name in names if f"| `{name}/" not in text] == []


def _packed(text: str, fields: Sequence[str]) -> list[str]:
    """Return the fields that the docstring of their class explains."""
    flat = " ".join(text.split())
    return [name for name in fields if re.search(rf"(^|[.;)] |, ){name}: ", flat)]


def test_a_fields_text_stands_below_the_field() -> None:
    assert _packed("A layer. size: in bytes.", ("key", "size")) == ["size"]
    packed = {
        f"{path.relative_to(ROOT)}:{node.lineno}": found
        for folder in (BUILDER, TRAINER, PACKAGES)
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        if (found := _packed(ast.get_docstring(node) or "", _fields(node)))
    }
    assert packed == {}


def _fields(node: ast.ClassDef) -> list[str]:
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
