"""A log as lines that are safe to search and to show: bounded in size, without control codes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

HEAD = 10_000
"""Lines that are kept of a log's beginning: what a program finds when it starts."""
TAIL = 50_000
"""Lines that are kept of its end."""
BINARY = 0.05
"""A line with a larger share of bytes that are no text is binary."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
LONG = 8000
"""Characters that are kept of each end of a line."""
PIECE = 1 << 16
"""Bytes of a line that are read at once."""
WIDTH = 240
"""Characters of an excerpt."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]?"  # all others
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
"""Control characters, those without width and those that turn the direction of writing."""
_BLANKS = re.compile(r"[\t\r\u2028\u2029]")


@dataclass(frozen=True)
class Text:
    """Lines with their numbers (from 1), without blank ones.

    skipped: lines in the middle that were not kept. binary: lines that are not text.
    """

    lines: tuple[tuple[int, str], ...]
    skipped: int = 0
    binary: int = 0


def harmless(text: str) -> str:
    """Return the text without terminal escapes and control characters; line breaks stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _BLANKS.sub(" ", _CONTROLS.sub("", text))


def read(file: IO[bytes]) -> Text:
    """Return the first HEAD and the last TAIL lines of a stream. Reads it to its end.

    Holds no more than that in memory. Bytes that are not UTF-8 become question marks.
    """
    head: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    count = 0
    for number, content in _numbered(file):
        (head if len(head) < HEAD else tail).append((number, content))
        count += 1
    decoded = [(number, _decoded(content)) for number, content in (*head, *tail)]
    lines = [(number, line) for number, line in decoded if line.strip()]
    readable = [line for line in lines if line[1].count(UNREADABLE) <= len(line[1]) * BINARY]
    return Text(tuple(readable), count - len(decoded), len(lines) - len(readable))


def _numbered(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, each with its number; of a long one its two ends."""
    number, first, last = 1, b"", b""
    while piece := file.readline(PIECE):
        first, last = (first, (last + piece)[-PIECE:]) if first else (piece, b"")
        if piece.endswith(b"\n"):
            if (content := first + last).strip():
                yield number, content
            number, first, last = number + 1, b"", b""
    if (content := first + last).strip():
        yield number, content


def _decoded(content: bytes) -> str:
    text = harmless(content.decode("utf-8", errors="replace"))
    return shortened(text.replace("\n", " ")).rstrip()


def parts(words: str) -> Iterator[str]:
    """Yield each line of a message that is not blank, harmless and not too long."""
    for part in harmless(words).split("\n"):
        if part.strip():
            yield shortened(part)


def shortened(line: str) -> str:
    """Return a line without its middle where it is very long."""
    return line if len(line) <= 2 * LONG else f"{line[:LONG]} … {line[-LONG:]}"


def excerpt(line: str, column: int) -> str:
    """Return the part of a line around a column, for a person to read."""
    line = " ".join(line.split()) if len(line) <= WIDTH else line
    if len(line) <= WIDTH:
        return line.strip()
    begin = max(0, min(column - WIDTH // 4, len(line) - WIDTH))
    part = " ".join(line[begin : begin + WIDTH].split())
    return f"{'… ' if begin else ''}{part}{' …' if begin + WIDTH < len(line) else ''}"
