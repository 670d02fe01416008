"""YAML as a person wrote it: every scalar stays the text of the file, every value has its line.

Nothing is converted here, because `python: 3.10` must not become the number 3.1; the model that
takes the values converts them. A key that stands twice is a mistake, and is reported. A file beyond
VALUES or DEPTH is refused: a few lines of aliases in aliases stand for billions of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from builder.core.errors import InputError

VALUES: Final = 20_000
"""How many values a file holds at most, with each alias written out."""
DEPTH: Final = 100
"""How many lists and mappings stand in each other at most."""
TAB: Final = "indent with spaces, not with a tab"

_CHARACTERS: Final = 1 << 20
_OPENED: Final = re.compile(r"[\[{]|- ")
_MOST_OPENED: Final = 10_000
"""How many lists and mappings may begin: the reader in C ends the process at twice as many."""
_YAML: Final = "tag:yaml.org,2002:"
_OWN_TAGS: Final = re.compile(f"{_YAML}[a-z]+|!")
"""The tags of YAML itself, which a reader gives to values without one. Source: yaml.org/type."""

Value = str | None | list["Value"] | dict[str, "Value"]
Path = tuple[str | int, ...]
"""The names and the indices that lead to a value."""


@dataclass(frozen=True)
class Mistake:
    """A mistake at a line (from 1) of a file; `field` is a dotted path, "" for the file."""

    line: int
    field: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.what}" if self.field else self.what


@dataclass(frozen=True)
class Document:
    """The content of a file (`value`; {} for an empty file), with the line of each value by its
    path."""

    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict)
    problems: tuple[Mistake, ...] = ()
    mapping: str = "`name: value` lines"
    """What the file's format calls several names with values."""

    def line(self, *path: str | int) -> int:
        """Return the line (from 1) of the value at `path`, or of the deepest part of it."""
        parts = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[part] for part in parts if part in self.lines), 1)

    def written(self, key: str, example: str) -> str:
        """Return a line that gives `key` a value."""
        return f"{key}: {example}"


# --- reading --------------------------------------------------------------------------------------


def parse(text: str, where: str) -> Document:
    """Read one YAML document; `where` is what an error calls the file.

    Raises InputError with the line of a syntax error, or of the value that is one too many.
    """
    if len(text) > _CHARACTERS or len(_OPENED.findall(text)) > _MOST_OPENED:
        raise InputError(f"{where}: too much for a file that a person writes", "write less into it")
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        return _content(root, where) if root is not None else Document({})
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


def _syntax_fix(problem: str) -> str:
    if "\\t" in problem or "tab character" in problem:
        return TAB
    if "cannot start any token" in problem:
        return "put the value in quotes"
    if "mapping values are not allowed" in problem:
        return 'put a value that contains ": " in quotes, and check the indentation'
    return "write one `key: value` a line, values of a list as [a, b]"


def _content(top: Node, where: str) -> Document:
    """Return the value of a node with each alias written out, and the mistakes in it.

    Raises InputError at the line of the field that goes beyond VALUES or DEPTH.
    """
    problems: list[Mistake] = []
    lines: dict[Path, int] = {}
    count = 0

    def mistake(line: int, path: Path, what: str, fix: str) -> None:
        problems.append(Mistake(line, ".".join(map(str, path)), what, fix))

    def read(node: Node, path: Path, line: int) -> Value:
        nonlocal count
        count, lines[path] = count + 1, line
        if count > VALUES or len(path) > DEPTH:
            bound = f"{VALUES} values up to here, each alias written out"
            bound = f"{DEPTH} lists and mappings in each other" if count <= VALUES else bound
            place = f"{where}:{lines[path[:1]]}"
            raise InputError(f"{place}: more than {bound}", "write less into the file")
        if not _OWN_TAGS.fullmatch(str(node.tag)):
            tag = str(node.tag).removeprefix(_YAML)
            mistake(line, path, f"has the tag {tag}, which means nothing", "remove it")
        if isinstance(node, ScalarNode):
            return None if node.tag == f"{_YAML}null" else str(node.value)
        if isinstance(node, SequenceNode):
            items = enumerate(node.value)
            return [read(item, (*path, n), item.start_mark.line + 1) for n, item in items]
        values: dict[str, Value] = {}
        first: dict[str, int] = {}
        for key, item in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if not isinstance(key, ScalarNode):
                mistake(line, path, "a name must be text", "write `name: value`")
                continue
            if name in values:
                what = f"stands twice, first in line {first[name]}"
                mistake(line, (*path, name), what, "keep one")
            first.setdefault(name, line)
            values[name] = read(item, (*path, name), line)
        return values

    return Document(read(top, (), 1), lines, tuple(problems))


# --- writing --------------------------------------------------------------------------------------

_OTHER_IN_1_1: Final = re.compile(
    r"y|n|yes|no|on|off|=|<<|[-+.]?[0-9][0-9_:.]*(?:e[-+]?[0-9_]+)?|[-+]?0[xob][0-9a-f_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that YAML 1.1 reads as numbers, times or truth values. Source: yaml.org/type, 1.1."""


def dump(value: object, comment: str = "") -> str:
    """Return plain values as YAML, with a comment before it.

    Other readers (kubectl, gcloud) find every text again: `on` and 1_000 are in quotes.
    """
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    options: Any = {"sort_keys": False, "allow_unicode": True, "width": 100_000}
    return f"{head}{yaml.dump(value, Dumper=_Dumper, **options)}"


class _Dumper(yaml.SafeDumper):
    """Writes lists two columns further than their names, and each value out."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> ScalarNode:
    quoted = "\n" in value or _OTHER_IN_1_1.fullmatch(value)
    return dumper.represent_scalar(f"{_YAML}str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)
