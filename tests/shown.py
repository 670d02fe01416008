"""What a whole command shows, as one text that a snapshot holds.

pytest --inline-snapshot=fix writes the snapshots of changed commands anew; read them in the diff.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from builder import __version__

WIDTH = 84
"""Columns. A longer line goes on in the next one, behind dots."""

CHANGES = {
    re.escape(__version__): "VERSION",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?": "TIME",
    r"\b\d+(\.\d+)? s\b(?! after)": "N s",
    r"(127\.0\.0\.1|localhost):\d+": r"\1:PORT",
    r"sha256:[0-9a-f]{64}": "sha256:DIGEST",
    r"\b[0-9a-f]{64}\b": "DIGEST",
    r"\b[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\b": "UUID",
}
"""What differs from one run to the next, and what stands in its place."""


def shown(ended: tuple[int, str, str], changes: Mapping[str, str] | None = None) -> str:
    """Return what a command left: stdout, stderr behind a bar, its exit code where it is not 0.

    ended: of the fixture `builder`. changes: more that differs, by its regular expression.
    """
    code, out, err = ended
    lines = [*out.splitlines(), *(f"| {line}".rstrip() for line in err.splitlines())]
    text = "\n".join([*lines, f"exit code {code}"] if code else lines)
    text = text.replace(str(Path.cwd()), "HERE")
    for pattern, instead in {**(changes or {}), **CHANGES}.items():
        text = re.sub(pattern, instead, text)
    return "".join(f"{_folded(line)}\n" for line in text.splitlines())


def unlike(text: str, other: str) -> str:
    """Return the lines of a text that another has not, behind a plus, and the other's behind a
    minus."""
    lines = difflib.ndiff(other.splitlines(keepends=True), text.splitlines(keepends=True))
    return "".join(line for line in lines if line[0] in "+-")


def _folded(line: str) -> str:
    """Return a line, its part beyond WIDTH below it."""
    if len(line) <= WIDTH or " " not in line.lstrip("| "):
        return line
    more = "| .. " if line.startswith("| ") else ".. "
    return textwrap.fill(
        line, WIDTH, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )
