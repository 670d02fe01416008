"""Text from elsewhere, as a person may see it: without credentials, without escape sequences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Self

# Each is linear: text from elsewhere may be a megabyte without a space.
_QUOTED: Final = re.compile(r"//[^\s/<>@]{0,500}['\",][^\s/<>]{0,500}@")
_WORD: Final = re.compile(r"[^\s'\"<>,]+")
_PORT: Final = re.compile(r"[^:/@]*:[0-9]+(/|$)")
_COMMAND: Final = re.compile(r"^(\s*)(::|##\[)", re.MULTILINE)
"""How a command to GitHub Actions or Azure Pipelines begins, which read what a step prints."""
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Annotation(str):
    """A command of our own to the service that reads the output; no text from elsewhere begins a
    line of it."""

    __slots__ = ()


def masked(text: str) -> str:
    """Return the text with the user and the password of each address in it as `***`.

    An address may lack its scheme, and a password may hold a slash or an @.
    """
    if "@" not in text:
        return text
    quoted = _QUOTED.sub("//***@", text)
    return _WORD.sub(lambda word: address(word[0]) if "@" in word[0][1:] else word[0], quoted)


def address(text: str) -> str:
    """Return one address with its user and password as `***`, whatever the password holds."""
    start = text.find("//") + 2 if "//" in text else 0
    head, rest = text[:start], text[start:]
    authority = rest.partition("/")[0]
    if "@" in authority and (head or ":" in authority.partition("@")[0]):
        user, _, host = authority.rpartition("@")
        if head or not host.startswith("sha256:"):
            return f"{head}***{rest[len(user) :]}"
    elif "@" in rest and ":" in authority and not _PORT.match(rest):  # a slash in the password
        return f"{head}***@{rest.rpartition('@')[2]}"
    return text


def plain(text: str) -> str:
    """Return the text without what moves a terminal's cursor, colours it, or commands the service
    that reads it; its lines stay."""
    shown = _SEQUENCE.sub("", text)
    shown = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in shown)
    return shown if isinstance(text, Annotation) else _COMMAND.sub(r"\1\\\2", shown)


def line(text: str) -> str:
    """Return the text as `plain` does, on one line, so that nothing in it passes for a line of the
    factory's own."""
    return type(text)(plain(text).replace("\n", "?"))


def size(count: float | None) -> str:
    """Return a number of bytes for people: "286.4 MB", in decimal units, as registries and disks
    use them."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.1f} {unit}" if unit in ("MB", "GB") else f"{count:.0f} {unit}"


def duration(seconds: float) -> str:
    """Return seconds for people: "0.4 s", "12 s", "3 min 05 s", "1 h 20 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest:02d} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a line for each row, its cells below those of the other rows."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


class Lines(str):
    """Several lines of an error, each by `line`: a line break in any other text is not ours."""

    __slots__ = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        return cls("\n".join(map(line, texts)))
