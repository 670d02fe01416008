"""A page about images: for a terminal, in Markdown for a CI run, and as one HTML file.

The HTML runs no script and loads nothing. Its words may come from a stranger's image: they are
escaped, one line each, without credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from builder.core import display
from builder.core.display import masked, size

Rows = Sequence[Sequence[str]]

MOST: Final = 500
"""Rows of a table that are shown; JSON has all."""
_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>|~#!&$])|:(?=//)|(?<=www)\.")
"""What Markdown takes for more than text; without it, addresses are no links."""
_GOOD: Final = ("passed", "proven", "native", "older minor", "same")
_NONE: Final = ("not there", "not followed", "not asked", "no code", "not used", "changed")


@dataclass(frozen=True)
class Bar:
    name: str
    parts: Mapping[str, int]
    """Kind -> bytes."""
    note: str = ""

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Section:
    """A part of a page: a sentence, a table, or bars. One with neither rows nor bars and without a
    sentence is left out."""

    title: str
    text: str = ""
    head: Sequence[str] = ()
    rows: Rows = ()
    bars: Sequence[Bar] = ()
    folded: bool = False
    """Only the title is seen at first."""
    matrix: bool = False
    """The cells are answers, seen by their colours."""
    summed: bool = True
    """The bars are parts of one whole."""

    @property
    def totals(self) -> Mapping[str, int]:
        kinds = dict.fromkeys(kind for bar in self.bars for kind in bar.parts)
        sums = {kind: sum(bar.parts.get(kind, 0) for bar in self.bars) for kind in kinds}
        return {kind: count for kind, count in sums.items() if count}

    @property
    def widest(self) -> int:
        return max((bar.bytes for bar in self.bars), default=0) or 1

    @property
    def table(self) -> tuple[Sequence[str], Rows]:
        """Head and rows without empty columns; those of the bars where it has bars."""
        head, rows = self.head, self.rows
        if self.bars:
            kinds = list(self.totals) if len(self.totals) > 1 else []
            head = ["", *kinds, "bytes", ""]
            rows = [_row(bar, kinds) for bar in self.bars]
        used = [n for n in range(len(head)) if any(row[n] for row in rows)]
        kept = [[row[n] for n in used] for row in rows[:MOST]]
        if len(rows) > MOST:
            kept.append([f"and {len(rows) - MOST:,} more", *[""] * (len(used) - 1)])
        return [head[n] for n in used], kept


def _row(bar: Bar, kinds: Sequence[str]) -> list[str]:
    parts = [size(bar.parts[kind]) if bar.parts.get(kind) else "" for kind in kinds]
    return [bar.name, *parts, size(bar.bytes), bar.note]


@dataclass(frozen=True)
class Page:
    """What is told of an image, or of two."""

    title: str
    state: str
    facts: Mapping[str, str]
    problem: str = ""
    """Why nothing proves it."""
    sections: Sequence[Section] = ()

    @property
    def told(self) -> Iterator[Section]:
        """The sections that say something."""
        return (each for each in self.sections if each.text or each.rows or each.bars)


def lines(page: Page) -> Iterator[str]:
    """Yield the page for a terminal; of what is folded, the title."""
    yield f"{page.title}: {page.state}"
    yield from display.columns(("", *fact) for fact in page.facts.items() if fact[1])
    yield from filter(None, [page.problem])
    for section in page.told:
        yield ""
        yield section.title
        yield from (f"  {text}" for text in filter(None, [section.text]))
        head, rows = section.table if not section.folded else ((), ())
        named = [head] if section.bars or section.matrix else []
        yield from (display.columns(["", *row] for row in (*named, *rows)) if rows else ())


def markdown(page: Page) -> str:
    out = [f"## {_mark(page.title)}: {_mark(page.state)}", ""]
    out += _table(["", ""], [fact for fact in page.facts.items() if fact[1]])
    out += [_mark(page.problem), ""] if page.problem else []
    for section in page.told:
        if section.folded:
            title = escape(display.line(masked(section.title)))  # no Markdown counts beside a tag
            out += [f"<details><summary>{title}</summary>", ""]
        else:
            out += [f"### {_mark(section.title)}", ""]
        out += [_mark(section.text), ""] if section.text else []
        head, rows = section.table
        out += _table(head, rows) if rows else []
        out += ["</details>", ""] if section.folded else []
    return "\n".join(out) + "\n"


def _table(head: Sequence[str], rows: Rows) -> list[str]:
    top, *below = (f"| {' | '.join(map(_mark, row))} |" for row in (head, *rows))
    return [top, f"|{' --- |' * len(head)}", *below, ""]


def _mark(text: str) -> str:
    """Return a text as Markdown shows it, whatever it holds."""
    return _MARKS.sub(r"\\\g<0>", display.line(masked(text)))


def html(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: display.plain(masked(value)) if type(value) is str else value,
    )
    environment.filters |= {"size": size, "look": _look}
    return environment.get_template("page.html.j2").render(page=page).lstrip()


def _look(answer: str) -> str:
    """Return the class of an answer's colour."""
    if answer.startswith(_GOOD):
        return "good"
    if answer.startswith("PTX"):
        return "slow"
    return "none" if answer.startswith(_NONE) else "bad"
