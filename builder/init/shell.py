"""The commands of a shell's text, each with its line: enough of a shell to read what is installed.

Nothing is expanded, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_REDIRECTION: Final = re.compile(r"\d*(&?>>?|<)(&\d|-)?")


def commands(text: str, first: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each command of a text with the line that it begins in.

    text: its lines; a backslash continues one. first: the number of its first line.
    """
    begins, words = 0, list[str]()
    for token, line in (*_tokens(text, first), (None, 0)):
        if token is not None:
            begins = begins or line
            words.append(token)
        else:
            if command := _without_redirections(words):
                yield begins, command
            begins, words = 0, []


def _without_redirections(words: list[str]) -> tuple[str, ...]:
    kept, rest = list[str](), iter(words)
    for word in rest:
        match = _REDIRECTION.match(word)
        if match is None:
            kept.append(word)
        elif match.end() == len(word) and not match[2]:
            next(rest, None)  # the file
    return tuple(kept)


def _tokens(text: str, line: int) -> Iterator[tuple[str | None, int]]:
    """Yield the words, and None where a command ends, each with its line."""
    word: str | None = None
    position = 0
    while position < len(text):
        character, at = text[position], position
        position += 1
        if text.startswith("\\\n", at):
            position, line = at + 2, line + 1
        elif character == "\\":
            word = (word or "") + text[position : position + 1]
            position += 1
        elif character in "'\"`" or text.startswith("$(", at):
            inner, position = _quoted(text, at)
            word = (word or "") + inner
            line += text.count("\n", at, position)
        elif character == "#" and word is None:
            position = text.find("\n", at) % (len(text) + 1)
        elif character in "&" and word is not None and word.endswith((">", "<")):
            word += character
        elif character in " \t\r" or character in "\n;&|()":
            if word is not None:
                yield word, line
            word = None
            if character not in " \t\r":
                yield None, line
            line += character == "\n"
        else:
            word = (word or "") + character
    if word is not None:
        yield word, line


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return what a quotation or a substitution that begins at `start` says, and where it ends."""
    opening = text[start]
    if opening == "$":
        depth, position = 0, start + 1
        while position < len(text):
            depth += {"(": 1, ")": -1}.get(text[position], 0)
            position += 1
            if not depth:
                break
        return text[start:position], position
    inner, position = "", start + 1
    while position < len(text) and text[position] != opening:
        if opening == '"' and text[position] == "\\" and text[position + 1 : position + 2]:
            position += 1
            if text[position] not in '"\\$`\n':
                inner += "\\"
        inner += text[position]
        position += 1
    kept = f"`{inner}`" if opening == "`" else inner
    return kept, position + 1
