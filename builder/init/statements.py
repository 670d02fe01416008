"""What one line of a repository's files says, before anybody judges it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from packaging.utils import canonicalize_name

# fmt: off
Kind = Literal[
    "requirement", "requirements", "bound", "constraints", "locked", "conda", "apt", "variable",
    "python", "program", "image", "note", "removed", "index", "packages",
]
# fmt: on
LISTS: Final = frozenset(("requirements", "constraints", "packages"))
"""The kinds that name a file."""


@dataclass(frozen=True)
class SourceStatement:
    where: str
    """The file and the line."""
    text: str
    """As a person reads it."""
    kind: Kind = "note"
    """A requirement, a bound of one or a locked version; the file of requirements, of bounds or of
    conda's packages that a line names; a package of conda, Debian packages, a variable, a version
    of Python, the command that starts the program, a published image; what a command uninstalls; an
    option that names an index; or a note, which no field takes."""
    words: tuple[str, ...] = ()
    """What the kind is about; of a locked version then its markers, of which one has to hold; of a
    file the places where it may lie, the likeliest first; of an index or a foreign note why it
    installs from elsewhere."""
    why: str = ""
    """Why it cannot be taken, "" where it can."""
    beside: bool = False
    """It is not what the image gets, so that a framework in it counts only where nothing else names
    one."""
    foreign: bool = False
    """It is installed from another index than PyPI, so that only a framework and its companions are
    what their names say."""

    def aside(self, why: str) -> SourceStatement:
        """Return the same, said of something that the image does not get."""
        return replace(self, why=self.why or why, beside=True)

    def from_elsewhere(self, why: str) -> SourceStatement:
        """Return the same, installed from elsewhere for the reason `why`, if there is one."""
        return replace(self, why=self.why or why, foreign=True) if why else self


def package_of(requirement: str) -> str:
    """Return the name of the package that a requirement asks for."""
    return canonicalize_name(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])
