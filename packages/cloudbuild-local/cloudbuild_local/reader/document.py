"""A build file (cloudbuild.yaml or .json) as a value that knows the line of each of its parts.

As in Cloud Build, a name may be in camelCase or in snake_case, an unknown name is an error, and no
value is converted: a number in the place of text is an error, too. YAML is read as version 1.1, as
gcloud and the service read it: `yes` is a boolean and `010` the number 8.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader import schema
from cloudbuild_local.reader.build import Build, build_of, camel
from cloudbuild_local.reader.finding import API, Finding, Level, Place, dotted, suggestion
from cloudbuild_local.reader.schema import Schema

MAX_VALUES = 100_000
"""Values in a file with each alias written out: a few lines of aliases can stand for billions."""

_DURATION = re.compile(r"\d+(\.\d{1,9})?s", re.ASCII)
_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_GO_PART = re.compile(r"(\d{1,9}(?:\.\d*)?)(h|ms|m|s|us|ns)", re.ASCII)
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class BuildFile:
    """A file that was read."""

    path: Path
    value: Mapping[str, Any]
    """Its content under the API's names, without the parts that are not what a build has there;
    durations are in seconds."""
    lines: Mapping[Place, int]
    """The line of each value."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with names and types."""
    trigger: bool = False
    """Whether the file was read as for a trigger."""

    def line(self, place: Place) -> int:
        """Return the line (from 1) of a value, or of the deepest part of its place that exists."""
        parts = (place[:length] for length in range(len(place), -1, -1))
        return next((self.lines[part] for part in parts if part in self.lines), 1)

    @functools.cached_property
    def build(self) -> Build:
        """The build that the file describes."""
        return build_of(self.value)


def read(path: Path, trigger: bool = False) -> BuildFile:
    """Read a file. trigger: read it as Cloud Build reads the file of a trigger.

    Raises InputError for a file that cannot be read at all: missing, not text, not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "name a cloudbuild.yaml or .json") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise InputError(f"{path}: cannot be read: {reason}", "name a text file") from None
    return parse(text, path, trigger)


def parse(text: str, path: Path, trigger: bool = False) -> BuildFile:
    """Read the text of a file. path: its name in errors.

    Raises InputError for text that is not YAML.
    """
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # JSON is YAML, but it may be indented with tabs
    reader = _Reader(trigger)
    value: Any = {}
    try:
        root = _compose(text, path)
        if root is not None:
            value = reader.value(root, {"$ref": "#/definitions/Build"}, ()) or {}
    except (_TooLargeError, RecursionError):
        what = f"{path}: more than {MAX_VALUES:,} values, or nested too deeply"
        raise InputError(what, "write less into the file") from None
    findings = sorted(reader.findings, key=lambda finding: finding.line)
    return BuildFile(path, value, reader.lines, tuple(findings), trigger)


class _Loader(yaml.SafeLoader):
    """A loader that takes an anchor that stands twice, as YAML and gcloud do."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(event, yaml.AliasEvent) and getattr(event, "anchor", None):
            self.anchors.pop(event.anchor, None)
        return super().compose_node(parent, index)


def _compose(text: str, path: Path) -> Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        what = f"{path}:{mark.line + 1 if mark else 1}: not YAML: {problem}"
        raise InputError(what, "check quotes, colons and indentation (spaces, no tabs)") from None


class _TooLargeError(Exception):
    """The file has more than MAX_VALUES values."""


class _Reader:
    """Turns nodes into values of a type; collects their lines, and a finding for each wrong one."""

    def __init__(self, trigger: bool) -> None:
        self.trigger = trigger
        self.lines: dict[Place, int] = {}
        self.findings: list[Finding] = []
        self.count = 0

    def bad(self, node: Node, place: Place, what: str, fix: str, level: Level = "error") -> None:
        self.findings.append(Finding(_line(node), dotted(place), what, fix, level, API))

    def value(self, node: Node, kind: Schema, place: Place) -> Any:
        """Return the value of a node; None, with a finding, for a node of another type."""
        self.lines.setdefault(place, _line(node))
        self._count()
        if schema.name_of(kind) or "additionalProperties" in kind:
            return self._mapping(node, kind, place)
        if kind.get("type") == "array":
            return self._list(node, kind["items"], place)
        if "enum" in kind:
            return self._one_of(node, kind["enum"], place)
        return self._scalar(node, kind.get("format") or kind["type"], place)

    def _count(self) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _TooLargeError

    def _mapping(self, node: Node, kind: Schema, place: Place) -> Any:
        """Return a message, which has certain fields, or a map of any names to one type."""
        message = schema.name_of(kind)
        every: Schema = kind.get("additionalProperties", {})
        fields: Schema = schema.message(message)["properties"] if message else {}
        if not isinstance(node, MappingNode):
            fix = f"write `name: value` lines; fields: {', '.join(fields) or 'any'}"
            return self.bad(node, place, f"must be a mapping, found {_shown(node)}", fix)
        result: dict[str, Any] = {}
        for written, key, item in self._pairs(node, place):
            name = camel(written) if message and written not in fields else written
            if message and name not in fields:
                self._unknown(key, written, message, place)
                continue
            if name in result:
                self.bad(key, (*place, name), "appears twice", "keep one")
            self.lines[(*place, name)] = _line(key)
            value = None
            if not _is(item, "null"):
                value = self.value(item, fields.get(name, every), (*place, name))
            elif every == {"type": "string"}:
                value = ""  # `_NAME:`, which the call sets
            if value is not None:
                result[name] = value
        return result

    def _unknown(self, key: Node, written: str, name: str, place: Place) -> None:
        field, known = camel(written), schema.message(name)["properties"]
        fix = f"remove it; {name} has {', '.join(known)}"
        for other, owner in (("BuildStep", "a step"), ("BuildOptions", "options")):
            if field in schema.message(other)["properties"]:
                fix = f"move it: it is a field of {owner}"
        what = f"unknown field of {name}"
        self.bad(key, (*place, written), what, suggestion(field, known, fix))

    def _pairs(self, node: MappingNode, place: Place) -> Iterator[tuple[str, Node, Node]]:
        """Yield name, key and value of each entry, with those that `<<` merges in."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key, item in node.value:
            if _is(key, "merge"):
                merged += item.value if isinstance(item, SequenceNode) else [item]
            elif not isinstance(key, ScalarNode):
                self.bad(key, place, "a name must be text", "write `name: value`")
            elif key.value in own:
                first = _line(own[key.value][0])
                what = f"appears twice, first in line {first}"
                self.bad(key, (*place, key.value), what, "keep one")
            else:
                own[str(key.value)] = (key, item)
        for other in merged:
            self._count()
            if isinstance(other, MappingNode):
                for name, key, item in self._pairs(other, place):
                    own.setdefault(name, (key, item))
            else:
                self.bad(other, place, "`<<` takes a mapping", "name the anchor of a mapping")
        for name, (key, item) in own.items():
            yield name, key, item

    def _list(self, node: Node, kind: Schema, place: Place) -> Any:
        if not isinstance(node, SequenceNode):
            # gcloud's library, apitools, takes a single value as a list of one
            value = self.value(node, kind, place)
            if value is None:
                return None
            what = "is a list: gcloud takes one value, a trigger does not"
            self.bad(node, place, what, "write [...]", "warning")
            return [value]
        values = [self.value(item, kind, (*place, n)) for n, item in enumerate(node.value)]
        if schema.name_of(kind):  # an empty message for a wrong one, so that the indices hold
            return [{} if value is None else value for value in values]
        return [value for value in values if value is not None]

    def _one_of(self, node: Node, names: list[str], place: Place) -> Any:
        if _is(node, "str") and node.value in names:
            return str(node.value)
        fix = suggestion(str(node.value).upper(), names, f"write one of {', '.join(names)}")
        return self.bad(node, place, f"{_shown(node)} is not one of its values", fix)

    def _scalar(self, node: Node, kind: str, place: Place) -> Any:
        if not isinstance(node, ScalarNode):
            return self.bad(node, place, *_expected(node, kind))
        text, is_text = str(node.value), _is(node, "str")
        match kind:
            case "string" | "byte" if is_text:
                return text
            case "boolean" if _is(node, "bool"):
                return text.lower() in ("true", "yes", "on")
            case "integer" if _INTEGER.fullmatch(text):  # the API takes "100", too
                return int(text)
            case "duration" if is_text and _DURATION.fullmatch(text):
                return float(text.removesuffix("s"))
            case "duration" if is_text and _GO_DURATION.fullmatch(text):
                # Documented as an error. Google's own repositories run such files by triggers:
                # GoogleCloudPlatform/accelerated-platforms has 33 with `timeout: 90m`.
                level: Level = "warning" if self.trigger else "error"
                self.bad(node, place, *_expected(node, kind), level)
                return _go_seconds(text)
        return self.bad(node, place, *_expected(node, kind))


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _is(node: Node, tag: str) -> bool:
    return str(node.tag) == f"tag:yaml.org,2002:{tag}"


def _go_seconds(duration: str) -> float:
    """Return the seconds of a duration as Go writes it: `1h30m` -> 5400.0."""
    return sum(float(count) * _GO_UNITS[unit] for count, unit in _GO_PART.findall(duration))


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return "nothing" if _is(node, "null") else repr(node.value)
    return "a mapping" if isinstance(node, MappingNode) else "a list"


_KINDS = {
    "string": "text",
    "byte": "text in base64",
    "boolean": "true or false",
    "integer": "a whole number",
    "duration": "a duration like 600s",
}


def _expected(node: Node, kind: str) -> tuple[str, str]:
    """Return what is wrong with a value that should be of this kind, and what to write."""
    written_value = _shown(node)
    if not isinstance(node, ScalarNode) or written_value == "nothing":
        return f"must be {_KINDS[kind]}, found {written_value}", f"write {_KINDS[kind]} here"
    if kind in ("string", "byte"):
        tag = str(node.tag).rpartition(":")[2]
        words = {"int": "a number", "float": "a number", "bool": "true or false"}
        what = f"must be text, and YAML reads {node.value} as {words.get(tag, f'a {tag}')}"
        return what, f'write "{node.value}"'
    if kind == "duration":
        text = str(node.value)
        seconds = text if text.isdigit() else "600"
        if _GO_DURATION.fullmatch(text):
            seconds = f"{_go_seconds(text):g}"
        return f"{written_value} is not a duration: write seconds, with an s", f"write {seconds}s"
    return f"must be {_KINDS[kind]}, found {written_value}", f"write {_KINDS[kind]}, without quotes"
