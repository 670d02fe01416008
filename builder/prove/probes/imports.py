"""Can every module that a program imports be imported?

Request: {"folder": "/app", "module": "train", "proven_elsewhere": ["tensorflow", "keras"]}

The program's files are read and not run, because a plain script would begin to work: the module
that is started, and those that it imports. What they import from outside of the folder is found
first and then imported, because a library that lacks a part is found and does not load. What is
imported in a function, a condition or a `try` may lack, and is named: training may not need it.
`proven_elsewhere`: modules that another check loads, and that load slowly; these are only found.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_STDLIB = getattr(sys, "stdlib_module_names", sys.builtin_module_names)
_LATER = ("FunctionDef", "AsyncFunctionDef", "Lambda", "Try", "TryStar", "Match")
"""What may leave out the imports inside of it; conditions are another one."""
_MISSING = "no module named"


def imported(
    tree: ast.AST, needed: bool = True
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield each import of a file, and whether it runs whenever the file is loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, needed
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from imported(ast.Module(node.orelse, []), needed)
        else:
            yield from imported(node, needed and not _is_later(node))


def _is_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "__main__" not in ast.dump(node.test)
    if isinstance(node, ast.With):
        return any("suppress" in ast.dump(item.context_expr) for item in node.items)
    return type(node).__name__ in _LATER


def names(node: ast.Import | ast.ImportFrom, package: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the modules that an import may load, and whether each may be another's than the
    program's. package: that of the file."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, True) for alias in node.names)
        return
    above = package[: len(package) - node.level + 1] if node.level else ()
    base = ".".join([*above, *([node.module] if node.module else [])])
    yield base, not node.level
    yield from ((f"{base}.{alias.name}", False) for alias in node.names)


def files(folders: Iterable[Path], name: str) -> list[Path]:
    """Return the files of the program that are loaded for a module: its packages' and its own."""
    steps = [step for step in name.split(".") if step]
    for folder in folders:
        bases = [folder.joinpath(*steps[: count + 1]) for count in range(len(steps))]
        every = (path for base in bases for path in (base / "__init__.py", base.with_suffix(".py")))
        found = [path for path in every if path.is_file()]
        if found:
            return found
    return []


def load(name: str, find_only: bool) -> str:
    """Say why a module cannot be imported (or found, which is faster); "" where it can."""
    try:
        if find_only:
            spec = importlib.util.find_spec(name.partition(".")[0])
            return "" if spec else f"{_MISSING} {name}"
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return f"{_MISSING} {error.name}"
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


def foreign(folder: Path, module: str) -> Iterator[tuple[str, str, bool]]:
    """Yield what a program imports from outside of its folder: the place, the name, and whether it
    is needed to start; what is needed comes first. A file that is no Python has no name: its place
    says why."""
    start = (*files((folder,), module), *files((folder,), f"{module}.__main__"))
    waiting, seen = [(path, True) for path in start], set()
    while waiting:
        waiting.sort(key=lambda each: not each[1])
        path, needed = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        file = path.relative_to(folder)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            yield f"{file}:{error.lineno}: {error.msg}", "", needed
            continue
        for node, at_once in imported(tree, needed):
            for name, others in names(node, file.parts[:-1]):
                own = files((folder, path.parent), name)
                waiting += [(each, at_once) for each in own]
                if others and not own and name.partition(".")[0] not in _STDLIB:
                    yield f"{file}:{node.lineno}", name, at_once


def examine(folder: Path, module: str, proven_elsewhere: Collection[str] = ()) -> dict[str, object]:
    """Return the problems of a program, and the modules that were imported for it."""
    problems: list[dict[str, str]] = []
    lacks: dict[bool, dict[str, str]] = {True: {}, False: {}}
    loaded: dict[str, str] = {}
    for place, name, needed in sorted(foreign(folder, module), key=lambda each: not each[2]):
        first = name.partition(".")[0]
        if not name and needed:
            fix = "mend the line; the image's Python is " + sys.version.split()[0]
            problems.append({"message": place, "fix": fix})
        if not name or name in loaded or first in lacks[True]:
            continue
        failed = load(name, first in proven_elsewhere or not needed)
        if failed.startswith(_MISSING):
            missing = failed[len(_MISSING) + 1 :].partition(".")[0]
            lacks[needed].setdefault(missing, place if missing == first else f"{place}: {first}")
        elif failed and needed:
            fix = f"{first} is there: take releases of it and its libraries that fit"
            problems.append({"message": f"{place}: import {name}: {failed}", "fix": fix})
        elif needed:
            loaded[name] = place
    if lacks[True]:
        message = f"the image lacks what the program imports: {_listed(lacks[True])}"
        fix = f"add the packages that bring {', '.join(lacks[True])} to the requirements"
        problems.insert(0, {"message": message, "fix": fix})
    seen: dict[str, object] = {"modules": sorted(loaded)}
    if lacks[False]:
        later = f"lacks what functions, conditions or `try` import: {_listed(lacks[False])}"
        seen["note"] = later
    return {"problems": problems, "seen": seen}


def _listed(places: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({place})" for name, place in places.items())


def main() -> None:
    request = json.loads(sys.argv[1])
    folder, module = Path(request["folder"]), request["module"]
    sys.path.insert(0, str(folder))
    print(json.dumps(examine(folder, module, request["proven_elsewhere"])))


if __name__ == "__main__":
    main()
