"""Facts about accelerators, CUDA and machines: tables in which each value names its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from builder.core import yamlfile
from builder.core.errors import InputError

DATA = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    """Where a fact comes from."""

    text: str
    verified: bool
    """We read or tried it, and did not only hear of it."""


def read_table(path: Path) -> dict[str, Any]:
    """Return the content of a table. Raises InputError for a file that is not a table."""
    document = yamlfile.parse(path.read_text(encoding="utf-8"), path.name)
    if document.problems:
        problem = document.problems[0]
        where = f"{path.name}:{problem.line}: {problem.field}"
        raise InputError(f"{where}: {problem.what}", problem.fix)
    return cast(dict[str, Any], document.value)


def sources_of(table: Mapping[str, Any]) -> dict[str, Source]:
    """Return the sources that the rows of a table name."""
    return {
        key: Source(entry["text"], entry["verified"] == "true")
        for key, entry in table["sources"].items()
    }


def numbers(version: str) -> tuple[int, ...]:
    """Return a version or a compute capability so that it can be compared: (9, 10) of "9.10"."""
    return tuple(map(int, version.split(".")))
