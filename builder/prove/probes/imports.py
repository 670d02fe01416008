"""Inside an image: can every module that a program imports be imported?

    python imports.py '{"folder": "/app"}'

Each file is read, not run: a plain script has no guard against being run. What it imports from
outside of its folder is looked for, and then really imported (a library with a missing part is
found but does not load). An import inside of `try` is the program's own business.
"""

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

PROVEN_ELSEWHERE = frozenset({"tensorflow", "keras"})
"""Loaded by the loader check, and slow."""


def imported(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[str, int]]:
    """Each absolute import of a file that is not inside of a `try`: its name and line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import) and not guarded:
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and not guarded:
            if node.module and not node.level:
                yield node.module, node.lineno
        else:
            yield from imported(node, guarded or isinstance(node, ast.Try))


def own(folder: Path) -> set[str]:
    """The names that lie in the folder."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def load(name: str) -> str:
    """Why a module cannot be imported; "" where it can."""
    try:
        if name.partition(".")[0] in PROVEN_ELSEWHERE:
            found = importlib.util.find_spec(name.partition(".")[0])
            return "" if found else f"no module named {name}"
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return f"no module named {error.name}"
    except BaseException as error:  # whatever a library does when it is imported
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    return ""


def examine(folder: Path) -> dict[str, object]:
    """The problems of a program, and the modules that were imported for it."""
    problems, seen = [], {}
    for path in sorted(folder.rglob("*.py")):
        where = path.relative_to(folder)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            fix = "mend the line; the image's Python is " + sys.version.split()[0]
            problems.append({"message": f"{where}:{error.lineno}: {error.msg}", "fix": fix})
            continue
        known = own(folder) | own(path.parent)
        for name, line in imported(tree):
            first = name.partition(".")[0]
            if first in sys.stdlib_module_names or first in known:
                continue
            if name not in seen:
                seen[name] = load(name)
                if seen[name]:
                    message = f"{where}:{line}: import {name}: {seen[name]}"
                    fix = f"add the package that brings {first} to requirements.txt"
                    problems.append({"message": message, "fix": fix})
    return {"problems": problems, "seen": {"modules": sorted(n for n in seen if not seen[n])}}


def main() -> None:
    request = json.loads(sys.argv[1])
    sys.path.insert(0, request["folder"])
    print(json.dumps(examine(Path(request["folder"]))))


if __name__ == "__main__":
    main()
