"""The table of known endings (endings.yaml): what the lines of a log mean."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.jobs.why import exits

FILE = Path(__file__).parent / "endings.yaml"
GAP = " ... "
_NUMBER = re.compile(r"[0-9]+")

Level = Literal["cause", "general", "consequence"]
Again = Literal["yes", "later", "no", "unknown"]


@dataclass(frozen=True)
class Ending:
    """One way for a job to end.

    happened, do: sentences for a person. again: does the same job end well when it runs again?
    says, warns: words of a line, in parts that follow one another. over: the endings that are this
    one's own trace. exit_codes: of any program; trainer_codes: of our trainer.
    """

    name: str
    happened: str
    do: str
    level: Level
    again: Again
    source: str
    says: tuple[tuple[str, ...], ...] = ()
    warns: tuple[tuple[str, ...], ...] = ()
    unless: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    trainer_codes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Match:
    """A line that speaks for an ending. index: of the line; column: of the words in it; warning:
    a program often survives this."""

    ending: Ending
    index: int
    column: int
    warning: bool


@dataclass(frozen=True)
class Table:
    """All known endings. wrappers: exceptions that only pass on that a process ended."""

    endings: tuple[Ending, ...]
    wrappers: frozenset[str]

    def find(self, lines: Sequence[str]) -> tuple[Match, ...]:
        """Every line that speaks for an ending, in the lines' order. `lines`: no line breaks."""
        lowered = [line.lower() for line in lines]
        alike: dict[str, list[int]] = {}
        for index, line in enumerate(lowered):
            alike.setdefault(_shape(line), []).append(index)
        shapes = _Text("\n".join(alike))
        members = list(alike.values())
        found = [
            Match(ending, index, column, warning)
            for ending in self.endings
            for warning, needles in ((False, ending.says), (True, ending.warns))
            for needle in needles
            for shape in shapes.lines_with(tuple(_shape(part) for part in needle))
            for index in members[shape]
            if (column := _column(lowered[index], needle)) >= 0
            and not any(words in lowered[index] for words in ending.unless)
        ]
        for index, column, code in exits.codes(lines):
            ending = self.of_code(code, ours=False)
            if ending and not any(words in lowered[index] for words in ending.unless):
                found.append(Match(ending, index, column, warning=False))
        return tuple(sorted(found, key=lambda one: (one.index, one.column)))

    def of_code(self, code: int, ours: bool) -> Ending | None:
        """The ending that an exit code suggests. ours: the program is our trainer."""
        for ending in self.endings:
            if code in ending.exit_codes or (ours and code in ending.trainer_codes):
                return ending
        return None

    def named(self, name: str) -> Ending:
        """The ending of that name. Raises KeyError."""
        return next(one for one in self.endings if one.name == name)


def _shape(line: str) -> str:
    """A line without its numbers. A training says the same line with other numbers for hours, so
    words are looked for in each shape once. Words in a line are in its shape, without theirs."""
    return _NUMBER.sub("0", line)


def _column(line: str, needle: tuple[str, ...]) -> int:
    """Where these parts begin in a line, in their order; -1 where they do not."""
    start = line.find(needle[0])
    behind = start + len(needle[0])
    for part in needle[1:] if start >= 0 else ():
        behind = line.find(part, behind)
        if behind < 0:
            return -1
        behind += len(part)
    return start


class _Text:
    """Lines in which words are looked for all at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]

    def lines_with(self, needle: tuple[str, ...]) -> Iterator[int]:
        """The index of each line with these parts, in their order."""
        at = self._text.find(needle[0])
        while at >= 0:
            index = bisect_right(self._starts, at) - 1
            begin, end = self._starts[index], self._starts[index + 1] - 1
            if _column(self._text[begin:end], needle) >= 0:
                yield index
            at = self._text.find(needle[0], end)


@cache
def load() -> Table:
    """The table of endings.yaml, read once a process. Raises InputError for a file with a fault."""
    document = yamlfile.parse(FILE.read_text(encoding="utf-8"), FILE.name)
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{FILE.name}:{problem.line}: {problem.what}", problem.fix)
    content = cast(Mapping[str, Any], document.value)
    return Table(
        tuple(_ending(entry) for entry in content["endings"]), frozenset(content["wrappers"])
    )


def _ending(entry: Mapping[str, Any]) -> Ending:
    return Ending(
        name=entry["name"],
        happened=entry["happened"],
        do=entry["do"],
        level=entry["level"],
        again=entry["again"],
        source=entry["source"],
        says=tuple(_parts(words) for words in entry.get("says", ())),
        warns=tuple(_parts(words) for words in entry.get("warns", ())),
        unless=tuple(entry.get("unless", ())),
        over=tuple(entry.get("over", ())),
        exit_codes=tuple(int(code) for code in entry.get("exit_codes", ())),
        trainer_codes=tuple(int(code) for code in entry.get("trainer_codes", ())),
    )


def _parts(words: str) -> tuple[str, ...]:
    return tuple(words.lower().split(GAP))
