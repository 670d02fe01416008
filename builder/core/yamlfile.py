"""YAML as a person wrote it: every scalar stays the text of the file, every value has its line.

Nothing is converted here, because `python: 3.10` must not become the number 3.1; the model that
takes the values converts them. A key that stands twice is a mistake, and is reported. A file beyond
VALUES or DEPTH is refused at its line: a few lines of aliases in aliases stand for billions of
values.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from builder.core.errors import InputError

VALUES: Final = 20_000
"""How many values and keys a file holds at most, with each alias written out."""
DEPTH: Final = 100
"""How many lists and mappings stand in each other at most."""
TAB: Final = "indent with spaces, not with a tab"

_CHARACTERS: Final = 1 << 20
_YAML: Final = "tag:yaml.org,2002:"
_OWN_TAGS: Final = re.compile(f"{_YAML}[a-z]+|!")
"""The tags of YAML itself, which a reader gives to values without one. Source: yaml.org/type."""

Value = str | None | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True)
class Mistake:
    """A mistake at a line (from 1) of a file; `field` is a dotted path, "" for the file."""

    line: int
    field: str
    what: str
    fix: str


@dataclass(frozen=True)
class Document:
    """The content of a file (`value`; {} for an empty file), with the line of each value."""

    value: Value
    root: Node | None
    problems: tuple[Mistake, ...] = ()
    mapping: str = "`name: value` lines"

    def line(self, *path: str | int) -> int:
        """Return the line (from 1) of the value at `path`, or of the deepest part of it."""
        line, node = 1, self.root
        for step in path:
            if isinstance(node, MappingNode):
                items = [(key, value) for key, value in node.value if key.value == step]
                if not items:
                    break
                line, node = items[-1][0].start_mark.line + 1, items[-1][1]
            elif isinstance(node, SequenceNode) and isinstance(step, int):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line

    def written(self, key: str, example: str) -> str:
        """Return a line that gives `key` a value."""
        return f"{key}: {example}"


# --- reading --------------------------------------------------------------------------------------


def parse(text: str, where: str) -> Document:
    """Read one YAML document; `where` is what an error calls the file.

    Raises InputError with the line of a syntax error, or of the value that is one too many.
    """
    check_bounds(text, where)
    try:
        root = _compose(text, where)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            f"{where}:{line}: a control character (U+{int(error.character):04X})", "remove it"
        ) from None
    except YAMLError as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        written = "".join(text.splitlines()[line - 1 : line])
        fix = TAB if written.lstrip(" ").startswith("\t") else _syntax_fix(problem)
        raise InputError(f"{where}:{line}: not YAML: {problem}", fix) from None
    problems: list[Mistake] = []
    value = _value(root, "", problems, ()) if root is not None else {}
    return Document(value, root, tuple(problems))


def _compose(text: str, where: str) -> Node | None:
    """Return the nodes of a document. The fast reader refuses `[gs://b/x]`, which is YAML."""
    try:
        return YAML(typ="safe", pure=False).compose(text)  # type: ignore[no-any-return]
    except MarkedYAMLError as error:
        if "unexpected ':'" not in str(error.problem):
            raise
        check_bounds(text, where, fast=False)
        try:
            return YAML(typ="safe", pure=True).compose(text)  # type: ignore[no-any-return]
        except YAMLError:
            raise error from None


def check_bounds(text: str, where: str, *, fast: bool = True) -> None:
    """Raise InputError, with its line, for what would take a reader's time or memory for nothing.

    What is not YAML passes: the reader says what is wrong with it. fast: with the reader in C.
    """
    if len(text) > _CHARACTERS:
        raise InputError(
            f"{where}: {len(text)} characters, more than {_CHARACTERS}",
            "name the file that you meant, or write less into it",
        )
    sizes: dict[str, int] = {}  # the values of each anchor, with its aliases written out
    open_: list[tuple[str | None, int]] = []  # anchor and number of its first value, to the top
    count = 0
    try:
        for event in YAML(typ="safe", pure=not fast).parse(text):
            if isinstance(event, CollectionEndEvent):
                anchor, first = open_.pop()
                if anchor:
                    sizes[anchor] = count - first
            elif isinstance(event, NodeEvent):
                first = count
                count += sizes.get(event.anchor, 1) if isinstance(event, AliasEvent) else 1
                if isinstance(event, CollectionStartEvent):
                    open_.append((event.anchor, first))
            line = event.start_mark.line + 1
            if count > VALUES:
                raise InputError(
                    f"{where}:{line}: more than {VALUES} values up to here, each alias written out",
                    "write less into the file",
                )
            if len(open_) > DEPTH:
                raise InputError(
                    f"{where}:{line}: more than {DEPTH} lists and mappings in each other",
                    "write the value flat",
                )
    except YAMLError:
        pass


def _syntax_fix(problem: str) -> str:
    if "\\t" in problem or "tab character" in problem:
        return TAB
    if "cannot start any token" in problem:
        return "put the value in quotes"
    if "unexpected ':'" in problem:
        return 'put a value that contains ":" in quotes'
    if "mapping values are not allowed" in problem:
        return 'put a value that contains ": " in quotes, and check the indentation'
    return "write one `key: value` a line, values of a list as [a, b]"


def _value(node: Node, path: str, problems: list[Mistake], above: tuple[Node, ...]) -> Value:
    line = node.start_mark.line + 1
    if any(node is outer for outer in above):
        problems.append(Mistake(line, path, "contains itself", "write the value out"))
        return None
    if not _OWN_TAGS.fullmatch(str(node.tag)):
        tag = str(node.tag).removeprefix(_YAML)
        problems.append(Mistake(line, path, f"has the tag {tag}, which means nothing", "remove it"))
    if isinstance(node, ScalarNode):
        return None if node.tag == f"{_YAML}null" else str(node.value)
    inside = (*above, node)
    if isinstance(node, SequenceNode):
        return [_value(item, f"{path}.{n}", problems, inside) for n, item in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    result: dict[str, Value] = {}
    lines: dict[str, int] = {}
    for key, item in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, ScalarNode):
            problems.append(Mistake(line, path, "a name must be text", "write `name: value`"))
            continue
        name = str(key.value)
        field = f"{path}.{name}" if path else name
        if name in result:
            what = f"stands twice, first in line {lines[name]}"
            problems.append(Mistake(line, field, what, "keep one"))
        lines.setdefault(name, line)
        result[name] = _value(item, field, problems, inside)
    return result


# --- writing --------------------------------------------------------------------------------------

_OTHER_IN_1_1: Final = re.compile(
    r"y|n|yes|no|on|off|=|<<|[-+.]?[0-9][0-9_:.]*(?:e[-+]?[0-9_]+)?|[-+]?0[xob][0-9a-f_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that YAML 1.1 reads as numbers, times or truth values. Source: yaml.org/type, 1.1."""


def dump(value: object, comment: str = "") -> str:
    """Return plain values as YAML, with a comment before it.

    Readers of YAML 1.1 (kubectl, gcloud) find every text again: `on` and 1_000 are in quotes.
    """
    writer = YAML()
    writer.indent(mapping=2, sequence=4, offset=2)
    writer.width = 100_000
    stream = io.StringIO()
    writer.dump(_quoted(value), stream)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + stream.getvalue()


def _quoted(value: object) -> object:
    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(item) for item in value]
    if isinstance(value, str) and _OTHER_IN_1_1.fullmatch(value):
        return DoubleQuotedScalarString(value)
    return value
