"""A log as lines that are safe to search and to show: bounded in size, without control codes."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import IO

HEAD = 1 << 20
"""Bytes that are read of a log's beginning: what a program finds when it starts."""
TAIL = 4 << 20
"""Bytes that are read of its end."""
CHUNK = 1 << 18
BINARY = 0.05
"""A line with a larger share of bytes that are no text is binary."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
LONG = 8000
"""Characters that are kept of each end of a line."""

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

    skipped: lines in the middle that were not read. binary: lines that are not text.
    """

    lines: tuple[tuple[int, str], ...]
    skipped: int = 0
    binary: int = 0


def harmless(text: str) -> str:
    """The text without terminal escapes and control characters; line breaks stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _BLANKS.sub(" ", _CONTROLS.sub("", text))


def read(file: IO[bytes], tail: int = TAIL) -> Text:
    """The first HEAD and the last `tail` bytes of a stream, as lines. Reads it to its end.

    Holds no more than that in memory. Bytes that are not UTF-8 become question marks.
    """
    head = b""
    while len(head) < HEAD and (chunk := file.read(HEAD - len(head))):
        head += chunk
    chunks: deque[bytes] = deque()
    size = breaks = dropped = 0
    while chunk := file.read(CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        while size - len(chunks[0]) >= tail:
            old = chunks.popleft()
            size -= len(old)
            dropped += len(old)
            breaks += old.count(b"\n")
    end = b"".join(chunks)
    if not dropped:
        return _text(_numbered(head + end, 1), 0)
    first, last = head.rpartition(b"\n")[0], end.partition(b"\n")[2]
    begin = head.count(b"\n") + breaks + 2  # the line after the one that was cut
    skipped = begin - 1 - head.count(b"\n")
    return _text([*_numbered(first, 1), *_numbered(last, begin)], skipped)


def _numbered(content: bytes, begin: int) -> list[tuple[int, str]]:
    lines = harmless(content.decode("utf-8", errors="replace")).split("\n")
    return [(begin + index, shortened(line)) for index, line in enumerate(lines) if line.strip()]


def _text(lines: list[tuple[int, str]], skipped: int) -> Text:
    readable = tuple(one for one in lines if one[1].count(UNREADABLE) <= len(one[1]) * BINARY)
    return Text(readable, skipped, len(lines) - len(readable))


def shortened(line: str) -> str:
    """A line of which the middle is left out where it is very long."""
    return line if len(line) <= 2 * LONG else f"{line[:LONG]} … {line[-LONG:]}"


def excerpt(line: str, column: int, width: int = 240) -> str:
    """The part of a line around a column, for a person to read."""
    line = " ".join(line.split()) if len(line) <= width else line
    if len(line) <= width:
        return line.strip()
    begin = max(0, min(column - width // 4, len(line) - width))
    part = " ".join(line[begin : begin + width].split())
    return f"{'… ' if begin else ''}{part}{' …' if begin + width < len(line) else ''}"
