"""builder.toml as it stands, and where each of its values was written."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import InputError
from builder.core.project import MARKER

PREFIX = "BUILDER_"
"""How the name of a variable of the environment begins that is a setting."""

Written = tuple[str, str]
"""A value, and where it was written: a flag, a variable, or a file's name, line and key."""


@dataclass(frozen=True)
class ProjectFile:
    """builder.toml as it stands: its text and its content. A project without one has neither."""

    text: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, root: Path) -> ProjectFile:
        """The file of the project at `root`. Raises InputError where it is not TOML."""
        path = root / MARKER
        if not path.is_file():
            return cls("", {})
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            return cls(text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
            where = f"{MARKER}:{found[1] if found else len(text.splitlines()) or 1}"
            raise InputError(
                f"{where}: not TOML: {error}", 'write one setting a line: name = "value"'
            ) from None

    def table(self, name: str) -> Mapping[str, Any]:
        """The table of this name, empty where there is none. Raises InputError for another type."""
        found = self.content.get(name, {})
        if not isinstance(found, dict):
            where = f"{MARKER}:{_line(self.text, name)}: {name}"
            raise InputError(f"{where}: expected a table", f"write [{name}]")
        return found

    def place(self, key: str, table: str = "") -> str:
        """`builder.toml:3: cloud.region`: where a key stands, at the top or in a table."""
        if not table:
            return f"{MARKER}:{_line(self.text, key)}: {key}"
        return f"{MARKER}:{_line_in(self.text, table, key)}: {table}.{key}"

    def texts(
        self, names: Sequence[str], table: str = "", tables: Sequence[str] = ()
    ) -> dict[str, Written]:
        """The settings at the top of the file or in a table, which are all texts.

        names: the settings that there are; tables: the keys that hold tables, which are left out.
        Raises InputError for any other key, and for a value that is not a text.
        """
        values: dict[str, Written] = {}
        for key, value in (self.table(table) if table else self.content).items():
            where = self.place(key, table)
            if key in tables:
                continue
            if key not in names:
                known = (*names, *tables)
                near = difflib.get_close_matches(key, known, n=1)
                fix = f"write {near[0]}" if near else f"known settings: {', '.join(known)}"
                raise InputError(f"{where}: unknown setting", fix)
            if not isinstance(value, str):
                raise InputError(
                    f"{where}: expected text, found {value!r}", f'write {key} = "..." in quotes'
                )
            values[key] = (value, where)
        return values


def check_shapes(
    written: Mapping[str, Written], shapes: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """The values alone. shapes: by name, what the whole value matches, and an example.

    Raises InputError that names where the bad value came from.
    """
    for name, (value, where) in written.items():
        shape, example = shapes[name]
        if not re.fullmatch(shape, value):
            raise InputError(f"{where}: {value!r} is not what is expected", f"write {example}")
    return {name: value for name, (value, _) in written.items()}


def layered(
    written: Mapping[str, Written],
    names: Sequence[str],
    prefix: str,
    environ: Mapping[str, str] | None,
    flags: Mapping[str, str | None],
) -> dict[str, Written]:
    """Each setting's value from its flag, else from its variable, else from the file."""
    environ = os.environ if environ is None else environ
    if unknown := set(flags) - set(names):
        raise TypeError(f"no such setting: {sorted(unknown)}")
    chosen = dict(written)
    for name in names:
        variable, flag = prefix + name.upper(), flags.get(name)
        if flag is not None:
            chosen[name] = (flag, f"--{name.replace('_', '-')}")
        elif environ.get(variable):
            chosen[name] = (environ[variable], variable)
    return chosen


def _line_in(text: str, table: str, key: str) -> int:
    """The line (from 1) of a key inside of a table."""
    lines = text.splitlines()
    begin = _line(text, table)
    shape = re.compile(rf"""\s*(?:\[\[?\s*{table}\s*\.\s*)?["']?{re.escape(key)}["']?\s*[\].=]""")
    numbered = list(enumerate(lines, 1))[begin - 1 :]
    return next((number for number, line in numbered if shape.match(line)), begin)


def _line(text: str, key: str) -> int:
    """The line (from 1) on which a top-level key or table stands."""
    shape = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if shape.match(line)), 1)
