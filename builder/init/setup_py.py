"""What setup.py says of a repository's requirements, as far as it stands there as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from builder.init import installers
from builder.init.manifests import ADD
from builder.init.statements import SourceStatement


def read(text: str, file: str, groups: frozenset[str] = frozenset()) -> Iterator[SourceStatement]:
    """Yield the requirements that setup.py lists by themselves, of its extras those of `groups`; it
    is read, and never run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        yield SourceStatement(file, "the file", why=f"is no Python that can be read: {ADD}")
        return
    literals = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    asked = [
        keyword
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in {"install_requires", "extras_require", "python_requires"}
    ]
    for keyword in asked:
        value: ast.expr = keyword.value
        if isinstance(value, ast.Name):
            value = literals.get(value.id, value)
        extra = keyword.arg == "extras_require"
        texts = [node for node in ast.walk(value) if isinstance(node, ast.Constant)]
        dicts = [node for node in ast.walk(value) if isinstance(node, ast.Dict)]
        keys = {id(key) for each in dicts for key in each.keys}
        installed = {
            id(node)
            for each in dicts
            for key, inner in zip(each.keys, each.values, strict=True)
            if isinstance(key, ast.Constant) and groups & {key.value, "*"}
            for node in ast.walk(inner)
        }
        if not isinstance(value, ast.List | ast.Tuple | ast.Dict | ast.Constant):
            what = f"{keyword.arg} is computed"
            yield SourceStatement(f"{file}:{keyword.value.lineno}", what, why=ADD)
            continue
        for node in texts:
            if id(node) in keys or not isinstance(node.value, str):
                continue
            where, entry = f"{file}:{node.lineno}", node.value
            if keyword.arg == "python_requires":
                yield SourceStatement(where, entry, "python", (entry,))
                continue
            said = installers.argument(entry, where)
            left = extra and id(node) not in installed
            yield said.aside(f"belongs to an extra: {ADD}") if left else said
