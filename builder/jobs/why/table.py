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
KILLED = "killed"
"""The ending that a launcher brings about itself, when another process has ended first."""
_NUMBER = re.compile(r"[0-9]+")

Level = Literal["cause", "general", "consequence"]
Again = Literal["yes", "later", "no", "unknown"]


@dataclass(frozen=True)
class Ending:
    """One way for a job to end.

    happened, do: sentences for a person. again: does the same job end well when it runs again?
    says, warns: words of a line, in parts that follow one another. lines: whole lines. over: the
    endings that are its own trace. exit_codes: of any program; trainer_codes: of our trainer.
    """

    name: str
    happened: str
    do: str
    level: Level
    again: Again
    source: str
    says: tuple[tuple[str, ...], ...] = ()
    warns: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
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
        """Return every line that speaks for an ending, in the lines' order. `lines`: no line
        breaks.

        A training says the same line with other numbers for hours, so words are looked for in each
        shape of a line once. Words in a line are in its shape, without their numbers.
        """
        lowered = [line.lower() for line in lines]
        members: dict[str, list[int]] = {}
        for index, line in enumerate(lowered):
            members.setdefault(_NUMBER.sub("0", line), []).append(index)
        shapes = list(members)
        text, starts = "\n".join(shapes), [0, *accumulate(len(line) + 1 for line in shapes)]
        matches = [
            Match(ending, index, column, warning)
            for ending in self.endings
            for warning, needles in ((False, ending.says), (True, ending.warns))
            for needle in needles
            for shape in _lines_with(text, starts, _NUMBER.sub("0", needle[0]))
            for index in members[shapes[shape]]
            if (column := _column(lowered[index], needle)) >= 0
        ]
        whole = {line: ending for ending in self.endings for line in ending.lines}
        for index, line in enumerate(lowered):
            if ending := whole.get(line.strip()):
                matches.append(Match(ending, index, 0, warning=False))
        for index, column, code in exits.codes(lines):
            if ending := self.of_code(code, ours=False):
                matches.append(Match(ending, index, column, warning=False))
        fault = exits.first_fault(lines)
        left = [
            match
            for match in matches
            if not any(words in lowered[match.index] for words in match.ending.unless)
            and not (match.ending.name == KILLED and fault is not None and match.index >= fault)
        ]
        return tuple(sorted(left, key=lambda match: (match.index, match.column)))

    def of_code(self, code: int, ours: bool) -> Ending | None:
        """Return the ending that an exit code suggests. ours: the program is our trainer."""
        for ending in self.endings:
            if code in ending.exit_codes or (ours and code in ending.trainer_codes):
                return ending
        return None

    def named(self, name: str) -> Ending:
        """Return the ending of that name. Raises KeyError."""
        return next(ending for ending in self.endings if ending.name == name)


def _column(line: str, needle: tuple[str, ...]) -> int:
    """Return where these parts begin in a line, in their order; -1 where they do not."""
    start = line.find(needle[0])
    behind = start + len(needle[0])
    for part in needle[1:] if start >= 0 else ():
        behind = line.find(part, behind)
        if behind < 0:
            return -1
        behind += len(part)
    return start


def _lines_with(text: str, starts: Sequence[int], words: str) -> Iterator[int]:
    """Yield the number of each line of a text that has these words. starts: where lines begin."""
    at = text.find(words)
    while at >= 0:
        index = bisect_right(starts, at) - 1
        yield index
        at = text.find(words, starts[index + 1] - 1)


@cache
def load() -> Table:
    """Return the table, read once a process. Raises InputError for a faulty file."""
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
        level=entry.get("level", "cause"),
        again=entry.get("again", "no"),
        source=entry["source"],
        says=tuple(_parts(words) for words in entry.get("says", ())),
        warns=tuple(_parts(words) for words in entry.get("warns", ())),
        lines=tuple(entry.get("lines", ())),
        unless=tuple(entry.get("unless", ())),
        over=tuple(entry.get("over", ())),
        exit_codes=tuple(int(code) for code in entry.get("exit_codes", ())),
        trainer_codes=tuple(int(code) for code in entry.get("trainer_codes", ())),
    )


def _parts(words: str) -> tuple[str, ...]:
    return tuple(words.lower().split(GAP))
