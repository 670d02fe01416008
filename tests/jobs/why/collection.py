"""Log lines of public threads, each with the ending that a person sees in them.

`first.yaml` was collected before the table of endings. A third of it, by the hash of the link, was
kept out while the table was written: `held_out` says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """`expected`: an ending's name, "unknown" or "ended-well". link: where the lines were read."""

    link: str
    expected: str
    log: str
    file: str

    @property
    def held_out(self) -> bool:
        """Whether it was kept out while the table was written."""
        return self.file == "first" and held_out(self.link)


def held_out(link: str) -> bool:
    """A third of all links: those whose SHA-256 is a multiple of three."""
    return int(hashlib.sha256(link.encode()).hexdigest(), 16) % 3 == 0


def cases() -> Iterator[Case]:
    """Every case, file by file."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for one in YAML(typ="safe").load(path.read_text(encoding="utf-8")):
            yield Case(one["link"], one["expected"], one["log"], path.stem)
