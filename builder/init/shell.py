"""The commands of a shell's text, each with its line: enough of a shell to read what is installed.

Nothing is expanded, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_MACHINE: Final = {
    r"\$\((uname -[mp]|arch)\)": "x86_64",
    r"\$\(dpkg --print-architecture\)|\$\{?TARGETARCH\}?(?!\w)": "amd64",
    r"\$\{?TARGETPLATFORM\}?(?!\w)": "linux/amd64",
    r"\$\(uname -s\)|\$\{?TARGETOS\}?(?!\w)": "Linux",
}
"""What a shell and BuildKit would put in."""
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


@dataclass
class Branches:
    """Where the commands of a text stand in `if` and `else`."""

    opened: list[tuple[str, bool | None, bool | None]] = field(default_factory=list)
    """Of each `if` that is open: the test of this branch, whether it is run, and whether this or
    one before is; None where that is not known."""
    begun: bool = False
    """Whether the test may go on: `if a && b`."""

    def follow(self, words: Sequence[str]) -> str:
        """Take the next command. Return why it is never run, "" where it may be."""
        name, test = words[0], " ".join(words[1:])
        if name == "if":
            self.opened.append((test, _holds(words[1:]), _holds(words[1:])))
        elif name in {"elif", "else"} and self.opened:
            before, _, done = self.opened.pop()
            test, now = (test, _holds(words[1:])) if name == "elif" else (f"not {before}", True)
            run = False if done or now is False else now if done is False else None
            self.opened.append((test, run, done or run if done is not None else None))
        elif name == "fi" and self.opened:
            self.opened.pop()
        elif name != "then" and self.begun and self.opened:
            self.opened[-1] = (self.opened[-1][0], None, None)
        self.begun = name in {"if", "elif"} or (self.begun and name != "then")
        never = next((test for test, run, _ in self.opened if run is False), None)
        return f"is run only if {never}" if never is not None and not self.begun else ""


def _holds(words: Sequence[str]) -> bool | None:
    """Return whether a test of texts holds; None for another one."""
    if len(words) > 1 and words[0] == "!":
        inner = _holds(words[1:])
        return None if inner is None else not inner
    if not words or words[0] not in {"[", "[[", "test"}:
        return None
    inside = [word for word in words[1:] if word not in {"]", "]]"}]
    for pattern, value in _MACHINE.items():
        inside = [re.sub(pattern, value, word) for word in inside]
    if any(set(word) & set("$`*?") for word in inside):
        return None
    match inside:
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [one, "=" | "==" | "-eq", other]:
            return one == other
        case [one, "!=" | "-ne", other]:
            return one != other
        case [text, "=~", part] if re.fullmatch(r"[\w-]+", part):
            return part in text
    return None


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
