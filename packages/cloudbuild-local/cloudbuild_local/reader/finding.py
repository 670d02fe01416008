"""A finding: one thing that is wrong in a build file, with its line, its fix and its source."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]
"""error: Cloud Build refuses the file. warning: the build runs and may surprise its author."""

Place = tuple[str | int, ...]
"""Where a value stands in a file: ("steps", 0, "args", 1)."""

API = "API reference, rev. 20261029"
SCHEMA = "Build configuration file schema"
VALUES = "Substitute variable values"
LOCAL = "cloud-build-local's validator"
"""Sources of rules. The last one is archived, and the service may allow more."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    line: int
    """From 1."""
    field: str
    """A dotted path."""
    what: str
    fix: str
    level: Level = "error"
    source: str = ""
    """Of the rule."""

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{field}{self.what}; {self.fix} [{self.source}]"


def suggestion(written: str, known: Iterable[str], otherwise: str) -> str:
    """Return a fix: the known name that is like the written one, or else another fix."""
    near = difflib.get_close_matches(written, known, n=1)
    return f"write {near[0]}" if near else otherwise


def dotted(place: Place) -> str:
    """Return the text of a place: ("steps", 0, "args") -> steps[0].args"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
