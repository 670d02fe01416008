"""A Cloud Build configuration file (cloudbuild.yaml or .json) as a frozen value.

Field names and types are those of the API's own message, `google.devtools.cloudbuild.v1.Build`, as
the installed client knows it, and a few fields that the API has and the client does not yet
(`NEWER`). As in the hosted service, a name may stand in camelCase or in snake_case, an unknown name
is an error, and nothing is converted: a number where text belongs is an error, too.

Every value knows its line, so that whatever is found wrong later can name it.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.core.errors import InputError
from builder.core.yamlfile import Problem

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build as ProtoBuild
    from ruamel.yaml.nodes import MappingNode, Node

DEFAULT_TIMEOUT = 3600.0
"""Seconds that a build may take where it says nothing (API reference, Build.timeout)."""

_DURATION = re.compile(r"(\d+)(\.\d{1,9})?s")
_TAG = "tag:yaml.org,2002:"


# --- what the file says ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Volume:
    """A volume that lives as long as the build."""

    name: str
    path: str


@dataclass(frozen=True)
class Step:
    """One step. `index` from 0, `timeout` in seconds.

    wait_for: ids; None starts after every step before it, ("-",) at once.
    automap_substitutions: None leaves it to the build's options.
    """

    index: int
    name: str = ""
    id: str = ""
    args: tuple[str, ...] = ()
    entrypoint: str = ""
    script: str = ""
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    dir: str = ""
    wait_for: tuple[str, ...] | None = None
    timeout: float | None = None
    volumes: tuple[Volume, ...] = ()
    allow_failure: bool = False
    allow_exit_codes: tuple[int, ...] = ()
    automap_substitutions: bool | None = None

    @property
    def label(self) -> str:
        """As the hosted log names it: `Step #0`, `Step #1 - "test"`."""
        return f'Step #{self.index} - "{self.id}"' if self.id else f"Step #{self.index}"


@dataclass(frozen=True)
class Options:
    """The build's options that change what runs; the others lie in `Document.value`."""

    substitution_option: Literal["MUST_MATCH", "ALLOW_LOOSE"] = "MUST_MATCH"
    dynamic_substitutions: bool = False
    automap_substitutions: bool = False
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    logging: str = ""
    machine_type: str = ""
    disk_size_gb: int = 0


@dataclass(frozen=True)
class Objects:
    """Files of the workspace that go to Cloud Storage: globs, and gs://BUCKET[/FOLDER]."""

    location: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """A build as it is carried out. Times in seconds.

    images: `images` and `artifacts.images`, without repetition.
    other_artifacts: the kinds of packages it uploads besides (mavenArtifacts, npmPackages ...).
    secrets: environment variable -> the Secret Manager version or the KMS key that it comes from.
    """

    steps: tuple[Step, ...] = ()
    images: tuple[str, ...] = ()
    objects: Objects | None = None
    other_artifacts: tuple[str, ...] = ()
    substitutions: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT
    queue_ttl: float | None = None
    options: Options = field(default_factory=Options)
    secrets: Mapping[str, str] = field(default_factory=dict)
    logs_bucket: str = ""
    service_account: str = ""


@dataclass(frozen=True)
class Document:
    """A file that was read.

    value: its content under the API's names. Text where the API has text (durations, too).
    problems: what is no Build, in the order of the file; those parts are missing in `value`.
    """

    path: Path
    value: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    problems: tuple[Problem, ...] = ()
    newer: tuple[str, ...] = ()
    """Fields that the installed client does not know: `to_proto` leaves them out."""
    notes: tuple[Problem, ...] = ()
    """What gcloud reads and a trigger refuses."""

    def line(self, *path: str | int) -> int:
        """The line (from 1) of the value at `path`, or of the deepest part of it that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def where(self, *path: str | int) -> str:
        """FILE:LINE of the value at `path`."""
        return f"{self.path}:{self.line(*path)}"

    @functools.cached_property
    def build(self) -> Build:
        """The build that the file describes."""
        return _build(self.value)

    def to_proto(self) -> ProtoBuild:
        """The API's message, for google-cloud-build. See `newer` for what it cannot hold."""
        from google.cloud.devtools import cloudbuild_v1
        from google.protobuf import json_format  # type: ignore[import-untyped]

        message = cloudbuild_v1.Build.pb(cloudbuild_v1.Build())
        json_format.ParseDict(dict(self.value), message, ignore_unknown_fields=True)
        return cloudbuild_v1.Build.wrap(message)  # type: ignore[no-any-return]


def load(path: Path) -> Document:
    """Read a file that must be a Build. Raises InputError naming the line of what is not."""
    document = read(path)
    if document.problems:
        first, *others = document.problems
        more = f" ({len(others)} more: builder cloud validate {path})" if others else ""
        where = f"{path}:{first.line}: " + (f"{first.field}: " if first.field else "")
        raise InputError(f"{where}{first.what}{more}", first.fix)
    return document


def read(path: Path) -> Document:
    """Read a file; what is wrong with it is in `problems`.

    Raises InputError where it cannot be read at all: missing, not text, not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "name a cloudbuild.yaml or .json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "name a text file in UTF-8") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """Read the text of a file; `path` is what an error calls it."""
    if path.suffix == ".json":
        _check_json(text, path)
        text = text.replace("\t", " ")  # the same to JSON, and YAML wants no tabs
    root = _compose(text, path)
    reader = _Reader()
    value: Any = {}
    if root is not None:
        value = reader.value(root, _schema(), ()) or {}
    newer = tuple(_newer_in(value))
    problems = tuple(sorted(reader.problems, key=lambda problem: problem.line))
    return Document(path, value, reader.lines, problems, newer, tuple(reader.notes))


def seconds(duration: str) -> float:
    """`600s` -> 600.0, the only way that the API writes a duration."""
    return float(duration.removesuffix("s"))


def _check_json(text: str, path: Path) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON: {error.msg.lower()}",
            "check commas, quotes and brackets there, or write it as YAML",
        ) from None


def _compose(text: str, path: Path) -> Node | None:
    """The file as nodes with places. YAML 1.1, as gcloud and the service read it: `yes` is a
    boolean and `010` the number 8."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="safe", pure=True)
    loader.version = (1, 1)
    try:
        return loader.compose(text)  # type: ignore[no-any-return]
    except YAMLError as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML: {problem}",
            "check quotes, indentation (spaces, no tabs) and the colons there",
        ) from None


# --- what a Build is ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """Text, a number or a truth value."""

    kind: Literal["string", "bool", "int", "float", "duration"]


@dataclass(frozen=True)
class OneOf:
    """A name out of a list."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ListOf:
    """A list."""

    item: Type


@dataclass(frozen=True)
class MapOf:
    """A mapping with keys of the user's own."""

    item: Type


@dataclass(frozen=True)
class Message:
    """A mapping with the API's own fields, by the names that JSON has for them."""

    name: str
    fields: Mapping[str, Type]


Type = Scalar | OneOf | ListOf | MapOf | Message

_TEXT, _TEXTS = Scalar("string"), ListOf(Scalar("string"))

NEWER: Mapping[str, Mapping[str, Type]] = {
    "BuildStep": {
        "results": ListOf(
            Message(
                "StepResult",
                {"name": _TEXT, "attestationContent": _TEXT, "attestationType": _TEXT},
            )
        )
    },
    "BuildOptions": {"pubsubTopic": _TEXT, "rankedMachineSeries": _TEXTS},
    "Artifacts": {
        "genericArtifacts": ListOf(
            Message("GenericArtifact", {"folder": _TEXT, "registryPath": _TEXT})
        ),
        "oci": ListOf(Message("Oci", {"file": _TEXT, "registryPath": _TEXT, "tags": _TEXTS})),
    },
    "MavenArtifact": {"deployFolder": _TEXT},
    "Dependency": {
        "genericArtifact": Message(
            "GenericArtifactDependency", {"resource": _TEXT, "destPath": _TEXT}
        )
    },
}
"""Fields of the API (discovery document cloudbuild.v1, revision 20261029) that google-cloud-build
3.42.0 does not have yet."""


@functools.cache
def _schema() -> Message:
    from google.cloud.devtools import cloudbuild_v1

    return _message(cloudbuild_v1.Build.pb(cloudbuild_v1.Build()).DESCRIPTOR)


def _message(descriptor: Any) -> Message:
    own = {one.json_name: _type(one) for one in descriptor.fields}
    return Message(descriptor.name, {**own, **NEWER.get(descriptor.name, {}), **own})


def _type(one: Any) -> Type:
    inner = one.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return MapOf(_single(inner.fields_by_name["value"]))
    return ListOf(_single(one)) if one.is_repeated else _single(one)


def _single(one: Any) -> Type:
    if one.message_type is not None:
        if one.message_type.full_name == "google.protobuf.Duration":
            return Scalar("duration")
        if one.message_type.full_name == "google.protobuf.Timestamp":
            return _TEXT
        return _message(one.message_type)
    if one.enum_type is not None:
        return OneOf(tuple(value.name for value in one.enum_type.values))
    if one.type == one.TYPE_BOOL:
        return Scalar("bool")
    if one.type in (one.TYPE_DOUBLE, one.TYPE_FLOAT):
        return Scalar("float")
    return _TEXT if one.type in (one.TYPE_STRING, one.TYPE_BYTES) else Scalar("int")


def _newer_in(value: Mapping[str, Any]) -> Iterator[str]:
    for step in value.get("steps", ()):
        yield from (f"steps.{name}" for name in NEWER["BuildStep"] if name in step)
    for part, message in (("options", "BuildOptions"), ("artifacts", "Artifacts")):
        yield from (f"{part}.{name}" for name in NEWER[message] if name in value.get(part, {}))
    for artifact in value.get("artifacts", {}).get("mavenArtifacts", ()):
        yield from (
            f"artifacts.mavenArtifacts.{name}"
            for name in NEWER["MavenArtifact"]
            if name in artifact
        )
    for dependency in value.get("dependencies", ()):
        yield from (f"dependencies.{name}" for name in NEWER["Dependency"] if name in dependency)


# --- reading nodes --------------------------------------------------------------------------------


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def dotted(path: tuple[str | int, ...]) -> str:
    """("steps", 0, "args") -> steps[0].args"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


class _Reader:
    """Turns nodes into the values that a type allows; notes lines and problems on the way."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        self.above: list[Node] = []

    def bad(self, node: Node, path: tuple[str | int, ...], what: str, fix: str) -> None:
        self.problems.append(Problem(node.start_mark.line + 1, dotted(path), what, fix))

    def value(self, node: Node, kind: Type, path: tuple[str | int, ...]) -> Any:
        """The value, or None where it is no such thing (which is then a problem)."""
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
                self.bad(key, (*path, known), "stands twice", "keep one")
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
            if message != kind.name and _camel(name) in _named(message).fields
        ]
        if elsewhere and not near:
            fix = f"move it: it is a field of {elsewhere[0]}"
        self.bad(key, (*path, name), f"unknown field of {kind.name}", fix)

    def _pairs(
        self, node: MappingNode, path: tuple[str | int, ...]
    ) -> Iterator[tuple[str, Node, Node]]:
        """Name, key and value of each entry; `<<` brings in another mapping's."""
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
                    key, (*path, key.value), f"stands twice, first in line {first}", "keep one"
                )
            else:
                own[str(key.value)] = (key, item)
        for other in merged:
            if isinstance(other, MappingNode) and other is not node:
                for name, key, item in self._pairs(other, path):
                    own.setdefault(name, (key, item))
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
            if inner.tag == _TAG + "null" and item == _TEXT:
                result[name] = ""  # `_NAME:`, to be set by the call
                continue
            value = self.value(inner, item, (*path, name))
            if value is not None:
                result[name] = value
        return result

    def _list(self, node: Node, item: Type, path: tuple[str | int, ...]) -> Any:
        from ruamel.yaml.nodes import SequenceNode

        if not isinstance(node, SequenceNode):
            # apitools, which gcloud is made with, takes a single value for a list of one
            self.above.pop()
            found = self.value(node, item, path)
            self.above.append(node)
            if found is not None:
                what, fix = "is a list: gcloud takes one value, a trigger does not", "write [...]"
                self.notes.append(Problem(node.start_mark.line + 1, dotted(path), what, fix))
            return None if found is None else [found]
        values = [self.value(inner, item, (*path, n)) for n, inner in enumerate(node.value)]
        if isinstance(item, Message):  # what is no message stays as an empty one: indices hold
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
                case "bool" if node.tag == _TAG + "bool":
                    return text.lower() in ("true", "yes", "on", "y")
                case "int" if re.fullmatch(r"-?(0|[1-9]\d*)", text):  # the API takes "100", too
                    return int(text)
                case "float" if node.tag in (_TAG + "float", _TAG + "int"):
                    return float(text)
                case "duration" if _is_text(node) and _DURATION.fullmatch(text):
                    return text
        return self.bad(node, path, *_expected(node, kind))


@functools.cache
def _named(name: str) -> Message:
    """The message of this name inside a Build's `steps` or `options`."""
    inner = _schema().fields["steps" if name == "BuildStep" else "options"]
    found = inner.item if isinstance(inner, ListOf) else inner
    assert isinstance(found, Message)
    return found


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
    if kind == "string":
        tag = str(node.tag).rpartition(":")[2]
        what = {"int": "a number", "float": "a number", "bool": "true or false"}.get(
            tag, f"a {tag}"
        )
        return f"must be text, and YAML reads {node.value} as {what}", f'write "{node.value}"'
    if kind == "duration":
        digits = re.match(r"\d+", str(node.value))
        fix = f"write {digits[0]}s" if str(node.value).isdigit() and digits else "write 600s"
        return f"{found} is no duration: seconds, with an s", fix
    return f"must be {_KINDS[kind]}, found {found}", f"write {_KINDS[kind]}, without quotes"


_KINDS = {
    "string": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "duration": "a duration like 600s",
}


# --- the build ------------------------------------------------------------------------------------


def _build(value: Mapping[str, Any]) -> Build:
    options, artifacts = value.get("options", {}), value.get("artifacts", {})
    objects = artifacts.get("objects")
    other = tuple(name for name in artifacts if name not in ("images", "objects"))
    return Build(
        steps=tuple(_step(n, step) for n, step in enumerate(value.get("steps", ()))),
        images=tuple(dict.fromkeys([*value.get("images", ()), *artifacts.get("images", ())])),
        objects=Objects(objects.get("location", ""), tuple(objects.get("paths", ())))
        if objects
        else None,
        other_artifacts=other,
        substitutions=dict(value.get("substitutions", {})),
        tags=tuple(value.get("tags", ())),
        timeout=seconds(value["timeout"]) if "timeout" in value else DEFAULT_TIMEOUT,
        queue_ttl=seconds(value["queueTtl"]) if "queueTtl" in value else None,
        options=Options(
            substitution_option=options.get("substitutionOption", "MUST_MATCH"),
            dynamic_substitutions=options.get("dynamicSubstitutions", False),
            automap_substitutions=options.get("automapSubstitutions", False),
            env=tuple(options.get("env", ())),
            secret_env=tuple(options.get("secretEnv", ())),
            volumes=_volumes(options),
            logging=options.get("logging", ""),
            machine_type=options.get("machineType", ""),
            disk_size_gb=options.get("diskSizeGb", 0),
        ),
        secrets=_secrets(value),
        logs_bucket=value.get("logsBucket", ""),
        service_account=value.get("serviceAccount", ""),
    )


def _step(index: int, value: Mapping[str, Any]) -> Step:
    return Step(
        index=index,
        name=value.get("name", ""),
        id=value.get("id", ""),
        args=tuple(value.get("args", ())),
        entrypoint=value.get("entrypoint", ""),
        script=value.get("script", ""),
        env=tuple(value.get("env", ())),
        secret_env=tuple(value.get("secretEnv", ())),
        dir=value.get("dir", ""),
        wait_for=tuple(value.get("waitFor", ())) or None,
        timeout=seconds(value["timeout"]) if "timeout" in value else None,
        volumes=_volumes(value),
        allow_failure=value.get("allowFailure", False),
        allow_exit_codes=tuple(value.get("allowExitCodes", ())),
        automap_substitutions=value.get("automapSubstitutions"),
    )


def _volumes(value: Mapping[str, Any]) -> tuple[Volume, ...]:
    return tuple(
        Volume(one.get("name", ""), one.get("path", "")) for one in value.get("volumes", ())
    )


def _secrets(value: Mapping[str, Any]) -> dict[str, str]:
    available = value.get("availableSecrets", {})
    found = {
        one["env"]: one.get("versionName", "")
        for one in available.get("secretManager", ())
        if "env" in one
    }
    for one in available.get("inline", ()):
        found |= dict.fromkeys(one.get("envMap", {}), one.get("kmsKeyName", ""))
    for one in value.get("secrets", ()):
        found |= dict.fromkeys(one.get("secretEnv", {}), one.get("kmsKeyName", ""))
    return found
