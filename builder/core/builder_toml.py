"""builder.toml as it was written: its values, the line of each, and what stands above it."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from builder.core import filemodel
from builder.core.errors import InputError
from builder.core.project import MARKER
from builder.core.yamlfile import Mistake

PREFIX: Final = "BUILDER_"
"""How the variables of the environment begin that are settings."""
TABLES: Final = ("cloud", "job", "kubernetes", "trust")

Flags = Mapping[str, str | None]
"""Flags of the command line by the names of settings; one that is None was not given."""


@dataclass(frozen=True)
class BuilderToml:
    """The values as they were written, by their names; sources: where, if not in the file."""

    text: str
    values: dict[str, Any]
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    mapping: str = "a table"

    @classmethod
    def read(cls, root: Path) -> BuilderToml:
        """Return builder.toml; nothing where there is none. Raises InputError for other text."""
        path = root / MARKER
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        try:
            return cls(text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
            place = f"{MARKER}:{at[1] if at else len(text.splitlines()) or 1}"
            raise InputError(
                f"{place}: not TOML: {error}", 'write one setting a line: name = "value"'
            ) from None

    def override(
        self,
        environ: Mapping[str, str],
        tables: Mapping[str, Flags],
        settings: Sequence[tuple[str, str, str]],
    ) -> None:
        """Put the values of variables, and above them those of flags, in place of the file's.

        settings: the name, the table and the key of each one that is one text.
        """
        flags = {(table, key) for table, values in tables.items() for key in values}
        if unknown := flags - {(table, key) for _, table, key in settings}:
            raise TypeError(f"no such settings: {sorted(unknown)}")
        for name, table, key in settings:
            variable, flag = PREFIX + name.upper().replace(".", "_"), tables.get(table, {}).get(key)
            value = environ.get(variable) if flag is None else flag
            target = self.values.setdefault(table, {}) if table else self.values
            if value and isinstance(target, dict):
                target[key] = value
                self.sources[name] = variable if flag is None else f"--{key.replace('_', '-')}"

    def refused(self, mistakes: list[Mistake]) -> InputError:
        """Return the error of these mistakes; one of a flag or a variable comes first, alone."""
        for mistake in mistakes:
            if source := self.sources.get(mistake.field):
                return InputError(f"{source}: {mistake.what}", mistake.fix)
        return filemodel.error(MARKER, mistakes)

    @cached_property
    def _lines(self) -> dict[tuple[str | int, ...], int]:
        """The line (from 1) of each table and each key, by its path."""
        lines: dict[tuple[str | int, ...], int] = {}
        tables: Counter[tuple[str | int, ...]] = Counter()
        header: tuple[str | int, ...] = ()
        for number, text in enumerate(self.text.splitlines(), 1):
            if match := re.match(r"\s*(\[\[?)\s*([\w.\s-]+?)\s*\]", text):
                header = tuple(re.split(r"\s*\.\s*", match[2]))
                lines.setdefault(header, number)
                if match[1] == "[[":
                    tables[header] += 1
                    header = (*header, tables[header] - 1)
                    lines[header] = number
            elif match := re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", text):
                lines.setdefault((*header, *match[1].split(".")), number)
        return lines

    def line(self, *path: str | int) -> int:
        """Return the line (from 1) of a value, or of the deepest part of its path."""
        parts = (path[:length] for length in range(len(path), 0, -1))
        return next((self._lines[part] for part in parts if part in self._lines), 1)

    def written(self, key: str, example: str) -> str:
        """Return a line that gives `key` a value."""
        if key == "trigger":
            return "[[cloud.trigger]]"
        return f"[{key}]" if key in TABLES else f'{key} = "{example or "..."}"'
