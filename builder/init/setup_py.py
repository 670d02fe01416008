"""What setup.py says of a repository's requirements, as far as it stands there as text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from builder.init import installers
from builder.init.manifests import ADD, BUILDS
from builder.init.statements import SourceStatement

_COMPILES: Final = "compiles a module, and an image has no compiler: make a wheel of the repository"
_OTHER: Final = {
    "ext_modules": _COMPILES,
    "rust_extensions": _COMPILES,
    "cffi_modules": _COMPILES,
    "cmdclass": f"may run code of its own where it is installed: {ADD}",
    "setup_requires": BUILDS,
    "tests_require": f"belongs to its tests: {ADD}",
    "dependency_links": "names other addresses than PyPI's, which pip does not read",
}
"""Arguments of `setup` that no field takes, and why."""
_MANY: Final = ("append", "extend", "insert")


def read(text: str, file: str, groups: frozenset[str] = frozenset()) -> Iterator[SourceStatement]:
    """Yield the requirements that setup.py lists by themselves, of its extras those of `groups`; it
    is read, and never run."""
    try:
        yield from list(_said(ast.parse(text), file, groups))
    except (SyntaxError, ValueError, RecursionError):
        yield SourceStatement(file, "the file", why=f"is no Python that can be read: {ADD}")


def _said(tree: ast.Module, file: str, groups: frozenset[str]) -> Iterator[SourceStatement]:
    names = _Names.of(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for keyword in (each for call in calls for each in call.keywords):
        where, value = f"{file}:{keyword.value.lineno}", keyword.value
        if keyword.arg in _OTHER:
            yield SourceStatement(where, keyword.arg, why=_OTHER[keyword.arg], beside=True)
        elif keyword.arg == "python_requires":
            entry = names.text(value)
            kept = SourceStatement(where, entry or "", "python", (entry or "",))
            yield kept if entry else _computed(value, where, keyword.arg)
        elif keyword.arg == "install_requires":
            yield from _listed(names, value, file, keyword.arg)
        elif keyword.arg == "extras_require":
            for name, inner in names.pairs(value):
                for said in _listed(names, inner, file, keyword.arg):
                    installed = name and groups & {name, "*"}
                    yield said if installed else said.aside(f"belongs to an extra: {ADD}")


def _listed(names: _Names, value: ast.expr, file: str, argument: str) -> Iterator[SourceStatement]:
    """Yield the requirements of a list. What is computed is named: a text inside of it may be a
    file, a variable or a default, and PyPI may have a package that is called so."""
    for node in names.elements(value):
        where, entry = f"{file}:{node.lineno}", names.text(node)
        yield installers.argument(entry, where) if entry else _computed(node, where, argument)


def _computed(node: ast.expr, where: str, argument: str) -> SourceStatement:
    what = textwrap.shorten(ast.unparse(node), 60, placeholder="...")
    return SourceStatement(where, f"{argument} is computed ({what})", why=ADD)


@dataclass(frozen=True)
class _Names:
    """What the names at the top of a module stand for."""

    values: Mapping[str, ast.expr]
    more: Mapping[str, list[ast.expr]]
    """What lines below add to a list."""
    keys: Mapping[str, list[tuple[str, ast.expr]]]
    """What lines below add to a mapping."""

    @classmethod
    def of(cls, tree: ast.Module) -> _Names:
        values, more = dict[str, ast.expr](), dict[str, list[ast.expr]]()
        keys = dict[str, list[tuple[str, ast.expr]]]()
        for node in ast.walk(tree):
            match node:
                case ast.Assign([ast.Name(name)], value) if node in tree.body:
                    values[name] = value
                case ast.Assign([ast.Subscript(ast.Name(name), ast.Constant(str(key)))], value):
                    keys.setdefault(name, []).append((key, value))
                case ast.AugAssign(ast.Name(name), _, value):
                    more.setdefault(name, []).append(_sure(node, value, tree))
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), how), [*_, value])):
                    if how in _MANY:
                        more.setdefault(name, []).append(_sure(node, value, tree))
                case _:
                    pass
        return cls(values, more, keys)

    def text(self, node: ast.expr) -> str | None:
        """Return the text that an expression stands for; None for one that is computed."""
        match node:
            case ast.Constant(str(text)):
                return text
            case ast.Name(name) if isinstance(self.values.get(name), ast.Constant):
                return self.text(self.values[name])
            case ast.FormattedValue(inner, -1, None):
                return self.text(inner)
            case ast.JoinedStr(parts):
                texts = [self.text(part) for part in parts]
                return None if None in texts else "".join(map(str, texts))
            case ast.BinOp(left, ast.Add(), right):
                texts = [self.text(left), self.text(right)]
                return None if None in texts else "".join(map(str, texts))
        return None

    def elements(self, node: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
        """Yield the elements of a list, through names and sums; an expression that is no list."""
        match node:
            case ast.List(parts) | ast.Tuple(parts):
                for part in parts:
                    inside = isinstance(part, ast.Starred)
                    yield from self.elements(part, depth) if inside else (part,)
            case ast.Starred(inner) | ast.Call(ast.Name("list" | "sorted" | "tuple"), [inner], []):
                yield from self.elements(inner, depth)
            case ast.BinOp(left, ast.Add(), right) if self.text(node) is None:
                yield from self.elements(left, depth)
                yield from self.elements(right, depth)
            case ast.Name(name) if name in self.values and depth < len(self.values):
                yield from self.elements(self.values[name], depth + 1)
                for added in self.more.get(name, ()):
                    yield from self.elements(added, depth + 1)
            case _:
                yield node

    def pairs(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        """Yield the keys of a mapping with their values; "" for what is computed."""
        match node:
            case ast.Dict(keys, values):
                for key, value in zip(keys, values, strict=True):
                    yield (key and self.text(key)) or "", value
            case ast.Call(ast.Name("dict"), [], keywords):
                for keyword in keywords:
                    yield keyword.arg or "", keyword.value
            case ast.Name(name) if isinstance(self.values.get(name), ast.Dict | ast.Call):
                yield from self.pairs(self.values[name])
                yield from self.keys.get(name, ())
            case _:
                yield "", node


def _sure(node: ast.stmt, value: ast.expr, tree: ast.Module) -> ast.expr:
    """Return what a line adds to a list; as computed, where a condition stands above it."""
    if node in tree.body:
        return value
    return ast.copy_location(ast.IfExp(ast.Constant(...), value, ast.Constant(...)), value)
