"""A log as lines that are safe to search and to show: bounded in size, without control codes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import IO

HEAD = 10_000
"""Lines that are kept of a log's beginning: what a program finds when it starts."""
TAIL = 50_000
"""Lines that are kept of its end."""
LONGEST = 1 << 16
"""Bytes of one line."""
LONG = 8000
"""Characters that are kept of each end of a line."""
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


def harmless(text: str) -> str:
    """Return the text without terminal escapes and control characters; line breaks stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _BLANKS.sub(" ", _CONTROLS.sub("", text))


def read(file: IO[bytes]) -> tuple[list[tuple[int, str]], int]:
    """Return the first HEAD and the last TAIL lines of a stream with their numbers from 1, and how
    many lines between them were skipped. Blank lines are left out.

    Reads it to its end, and holds no more than that in memory. Bytes that are not UTF-8 become
    question marks. A line of more than LONGEST bytes counts as several.
    """
    head: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    count = 0
    for number, content in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
        if content.strip():
            (head if len(head) < HEAD else tail).append((number, content))
            count += 1
    lines = [(number, _decoded(content)) for number, content in (*head, *tail)]
    return [line for line in lines if line[1]], count - len(lines)


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
