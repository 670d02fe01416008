"""A check has one version in every suite, and a higher one where its code asks for more."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.facts import frameworks
from builder.prove import checks, suites
from builder.prove.checks import compile, gpu, loader
from builder.prove.suite import Check, Suite

QUESTIONS = re.compile(
    r"builder\.(prove\.(checks|judge|own_loader|probes|waste)|frameworks\.(cudnn|hlo|hook|libraries|on_gpu|parts|pjrt|written|\w+\.(probes|opened)))\b"
)
"""The modules that hold questions. What reads an image, runs it or knows releases asks none."""

TABLE = {
    "device-code": (3, "36e6416f8c"),
    "combinations": (1, "5f7aa1976c"),
    "environment": (6, "95725fada5"),
    "machine": (5, "cc1b0013d8"),
    "driver": (1, "c6eb6cbb29"),
    "permissions": (3, "61da8e64d0"),
    "shadows": (1, "66183bdfc4"),
    "loader": (5, "98c7472afc"),
    "installed": (2, "59d27ae242"),
    "certificates": (2, "cdd939e4ac"),
    "entry-point": (3, "77130a5527"),
    "secrets": (1, "088098f1f6"),
    "pth": (1, "1750d80355"),
    "start": (2, "c860cf755d"),
    "compile": (5, "b9b724d6ac"),
    "gpu": (1, "6f0e060fed"),
    "size": (1, "04088ca6d7"),
    "tensorflow loader": (3, "4b3af61412"),
    "contents": (7, "742119e76e"),
    "training": (3, "d70d115250"),
    "tensorflow outputs": (1, "6d0595920e"),
    "stopping": (1, "8b4066b8d0"),
    "imports": (2, "52451ae2fa"),
    "starts": (3, "0490c17c01"),
    "torch loader": (2, "0a44de6fb6"),
    "torch compiler": (1, "7f1f995530"),
    "torch outputs": (1, "83018841bf"),
    "jax loader": (3, "d521ee45b8"),
    "jax outputs": (1, "3210cee5cf"),
}
"""Check -> its version, and the hash of its code. A framework's own checks have its name before
theirs."""


def every() -> Iterator[tuple[str, Suite]]:
    """Yield each suite, with the name of its framework."""
    yield "", suites.ON_GPU
    for name in frameworks.OWN:
        yield from ((name, suite) for suite in frameworks.of(name).suites().values())


def asked() -> dict[str, set[Check]]:
    """The checks of all suites. The loader of an image that anybody made is another than ours."""
    found: dict[str, set[Check]] = {}
    for framework, suite in every():
        for check in suite.checks:
            own = framework and check.name in ("loader", "compiler", "outputs")
            found.setdefault(f"{framework} {check.name}" if own else check.name, set()).add(check)
    return found


def code_of(name: str, check: Check) -> str:
    """Return the hash of the modules that hold a check's questions: its own, the probe of its name,
    those that these import, and the tables beside them."""
    framework, _, probe = name.rpartition(" ")
    roots = [function.__module__ for function in (check.rule, check.run) if function]
    roots += [f"builder.frameworks.{framework}.probes.{probe}", f"builder.prove.probes.{probe}"]
    if check is loader.CHECK:
        roots += [f"builder.frameworks.{each}.opened" for each in frameworks.OWN]
    if check in (compile.CHECK, gpu.CHECK):
        roots += [f"builder.frameworks.{each}.probes.{check.name}" for each in frameworks.OWN]
    found: dict[str, str] = {}
    waiting = [module for module in roots if QUESTIONS.match(module)]
    while waiting:
        module = waiting.pop()
        path = path_of(module)
        if module in found or path is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[module] = bare(path.read_text(encoding="utf-8"), tree)
        for table in re.findall(r'"([\w-]+\.yaml)"', found[module]):
            found[table] = (path.parent / table).read_text(encoding="utf-8")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{each.name}" for each in node.names]
                waiting += filter(QUESTIONS.match, (f"{node.module}", *names))
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:10]


def path_of(module: str) -> Path | None:
    """Return the file of a module; None where there is none, or where it only holds others."""
    path = Path(checks.__path__[0]).parents[2] / f"{module.replace('.', '/')}.py"
    return path if path.is_file() else None


def bare(text: str, tree: ast.Module) -> str:
    """Return the code of a module without space, comments, docstrings, imports and the check."""
    lines = [re.sub(r"(^|  )#.*", "", line) for line in text.splitlines()]
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_check = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECK"
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if (is_text or is_check or is_import) and node.end_lineno:
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = ""
    return "".join(lines).replace(" ", "")


def test_a_check_has_one_version_in_every_suite() -> None:
    for name, found in asked().items():
        assert len({check.version for check in found}) == 1, name
        rules = {check.rule for check in found}
        assert len(rules) == 1, f"{name} is two questions"
    rules = [(check.rule, name) for name, found in asked().items() for check in found]
    by_rule = {rule: {other for same, other in rules if same is rule} for rule, _ in rules if rule}
    assert all(len(names) == 1 for names in by_rule.values()), by_rule


@pytest.mark.parametrize("name", asked())
def test_a_check_that_asks_for_more_has_a_higher_version(name: str) -> None:
    check = next(iter(asked()[name]))
    now = (check.version, code_of(name, check))
    assert now == TABLE.get(name), (
        f"the code of {name} is new or has changed. If it asks for more, raise its version: every "
        f"image is proven again. Then write into TABLE: {name!r}: {now}"
    )


def test_the_table_has_no_check_that_nobody_asks() -> None:
    assert TABLE.keys() == asked().keys()
