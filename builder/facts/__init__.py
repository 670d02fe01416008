"""Facts about accelerators, CUDA and machines: tables in which each value names its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from builder.core.errors import InputError

DATA = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    text: str
    verified: bool
    """We read or tried it, and did not only hear of it."""


def read_table(path: Path) -> dict[str, Any]:
    """Return the content of a table of ours, each scalar as its text. Raises InputError for a file
    that is no YAML."""
    try:
        table = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CBaseLoader)
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise InputError(f"{path.name}: not YAML: {message}", "correct the table") from None
    return cast(dict[str, Any], table)


def sources_of(table: Mapping[str, Any]) -> dict[str, Source]:
    return {
        key: Source(entry["text"], entry["verified"] == "true")
        for key, entry in table["sources"].items()
    }


def sourced(row: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    """Return a row of a table with the source that it names."""
    return {**row, "source": sources[row["source"]]}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version or a compute capability so that it can be compared: (9, 10) of "9.10"."""
    return tuple(map(int, version.split(".")))
