"""Can every module that a program imports be imported?

Request: {"folder": "/app", "proven_elsewhere": ["tensorflow", "keras"]}

The program's files are read and not run, because a plain script would begin to work. What they
import from outside of the folder is found first and then imported, because a library that lacks a
part is found and does not load. An import inside of `try` may fail: the program handles that.
`proven_elsewhere`: modules that another check loads, and that load slowly; these are only found.
"""

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path


def imported(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[str, int]]:
    """Yield name and line of each absolute import of a file that is not inside of a `try`."""
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
    """Return the names that lie in the folder."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def load(name: str, find_only: bool) -> str:
    """Say why a module cannot be imported (or found, which is faster); "" where it can."""
    try:
        if find_only:
            spec = importlib.util.find_spec(name.partition(".")[0])
            return "" if spec else f"no module named {name}"
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return f"no module named {error.name}"
    except BaseException as error:  # whatever a library does when it is imported
        return f"{type(error).__name__}: {_first_cause(error)}"
    return ""


def _first_cause(error: BaseException) -> str:
    """Return the line that tells which library failed (of the error or of what it came from), else
    the first line of the error."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    lines = [line.strip() for each in chain for line in str(each).splitlines() if line.strip()]
    telling = (line for line in lines if any(words in line for words in _TELLING))
    return next(telling, str(error).splitlines()[0] if str(error) else "")


_TELLING = ("undefined symbol", "cannot open shared object file", "not defined in file", "GLIBC")


def examine(folder: Path, proven_elsewhere: Collection[str] = ()) -> dict[str, object]:
    """Return the problems of a program, and the modules that were imported for it."""
    problems, seen = [], {}
    for path in sorted(folder.rglob("*.py")):
        file = path.relative_to(folder)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            fix = "mend the line; the image's Python is " + sys.version.split()[0]
            problems.append({"message": f"{file}:{error.lineno}: {error.msg}", "fix": fix})
            continue
        known = own(folder) | own(path.parent)
        for name, line in imported(tree):
            first = name.partition(".")[0]
            if first in sys.stdlib_module_names or first in known:
                continue
            if name not in seen:
                seen[name] = load(name, first in proven_elsewhere)
                if seen[name]:
                    message = f"{file}:{line}: import {name}: {seen[name]}"
                    fix = f"add the package that brings {first} to requirements.txt"
                    if not seen[name].startswith("no module named"):
                        fix = f"{first} is there: take releases of it and its libraries that fit"
                    problems.append({"message": message, "fix": fix})
    return {"problems": problems, "seen": {"modules": sorted(n for n in seen if not seen[n])}}


def main() -> None:
    request = json.loads(sys.argv[1])
    sys.path.insert(0, request["folder"])
    print(json.dumps(examine(Path(request["folder"]), request["proven_elsewhere"])))


if __name__ == "__main__":
    main()
