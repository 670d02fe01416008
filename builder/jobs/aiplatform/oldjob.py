"""An old configuration while it is read: its fields, where each stands, what became of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.core.errors import InputError
from builder.core.yamlfile import Document
from builder.jobs.ledger import Fate, Line

Path = tuple[str, ...]


@dataclass
class OldJob:
    """The old file, with the flags beside it.

    top: the path of trainingInput in the file. flags: field of trainingInput -> the flag that
    filled it. fates: what is known of a field, of the file's fields by their written names. came:
    field of the new file -> field of trainingInput. notes: what is about no single field.
    """

    document: Document
    where: str
    top: Path = ()
    flags: Mapping[Path, str] = field(default_factory=dict)
    fates: dict[str, Line] = field(default_factory=dict)
    came: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def name(self, path: Path) -> str:
        """A field of trainingInput as the file writes it, or the flag that fills it."""
        found = next((flag for at, flag in self.flags.items() if path[: len(at)] == at), None)
        return found or ".".join((*self.top, *path))

    def place(self, path: Path) -> str:
        """`config.yaml:3: trainingInput.masterType`, or the flag."""
        name = self.name(path)
        if name.startswith("--"):
            return name
        return f"{self.where}:{self.document.line(*_steps((*self.top, *path)))}: {name}"

    def refuse(self, path: Path, what: str, fix: str) -> InputError:
        """The error about a field of trainingInput."""
        return InputError(f"{self.place(path)}: {what}", fix)

    def tell(self, fate: Fate, path: Path, why: str = "", came: str = "") -> None:
        """Note what becomes of a field, and of all in it. came: the field of the new file that it
        fills."""
        name = self.name(path)
        for inner in [one for one in self.fates if one.startswith((f"{name}.", f"{name}["))]:
            del self.fates[inner]
        self.fates[name] = Line(name, fate, why)
        if came:
            self.came[came] = path

    def only(self, value: Any, known: Sequence[str], path: Path) -> Mapping[str, Any]:
        """The mapping at `path`. Raises InputError for a name that is not `known`."""
        if not isinstance(value, dict):
            raise self.refuse(path, "expected `name: value` lines", "indent what belongs to it")
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise self.refuse((*path, name), "not a field of AI Platform's", fix)
        return value

    def text(self, value: Any, path: Path) -> str:
        """One text. Raises InputError."""
        if not isinstance(value, str):
            raise self.refuse(path, "expected one value", "write it on the same line")
        return value

    def texts(self, value: Any, path: Path) -> list[str]:
        """A list of texts. Raises InputError."""
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.refuse(path, "expected a list of texts", "write [--name, value]")
        return [str(one) for one in value]

    def number(self, value: Any, path: Path, fix: str) -> int:
        """A whole number. Raises InputError."""
        text = self.text(value, path)
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.refuse(path, f"{text[:20]!r} is no number", fix)
        return int(text)

    def choice(self, value: Any, known: Sequence[str], path: Path, what: str) -> str:
        """One of the names that the service knew. Raises InputError."""
        text = self.text(value, path)
        if text not in known:
            near = difflib.get_close_matches(text.upper(), known, n=1)
            fix = f"write {near[0]}" if near else f"write one of {', '.join(known)}"
            raise self.refuse(path, f"{text!r} was no {what}", fix)
        return text


def _steps(path: Path) -> tuple[str | int, ...]:
    """params[2] is the third entry of params."""
    found: list[str | int] = []
    for step in path:
        name, *numbers = re.split(r"[\[\]]+", step.rstrip("]"))
        found += [name, *map(int, numbers)]
    return tuple(found)
