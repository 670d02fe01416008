"""YAML nodes to values: each value with its line, and a problem for each value of a wrong type."""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild.reader.fields import (
    TEXT,
    ListOf,
    MapOf,
    Message,
    OneOf,
    Scalar,
    Type,
    named,
)
from builder.core.errors import InputError
from builder.core.yamlfile import Mistake, check_bounds

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node

_BASE64 = re.compile(r"(?:[\w+/-]{4})*(?:[\w+/-]{2,3}={0,2})?", re.ASCII)
"""Base64 as protobuf's JSON has it: of either alphabet, with or without `=` at its end."""
_DURATION = re.compile(r"(\d+)(\.\d{1,9})?s", re.ASCII)
_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_GO_PART = re.compile(r"(\d{1,9}(?:\.\d*)?)(h|ms|m|s|us|ns)", re.ASCII)
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+", re.ASCII)
_INT64 = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?[0-9]{1,300}(\.[0-9]{0,300})?(e[-+]?[0-9]{1,3})?", re.IGNORECASE)
_TAG = "tag:yaml.org,2002:"


def check_json(text: str, path: Path) -> None:
    """Raises InputError with the line of what is not JSON."""
    check_bounds(text.replace("\t", " "), str(path))  # JSON is YAML, but for tabs
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON: {error.msg.lower()}",
            "check commas, quotes and brackets there, or write it as YAML",
        ) from None


def compose(text: str, path: Path) -> Node | None:
    """The file as nodes with their places. None for an empty file. Raises InputError.

    It is read as YAML 1.1, as gcloud and the service do: `yes` is a boolean and `010` the number 8.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    check_bounds(text, str(path))
    loader = YAML(typ="safe", pure=True)
    loader.version = (1, 1)
    try:
        with warnings.catch_warnings():  # of an anchor that stands twice, which is YAML
            warnings.simplefilter("ignore")
            return loader.compose(text)  # type: ignore[no-any-return]
    except YAMLError as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML: {problem}",
            "check quotes, indentation (spaces, no tabs) and the colons there",
        ) from None


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def dotted(path: tuple[str | int, ...]) -> str:
    """("steps", 0, "args") -> steps[0].args"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


class NodeReader:
    """Turns nodes into values of a type, and collects lines, problems and notes."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.problems: list[Mistake] = []
        self.notes: list[Mistake] = []
        self.of_triggers: list[Mistake] = []
        self.above: list[Node] = []

    def bad(self, node: Node, path: tuple[str | int, ...], what: str, fix: str) -> None:
        self.problems.append(Mistake(node.start_mark.line + 1, dotted(path), what, fix))

    def value(self, node: Node, kind: Type, path: tuple[str | int, ...]) -> Any:
        """The value of a node. None, and a problem, where the node is not of the type."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if any(node is other for other in self.above):
            return self.bad(node, path, "contains itself", "write the value out")
        self.above.append(node)
        try:
            match kind:
                case Message():
                    return self._message(node, kind, path)
                case MapOf(item):
                    return self._map(node, item, path)
                case ListOf(item):
                    return self._list(node, item, path)
                case OneOf(names):
                    return self._one_of(node, names, path)
                case Scalar():
                    return self._scalar(node, kind.kind, path)
        finally:
            self.above.pop()

    def _message(self, node: Node, kind: Message, path: tuple[str | int, ...]) -> Any:
        from ruamel.yaml.nodes import MappingNode

        if not isinstance(node, MappingNode):
            what = "the file" if not path else "this"
            return self.bad(
                node,
                path,
                f"{what} must be a mapping, found {_found(node)}",
                f"write it as `name: value` lines; fields: {', '.join(kind.fields)}",
            )
        result = {}
        for name, key, item in self._pairs(node, path):
            known = name if name in kind.fields else _camel(name)
            if known not in kind.fields:
                self._unknown(key, name, kind, path)
                continue
            if known in result:
                self.bad(key, (*path, known), "appears twice", "keep one")
            self.lines[(*path, known)] = key.start_mark.line + 1
            if item.tag != _TAG + "null":
                value = self.value(item, kind.fields[known], (*path, known))
                if value is not None:
                    result[known] = value
        return result

    def _unknown(self, key: Node, name: str, kind: Message, path: tuple[str | int, ...]) -> None:
        near = difflib.get_close_matches(_camel(name), kind.fields, n=1)
        fix = f"write {near[0]}" if near else f"remove it; {kind.name} has {', '.join(kind.fields)}"
        elsewhere = [
            place
            for place, message in (("a step", "BuildStep"), ("options", "BuildOptions"))
            if message != kind.name and _camel(name) in named(message).fields
        ]
        if elsewhere and not near:
            fix = f"move it: it is a field of {elsewhere[0]}"
        self.bad(key, (*path, name), f"unknown field of {kind.name}", fix)

    def _pairs(
        self, node: MappingNode, path: tuple[str | int, ...]
    ) -> Iterator[tuple[str, Node, Node]]:
        """Name, key and value of each entry, with those that `<<` merges in."""
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        own: dict[str, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key, item in node.value:
            if key.tag == _TAG + "merge":
                merged += item.value if isinstance(item, SequenceNode) else [item]
            elif not isinstance(key, ScalarNode):
                self.bad(key, path, "a name must be text", "write `name: value`")
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                self.bad(
                    key, (*path, key.value), f"appears twice, first in line {first}", "keep one"
                )
            else:
                own[str(key.value)] = (key, item)
        for other in merged:
            if other is node or any(other is one for one in self.above[:-1]):
                self.bad(other, path, "contains itself", "write the value out")
            elif isinstance(other, MappingNode):
                self.above.append(other)
                for name, key, item in self._pairs(other, path):
                    own.setdefault(name, (key, item))
                self.above.pop()
            else:
                self.bad(other, path, "`<<` takes a mapping", "name the anchor of a mapping")
        for name, (key, item) in own.items():
            yield name, key, item

    def _map(self, node: Node, item: Type, path: tuple[str | int, ...]) -> Any:
        from ruamel.yaml.nodes import MappingNode

        if not isinstance(node, MappingNode):
            return self.bad(
                node, path, f"must be a mapping, found {_found(node)}", "write KEY: value lines"
            )
        result = {}
        for name, key, inner in self._pairs(node, path):
            self.lines[(*path, name)] = key.start_mark.line + 1
            if inner.tag == _TAG + "null" and item == TEXT:
                result[name] = ""  # `_NAME:`, to be set by the call
                continue
            value = self.value(inner, item, (*path, name))
            if value is not None:
                result[name] = value
        return result

    def _list(self, node: Node, item: Type, path: tuple[str | int, ...]) -> Any:
        from ruamel.yaml.nodes import SequenceNode

        if not isinstance(node, SequenceNode):
            # gcloud's library, apitools, takes a single value as a list of one
            self.above.pop()
            found = self.value(node, item, path)
            self.above.append(node)
            if found is not None:
                what, fix = "is a list: gcloud takes one value, a trigger does not", "write [...]"
                self.notes.append(Mistake(node.start_mark.line + 1, dotted(path), what, fix))
            return None if found is None else [found]
        values = [self.value(inner, item, (*path, n)) for n, inner in enumerate(node.value)]
        if isinstance(item, Message):  # keep an empty message for a wrong one: indices hold
            return [{} if value is None else value for value in values]
        return [value for value in values if value is not None]

    def _one_of(self, node: Node, names: tuple[str, ...], path: tuple[str | int, ...]) -> Any:
        if _is_text(node) and node.value in names:
            return str(node.value)
        near = difflib.get_close_matches(str(node.value).upper(), names, n=1, cutoff=0.5)
        fix = f"write {near[0]}" if near else f"one of {', '.join(names)}"
        return self.bad(node, path, f"{_found(node)} is not one of its values", fix)

    def _scalar(self, node: Node, kind: str, path: tuple[str | int, ...]) -> Any:
        from ruamel.yaml.nodes import ScalarNode

        if isinstance(node, ScalarNode):
            text = str(node.value)
            match kind:
                case "string" if _is_text(node):
                    return text
                case "bytes" if _is_text(node) and _BASE64.fullmatch(re.sub(r"\s", "", text)):
                    return re.sub(r"\s", "", text)
                case "bool" if node.tag == _TAG + "bool":
                    return text.lower() in ("true", "yes", "on", "y")
                case "int" if _INT64.fullmatch(text):  # the API takes "100", too
                    return int(text)
                case "float" if _FLOAT.fullmatch(text) and not _is_text(node):
                    return float(text)
                case "duration" if _is_text(node) and _DURATION.fullmatch(text):
                    return text
                case "duration" if _is_text(node) and _GO_DURATION.fullmatch(text):
                    what, fix = _expected(node, kind)
                    line = node.start_mark.line + 1
                    self.of_triggers.append(Mistake(line, dotted(path), what, fix))
                    return f"{_go_seconds(text):g}s"
        return self.bad(node, path, *_expected(node, kind))


def _go_seconds(duration: str) -> float:
    """`1h30m` -> 5400.0: a duration as Go's time.ParseDuration reads it."""
    return sum(float(count) * _GO_UNITS[unit] for count, unit in _GO_PART.findall(duration))


def _is_text(node: Node) -> bool:
    return str(node.tag) == _TAG + "str"


def _found(node: Node) -> str:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return repr(node.value) if node.tag != _TAG + "null" else "nothing"


def _expected(node: Node, kind: str) -> tuple[str, str]:
    """What is wrong with a value that should be of this kind, and what to write."""
    from ruamel.yaml.nodes import ScalarNode

    found = _found(node)
    if not isinstance(node, ScalarNode) or found == "nothing":
        return f"must be {_KINDS[kind]}, found {found}", f"write {_KINDS[kind]} here"
    if kind == "bytes" and _is_text(node):  # it may be a secret: not shown
        return "is no base64", "write what gcloud kms encrypt made of it, through base64 -w 0"
    if kind in ("string", "bytes"):
        tag = str(node.tag).rpartition(":")[2]
        what = {"int": "a number", "float": "a number", "bool": "true or false"}.get(
            tag, f"a {tag}"
        )
        return f"must be text, and YAML reads {node.value} as {what}", f'write "{node.value}"'
    if kind == "duration":
        text = str(node.value)
        seconds = text if text.isdigit() else "600"
        if _GO_DURATION.fullmatch(text):
            seconds = f"{_go_seconds(text):g}"
        fix = f"write {seconds}s"
        return f"{found} is not a duration: write seconds, with an s", fix
    return f"must be {_KINDS[kind]}, found {found}", f"write {_KINDS[kind]}, without quotes"


_KINDS = {
    "string": "text",
    "bytes": "text in base64",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "duration": "a duration like 600s",
}
