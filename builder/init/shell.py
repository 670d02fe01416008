"""The commands of a shell's text, each with its line: enough of a shell to read what is installed.

Nothing is run, and of what a shell would put in only the variables that are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

_MACHINE: Final = {
    r"\$\((uname -[mp]|arch)\)": "x86_64",
    r"\$\(dpkg --print-architecture\)|\$\{?TARGETARCH\}?(?!\w)": "amd64",
    r"\$\{?TARGETPLATFORM\}?(?!\w)": "linux/amd64",
    r"\$\(uname -s\)|\$\{?TARGETOS\}?(?!\w)": "Linux",
}
"""What a shell and BuildKit would put in."""
_ASKS: Final = re.compile(
    r"(?:.*/)?(?:command|which|type|hash|[ef]?grep|dpkg|nvidia-smi|cmp|diff|id|ls|read|\(\(.*)"
)
"""Commands whose failure is an answer, and no fault of the build."""
_TOKEN: Final = re.compile(
    r"(?P<ends>[ \t\r]+|&&|\|\||;;|[;&|()\n])|(?P<opens>['\"`]|\$\()"
    r"|\\.?|[^ \t\r\n;&|()'\"`$\\]+|\$",
    re.DOTALL,
)
_LONGEST: Final = 10_000
_DEEPEST: Final = 50
"""How many quotations and substitutions may stand in each other."""
_REDIRECTION: Final = re.compile(r"\d*(&?>>?|<)(&\d|-)?")


class _Operator(str):
    """What ends a command: `;`, `&&`, `||`, `|`, a parenthesis, the end of a line."""


_Commands = Generator[tuple[int, tuple[str, ...], str], None, bool | None]
"""Commands; then whether they succeed, None where that is not known."""


Exists = Callable[[str], bool | None]
"""Whether there is a file of this path; None where that is not known."""


def script(
    text: str, first: int, variables: Mapping[str, str], exists: Exists = lambda _: None
) -> _Commands:
    """Yield each command of a script with the line that it begins in, and why it is never run, ""
    where it may be.

    The words of `if`, `for` and the others are no commands; what a loop does is yielded once for
    each value. text: its lines; a backslash continues one. first: the number of its first line.
    variables: those that are known; a reader may add to them meanwhile. exists: what `[ -f` asks.
    """
    reader = _Reader([*_tokens(text, first), (_Operator("\n"), 0)], variables, exists)
    return (yield from reader.commands("", ""))


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the values of the variables that are known; the others stay, as all do
    where it would be longer than _LONGEST."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name) or (
            variables.get(name, match[0]) if default is None else default
        )

    now = re.sub(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))", value, text)
    return now if len(now) < max(_LONGEST, 2 * len(text)) else text


@dataclass
class _Reader:
    tokens: list[tuple[str, int]]
    variables: Mapping[str, str]
    exists: Exists
    loops: dict[str, str] = field(default_factory=dict)
    """The values of the variables of loops."""
    times: int = 500
    """How often what a loop does is yielded at most."""
    position: int = 0
    depth: int = 0
    end: str = ""
    """What ended the last commands."""
    test: str = ""
    """The last command that may be run."""

    def commands(self, never: str, *ends: str) -> _Commands:
        """Yield the commands up to one of `ends`. never: why none of them is ever run."""
        joint, began, negated, last, self.end = ";", False, False, "", ""
        result: bool | None = True
        while self.position < len(self.tokens) and not self.end:
            token, line = self.tokens[self.position]
            self.position += 1
            if token in ends:
                self.end = token
            elif isinstance(token, _Operator) and token != "(":
                if token != "\n" or began:  # a line may end behind `&&`
                    joint, began = token if token in {"&&", "||", "|"} else ";", False
            elif token == "!":
                negated = not negated
            else:
                if joint != "|":
                    last = never or self._why(joint, result)
                unsure, began = joint in {"&&", "||"} and result is None, True
                now = yield from self._command(token, line, last)
                if not last:
                    result = None if unsure or now is None else now != negated
                negated = False
        return result

    def _why(self, joint: str, result: bool | None) -> str:
        """Return why a command behind an operator is never run."""
        if joint == "&&" and result is False:
            return f"is run only if {self.test}"
        return f"is run only if {self.test} fails" if joint == "||" and result else ""

    def _command(self, token: str, line: int, never: str) -> _Commands:
        if token not in {"if", "for", "while", "until", "case", "{", "("} or self.depth > _DEEPEST:
            self.position -= token != "("
            words = _without_redirections(self._words())
            inside = tuple(expanded(word, self._values()) for word in words)
            if not never:
                self.test = " ".join(inside)
            if now := self._split(words):
                yield line, now, never
            return _holds(inside, self.exists) if inside else True
        self.depth += 1
        result: bool | None = True
        if token == "if":
            yield from self._if(never)
        elif token == "case":
            yield from self._case(never)
        elif token in {"{", "("}:
            result = yield from self.commands(never, "}" if token == "{" else ")")
        else:
            words = self._split(self._words()) if token == "for" else ()
            literal = len(words) < self.times and not set("".join(words[2:])) & set("$`*?")
            values = words[2:] if literal else ()
            yield from self.commands(never, "do")
            begins, loops, times = self.position, self.loops, self.times
            self.times //= len(values) or 1
            for value in values or [""]:
                self.position = begins
                self.loops = {**loops, words[0]: value} if value else loops
                yield from self.commands(never, "done")
            self.times, self.loops = times, loops
        self.depth -= 1
        self.end = ""
        return result

    def _if(self, never: str) -> _Commands:
        branch, test = "if", ""
        done: bool | None = False
        while branch in {"if", "elif", "else"}:
            holds = True if branch == "else" else (yield from self.commands(never, "then"))
            test = f"not {test}" if branch == "else" else self.test
            why, done = _branch(done, holds, test)
            yield from self.commands(never or why, "elif", "else", "fi")
            branch = self.end
        return True

    def _case(self, never: str) -> _Commands:
        subject, *patterns = [expanded(word, self._values()) for word in self._words()] or [""]
        subject, patterns = _on_machine(subject), patterns[1:]
        done: bool | None = False
        while self.end != "esac" and self.position < len(self.tokens):
            token, _ = self.tokens[self.position]
            self.position += 1
            if token == "esac":
                break
            if token != ")":
                patterns += [] if isinstance(token, _Operator) else [token]
                continue
            known = "$" not in "".join((subject, *patterns))
            holds = any(fnmatchcase(subject, each) for each in patterns) if known else None
            why, done = _branch(done, holds, f"{subject} is {' or '.join(patterns)}")
            yield from self.commands(never or why, ";;", "esac")
            patterns = []
        return True

    def _words(self) -> list[str]:
        """Take the words up to an operator."""
        begins = self.position
        while not isinstance(self.tokens[self.position][0], _Operator):
            self.position += 1
        return [word for word, _ in self.tokens[begins : self.position]]

    def _values(self) -> Mapping[str, str]:
        return {**self.variables, **self.loops}

    def _split(self, words: Iterable[str]) -> tuple[str, ...]:
        """Return words with the values of variables; a shell splits what a variable alone says."""
        found = list[str]()
        for word in words:
            now = expanded(word, self._values())
            alone = re.fullmatch(r"\$\{?\w+\}?", word) and "$(" not in now
            found += now.split() if alone else [now]
        return tuple(found)


def _branch(done: bool | None, holds: bool | None, test: str) -> tuple[str, bool | None]:
    """Return why a branch is never run, and whether this one or one before is; None where that is
    not known."""
    run = False if done or holds is False else holds if done is False else None
    return f"is run only if {test}" if run is False else "", None if done is None else done or run


def _holds(words: Sequence[str], exists: Exists) -> bool | None:
    """Return whether a command succeeds, as one of a build has to; of a test, whether it holds, and
    None where that is not known."""
    if words[0] not in {"[", "[[", "test"}:
        asks = _ASKS.fullmatch(words[0]) or (len(words) > 1 and words[1] == "-c")
        return False if words[0] == "false" else None if asks else True
    inside = [_on_machine(word) for word in words[1:] if word not in {"]", "]]"}]
    if any(set(word) & set("$`*?") for word in inside):
        return None
    match inside:
        case ["!", *others] if others:
            holds = _holds(["test", *others], exists)
            return None if holds is None else not holds
        case ["-f" | "-s", path]:
            return exists(path)
        case ["-e" | "-r", path]:
            return exists(path) or None  # a folder, perhaps
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


def _on_machine(word: str) -> str:
    for pattern, value in _MACHINE.items():
        word = re.sub(pattern, value, word)
    return word


def _without_redirections(words: Sequence[str]) -> tuple[str, ...]:
    kept, rest = list[str](), iter(words)
    for word in rest:
        match = _REDIRECTION.match(word)
        if match is None:
            kept.append(word)
        elif match.end() == len(word) and not match[2]:
            next(rest, None)  # the file
    return tuple(kept)


def _tokens(text: str, line: int) -> Iterator[tuple[str, int]]:
    """Yield the words, and an _Operator where a command ends, each with its line."""
    word: str | None = None
    position = 0
    while match := _TOKEN.match(text, position):
        begins, position = match.span()
        if match["ends"] and not (match["ends"] == "&" and word and word.endswith((">", "<"))):
            if word is not None:
                yield word, line
            if match["ends"].strip(" \t\r"):
                yield _Operator(match["ends"]), line
            word = None
        elif match[0].startswith("#") and word is None:
            position = text.find("\n", begins) % (len(text) + 1)
        elif match["opens"]:
            inner, position = _quoted(text, begins)
            word = (word or "") + inner
        elif match[0] != "\\\n":
            word = (word or "") + match[0].removeprefix("\\")
        line += text.count("\n", begins, position)
    if word is not None:
        yield word, line


def _quoted(text: str, start: int, depth: int = 0) -> tuple[str, int]:
    """Return what a quotation or a substitution that begins at `start` says, and where it ends."""
    opening, inner, opened = text[start], "", 1
    position = start + 1 + (opening == "$")
    while position < len(text):
        character, at = text[position], position
        opened += {"(": 1, ")": -1}.get(character, 0) if opening == "$" else 0
        position += 1
        if not opened or character == opening != "$":
            break
        quotes = character in "'\"" if opening == "$" else opening == '"'
        if quotes and (opening == "$" or text.startswith("$(", at)) and depth < _DEEPEST:
            _, position = _quoted(text, at, depth + 1)
        elif opening == '"' and character == "\\" and position < len(text):
            at += text[position] in '"\\$`\n'
            position += 1
        inner += text[at:position]
    whole = {"$": text[start:position], "`": f"`{inner}`"}
    return whole.get(opening, inner), position
