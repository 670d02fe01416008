"""What the modules of a repository import; they are read, and never run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from builder.core import files, project
from builder.facts import frameworks

_MOST: Final = 2_000
"""How many modules are read at most."""
_OPENING: Final = frozenset(("join", "Path", "joinpath", "open", "listdir", "ImageFolder"))
"""The functions whose arguments are parts of paths."""
_OPTIONS: Final = frozenset(("default", "config_path"))
"""The keywords whose values may be paths: argparse's and click's, hydra's."""
_LEFT_OUT: Final = frozenset((project.BUILD, project.IMAGES, "tests", "test", "node_modules"))


def of_frameworks(root: Path, program: tuple[str, str] | None) -> dict[str, tuple[str, str]]:
    """Return each framework that is imported: the place of the first import, and its text.

    program: the folder and the module that are started; what it imports counts, and without it
    every module of the repository.
    """
    names = {
        module.replace("-", "_"): framework.name
        for framework in frameworks.every()
        for module in {framework.name, *framework.needed_by}
    }
    modules = _reached(root, program) if program else _all(root)
    found = dict[str, tuple[str, str]]()
    for path in modules:
        for line, name in imported(path):
            framework = names.get(name.split(".")[0])
            if framework:
                where = f"{path.relative_to(root).as_posix()}:{line}"
                found.setdefault(framework, (where, f"import {name}"))
    return found


def packages(root: Path, program: tuple[str, str]) -> list[str]:
    """Return what the program's modules import when loaded, but for Python's and the root's own."""
    found = set[str]()
    for path in _reached(root, program):
        own = (root, root / program[0], path.parent)
        for node in _tree(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in (each.split(".")[0] for each in names):
                there = any(
                    (base / name).is_dir() or (base / f"{name}.py").is_file() for base in own
                )
                if name not in sys.stdlib_module_names and not there:
                    found.add(name)
    return sorted(found)


def beside(root: Path, program: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what a program uses that is not in its folder: the place, the module or folder."""
    folder, seen = root / program[0], set[str]()
    for path in _reached(root, program):
        where = path.relative_to(root).as_posix()
        if not path.is_relative_to(folder):
            yield where, f"imports {where}"
            continue
        for line, text in _paths(_tree(path)):
            first = re.sub(r"^(\.{1,2}/)+", "", text).split("/")[0]
            there = first and (root / first).is_dir() and not folder.is_relative_to(root / first)
            if there and not (folder / first).exists() and first not in seen:
                seen.add(first)
                yield f"{where}:{line}", f"opens {first}/"


def _paths(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that read like paths, each with its line: they have a slash, or
    are put together as paths are, or are what an option says."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            parts = node.args if name in _OPENING else []
            parts = [*parts, *(each.value for each in node.keywords if each.arg in _OPTIONS)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Constant) and "/" in str(node.value):
            parts = [node]
        for part in parts:
            text = part.value if isinstance(part, ast.Constant) else ""
            if isinstance(text, str) and re.fullmatch(r"(\.{1,2}/)*[\w-]+(/[\w./{}*-]*)?", text):
                yield part.lineno, text


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module that is imported; a relative one with its dots."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node.lineno, base
            start = f"{base}." if node.module else base
            yield from ((node.lineno, start + alias.name) for alias in node.names)  # modules, too


def _tree(path: Path) -> ast.Module:
    """Return a module's tree; an empty one for what is no Python."""
    return _parsed(files.text_of(path) or "")


@lru_cache(maxsize=_MOST)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _reached(root: Path, program: tuple[str, str]) -> Iterator[Path]:
    """Yield the modules of the repository that a program imports, itself first."""
    folder, module = root / program[0], program[1]
    roots = (root, folder, folder.parent, root / "src")
    waiting, seen = [_file(roots, module)], set[Path]()
    while waiting and len(seen) < _MOST:
        path = waiting.pop(0)
        if path is None or path in seen or not path.resolve().is_relative_to(root.resolve()):
            continue
        seen.add(path)
        yield path
        for _, name in imported(path):
            dots = len(name) - len(name.lstrip("."))
            beside = (*path.parents[dots - 1 : dots],) if dots else (*roots, path.parent)
            waiting.append(_file(beside, name.lstrip(".")))


def _file(roots: tuple[Path, ...], module: str) -> Path | None:
    steps = [step for step in module.split(".") if step]
    for root in roots if steps else ():
        base = root.joinpath(*steps)
        for path in (base.with_name(f"{base.name}.py"), base / "__main__.py", base / "__init__.py"):
            if path.is_file():
                return path
    return None


def _all(root: Path) -> Iterator[Path]:
    """Yield the modules of a repository, those at the root first."""
    waiting, count = [root], 0
    while waiting and count < _MOST:
        folder = waiting.pop(0)
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.is_symlink() or path.name in _LEFT_OUT:
                continue
            if path.is_dir() and not (path / "pyvenv.cfg").is_file():
                waiting.append(path)
            elif path.suffix == ".py" and path.is_file():
                count += 1
                yield path
