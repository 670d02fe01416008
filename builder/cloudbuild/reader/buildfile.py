"""A Cloud Build configuration file (cloudbuild.yaml or .json) as a frozen value.

As in the hosted service, a name may be in camelCase or in snake_case, an unknown name is an error,
and no value is converted: a number in the place of text is an error, too. Every value has its line,
so that every later error can name it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cloudbuild.reader.build import Build, build_of
from builder.cloudbuild.reader.fields import newer_in, schema
from builder.cloudbuild.reader.nodes import NodeReader, check_json, compose
from builder.core.errors import InputError
from builder.core.yamlfile import Mistake

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build as ProtoBuild


@dataclass(frozen=True)
class BuildFile:
    """A file that was read.

    value: its content under the API's names; text where the API has text (durations, too).
    problems: the parts that are not what a Build has there, in the order of the file. `value` lacks
    these parts.
    """

    path: Path
    value: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    problems: tuple[Mistake, ...] = ()
    newer: tuple[str, ...] = ()
    """Fields that the installed client does not know. `to_proto` leaves them out."""
    notes: tuple[Mistake, ...] = ()
    """Parts that gcloud accepts and a trigger refuses."""
    of_triggers: tuple[Mistake, ...] = ()
    """Parts that a trigger accepts and gcloud refuses."""

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
        return build_of(self.value)

    def to_proto(self) -> ProtoBuild:
        """The API's message, for google-cloud-build, without the fields in `newer`.

        Raises InputError for a value that the message cannot hold.
        """
        from google.cloud.devtools import cloudbuild_v1
        from google.protobuf import json_format  # type: ignore[import-untyped]

        message = cloudbuild_v1.Build.pb(cloudbuild_v1.Build())
        try:
            json_format.ParseDict(dict(self.value), message, ignore_unknown_fields=True)
        except json_format.ParseError as error:  # a number or a time out of its range
            raise InputError(f"{self.path}: {error}", "write a value that it can have") from None
        return cloudbuild_v1.Build.wrap(message)  # type: ignore[no-any-return]


def load(path: Path) -> BuildFile:
    """Read a file that must be a Build. Raises InputError with the line of the first problem."""
    document = read(path)
    if document.problems:
        first, *others = document.problems
        more = f" ({len(others)} more: builder cloud validate {path})" if others else ""
        where = f"{path}:{first.line}: " + (f"{first.field}: " if first.field else "")
        raise InputError(f"{where}{first.what}{more}", first.fix)
    return document


def read(path: Path) -> BuildFile:
    """Read a file. `problems` has what is wrong with it.

    Raises InputError for a file that cannot be read at all: missing, not text, not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "name a cloudbuild.yaml or .json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "name a text file in UTF-8") from None
    return parse(text, path)


def parse(text: str, path: Path) -> BuildFile:
    """Read the text of a file. path: the file's name in errors; its suffix tells JSON from YAML."""
    if path.suffix == ".json":
        check_json(text, path)
        text = text.replace("\t", " ")  # JSON reads both alike, and YAML refuses tabs
    root = compose(text, path)
    reader = NodeReader()
    value: Any = {}
    if root is not None:
        value = reader.value(root, schema(), ()) or {}
    newer = tuple(newer_in(value))
    problems = tuple(sorted(reader.problems, key=lambda problem: problem.line))
    notes, of_triggers = tuple(reader.notes), tuple(reader.of_triggers)
    return BuildFile(path, value, reader.lines, problems, newer, notes, of_triggers)
