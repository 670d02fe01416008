"""The table of known endings (endings.yaml): what the lines of a log mean.

A process that a signal ended has no words of its own. What started it tells the signal, each in its
own way: as 128 + signal (shells, Docker, Kubernetes: POSIX, "Exit Status for Commands"), as
-signal (Python's subprocess and multiprocessing: docs.python.org, Popen.returncode), or by name.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from builder.facts import known_bad, read_table
from builder.facts.known_bad import KnownBad

FILE = Path(__file__).parent / "endings.yaml"
GAP = " ... "
_NUMBER = re.compile(r"[0-9]+")

Level = Literal["cause", "general", "consequence"]
LEVELS: Final[tuple[Level, ...]] = ("cause", "general", "consequence")
"""The best first."""
Again = Literal["yes", "later", "no", "unknown"]


@dataclass(frozen=True)
class Ending:
    name: str
    happened: str
    do: str = ""
    """`happened` and `do`: sentences for a person."""
    source: str = ""
    level: Level = "cause"
    again: Again = "no"
    """Does the same job end well when it runs again?"""
    says: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    """`says` and `warns`: words of a line; GAP stands between parts that follow one another."""
    slows: tuple[str, ...] = ()
    """Words of a warning that is the cause of a timeout."""
    kind: tuple[str, ...] = ()
    """Regular expressions of the line of an error. They count only where no ending has words."""
    early: bool = False
    """What comes before the program, and is over when that starts."""
    unless: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    """The endings that are its own trace."""
    exit_codes: tuple[int, ...] = ()
    """Of any program."""
    trainer_codes: tuple[int, ...] = ()
    """Of our trainer."""
    states: tuple[str, ...] = ()
    """Those of a job that did not fail; its ending has no source."""


@dataclass(frozen=True)
class Match:
    ending: Ending
    index: int
    """Of the line."""
    column: int
    """Of the words in it."""
    warning: bool = False
    """A program often survives this."""
    slows: bool = False
    """And is slow from then on."""


def find(lines: Sequence[str]) -> tuple[Match, ...]:
    """Return every line that speaks for an ending, in the lines' order.

    A training says the same line with other numbers for hours, so words are looked for in each
    shape of a line once. Words in a line are in its shape, without their numbers.
    """
    lowered, shapes = [line.lower() for line in lines], defaultdict(list)
    for index, line in enumerate(lowered):
        shapes[_NUMBER.sub("0", line)].append(index)
    text = "\n".join(shapes)
    matches = [
        Match(ending, index, column, warning, slows)
        for ending, warning, slows, words, first in _words()
        if first in text
        for shape, members in shapes.items()
        if first in shape
        for index in members
        if (column := _column(lowered[index], words)) >= 0
    ]
    for index, column, code in signalled(lines):
        if ending := of_code(code, ours=False):
            matches.append(Match(ending, index, column))
    left = [
        match
        for match in matches
        if not any(words in lowered[match.index] for words in match.ending.unless)
    ]
    return tuple(sorted(left, key=lambda match: (match.index, match.column)))


def of_kind(error: str) -> Iterator[Ending]:
    """Yield the endings of whose kind the line of an error is, in the table's order."""
    lowered = error.lower()
    for ending, kind in _kinds():
        if kind.search(lowered) and not any(words in lowered for words in ending.unless):
            yield ending


def of_code(code: int, ours: bool) -> Ending | None:
    """Return the ending that an exit code suggests. ours: the program is our trainer."""
    for ending in endings():
        if code in ending.exit_codes or (ours and code in ending.trainer_codes):
            return ending
    return None


def of_state(state: str) -> Ending | None:
    """Return the ending of a job in this state; None for one that failed or is not known."""
    return next((ending for ending in endings() if state in ending.states), None)


def named(name: str) -> Ending:
    """Return the ending of that name. Raises StopIteration."""
    return next(ending for ending in endings() if ending.name == name)


def _column(line: str, words: tuple[str, ...]) -> int:
    """Return where these words begin in a line, in their order; -1 where they do not."""
    start = line.find(words[0])
    behind = start + len(words[0])
    for part in words[1:] if start >= 0 else ():
        behind = line.find(part, behind)
        if behind < 0:
            return -1
        behind += len(part)
    return start


@cache
def _words() -> tuple[tuple[Ending, bool, bool, tuple[str, ...], str], ...]:
    """Return each ending with its words, whether they are a warning and slow, and the shape of the
    first."""
    return tuple(
        (ending, warning, slows, words, _NUMBER.sub("0", words[0]))
        for ending in endings()
        for warning, slows, needles in (
            (False, False, ending.says),
            (True, False, ending.warns),
            (True, True, ending.slows),
        )
        for words in (tuple(needle.lower().split(GAP)) for needle in needles)
    )


@cache
def _kinds() -> tuple[tuple[Ending, re.Pattern[str]], ...]:
    return tuple((ending, re.compile("|".join(ending.kind))) for ending in endings() if ending.kind)


@cache
def endings() -> tuple[Ending, ...]:
    """Return the table, read once a process, and the combinations that are known to fail."""
    table = TypeAdapter(tuple[Ending, ...]).validate_python(read_table(FILE)["endings"])
    return (*table, *(_of_known_bad(row) for row in known_bad.rows() if row.says or row.warns))


def _of_known_bad(row: KnownBad) -> Ending:
    """Return the ending that a combination of versions has. It wins over what names it less
    exactly."""
    return Ending(
        name=row.name,
        happened=f"The image's versions fail together: {row.seen}. What is known: {row.known}.",
        do=f"Take {row.instead}. `builder prove` asks the same table of any image.",
        source=row.source,
        says=row.says,
        warns=row.warns,
        over=("crash", "versions", "no-kernels"),
    )


# --- exit codes in words --------------------------------------------------------------------------

SIGNALLED = 128
"""A shell tells a signal as this code and the signal's number."""
_FATAL = (
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
)
"""The signals that tell something. SIGTERM and SIGINT are also how launchers end the others."""

_WORDS = re.compile(
    r"\b(?:exit(?:s|ed|ing)?|terminated|died|killed|return(?:s|ed)?|failed|received)\b[^\n]{0,40}?"
    r"\b(?P<kind>code|status|signal|signals)\b[ :=.(<]*(?:signals\.)?(?P<value>-?\d+|sig[a-z]+)\b"
    r"|\bexit_?code[ '\"]*[:=]+ *(?P<code>-?\d+)\b"
    r"|\b(?:exited with|status of|code|returned)[ :]+(?P<number>13[2-9]|-(?:9|11))\b"
    r"|\bwtermsig (?P<term>\d+)\b"
    r"|^\s*(?P<killed>killed)\s*$|: line \d+: +\d+ +(?P<job>killed)\b",  # a shell's own words
    re.IGNORECASE,
)


def signalled(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield line, column and exit code (128 + signal) of each line that tells of a fatal signal."""
    for index, line in enumerate(lines):
        if words := _WORDS.search(line):
            code = _code(words)
            if code - SIGNALLED in _FATAL:
                yield index, words.start(), code


def _code(words: re.Match[str]) -> int:
    if words["term"]:
        return SIGNALLED + int(words["term"])
    value = words["code"] or words["number"] or words["value"] or "SIGKILL"
    if value.lower().startswith("sig"):
        return SIGNALLED + getattr(signal, value.upper(), 0)
    number = int(value)
    if number < 0 or (words["kind"] or "").lower().startswith("signal"):
        return SIGNALLED + abs(number)
    return number
