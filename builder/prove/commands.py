"""What an image starts, as far as its files and its configuration say it: each program on the way,
through shells, wrappers (tini, env) and an entry script's `exec`; and the account that runs it.

Nothing is expanded: a word with `$` says nothing. What a shell decides (`if`, `||`) is not
followed.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from builder.prove.image import Image
from builder.reading.layers import Entry

READ: Final = 4
EXECUTE: Final = 1

_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*$")
_SHELL: Final = re.compile(r"(ba|da|z|k|a)?sh$")
_LAUNCHERS: Final = re.compile(r"(torchrun|accelerate|deepspeed)$")
STARTERS: Final = ("horovodrun", "mpiexec", "mpiexec.hydra", "mpirun", "orterun", "srun")
"""Programs that start another one several times. Which of their words begin it, their own options
decide: what is followed is the first Python or shell among them."""
_WRAPPERS: Final = frozenset({"dumb-init", "env", "nice", "nohup", "setsid", "stdbuf", "tini"})
_PYTHONS_VALUES: Final = re.compile(r"-[A-Za-z]*[WX]|--check-hash-based-pycs")
_SHELLS_VALUES: Final = re.compile(r"[-+][A-Za-z]*[oO]|--(rcfile|init-file)")
"""Options that take the word after them."""
_SAID: Final = """
. : [ alias bg bind builtin declare dirs disown echo enable eval exit export false fg getopts hash
jobs kill let local logout mapfile popd printf pushd pwd read readonly return set shift shopt source
suspend test times trap true type typeset ulimit umask unalias unset wait
"""
_BUILTIN: Final = frozenset(_SAID.split())
"""What a shell does itself."""
_SAYS: Final = "! # [[ case command coproc for function if select time until while { }"
_DECIDES: Final = frozenset(_SAYS.split())
_ENDS: Final = re.compile(r"[()<>|&]+|;;+|\);?")
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
_EXEC: Final = re.compile(r"^exec\s+(?![<>\d]).+$", re.MULTILINE)
"""What a script becomes, whatever it decided before."""
_UNKNOWN: Final = re.compile(r"[$`*]")
_DEEPEST: Final = 6
_LONGEST_WORD: Final = 128 << 10
"""Linux starts nothing with a longer one (MAX_ARG_STRLEN)."""


@dataclass(frozen=True)
class Command:
    """Words that are started."""

    words: tuple[str, ...]
    folder: str
    in_shell: bool = False
    """A shell runs a script that has no first line itself."""

    @property
    def name(self) -> str:
        return posixpath.basename(self.words[0])

    @property
    def is_python(self) -> bool:
        return bool(_PYTHON.match(self.name))

    @property
    def is_shell(self) -> bool:
        return bool(_SHELL.match(self.name))

    @cached_property
    def target(self) -> tuple[str, int]:
        """What an interpreter is to run ("file", "module", "text" or ""), and at which word."""
        if _LAUNCHERS.match(self.name):
            files = (number for number, word in self._numbered if word.endswith(".py"))
            return next((("file", number) for number in files), ("", 0))
        skip = not (self.is_python or self.is_shell)
        valued = _PYTHONS_VALUES if self.is_python else _SHELLS_VALUES
        for number, word in () if skip else self._numbered:
            if number > 1 and valued.fullmatch(self.words[number - 1]):
                continue
            if re.fullmatch(r"-[A-Za-z]*m", word) and self.is_python:
                return "module", number + 1
            if re.fullmatch(r"-[A-Za-z]*c", word):
                return "text", number + 1
            if word == "-" or (self.is_shell and re.fullmatch(r"-[A-Za-z]*s", word)):
                break  # what comes in is run
            if not word.startswith(("-", "+")):
                return "file", number
        return "", 0

    @property
    def _numbered(self) -> list[tuple[int, str]]:
        return list(enumerate(self.words))[1:]

    def word(self, number: int) -> str:
        """Return a word; "" where there is none, or a shell's variable in it."""
        word = self.words[number] if number < len(self.words) else ""
        return "" if _UNKNOWN.search(word) else word


def started(image: Image) -> Iterator[Command]:
    words = [*(image.config.get("Entrypoint") or ()), *(image.config.get("Cmd") or ())]
    folder = str(image.config.get("WorkingDir") or "/")
    if words:
        yield from _follow(image, Command(tuple(map(str, words)), folder), _DEEPEST)


def _follow(image: Image, command: Command, depth: int) -> Iterator[Command]:
    yield command
    kind, at = command.target
    rest = command.words[1:]
    texts = image.tree.texts
    if not depth or command.is_python:
        return
    if command.name in _WRAPPERS:
        while rest and (rest[0].startswith("-") or _ASSIGNED.match(rest[0])):
            rest = rest[1:]
        if rest:
            yield from _follow(image, Command(rest, command.folder, command.in_shell), depth - 1)
    elif command.name in STARTERS:
        programs = [Command(rest[at:], command.folder) for at in range(len(rest))]
        if first := next((each for each in programs if each.is_python or each.is_shell), None):
            yield from _follow(image, first, depth - 1)
    elif command.is_shell and kind == "text":
        # Docker's words after the text are $0, $1 and so on
        text, arguments = command.words[at : at + 1], command.words[at + 2 :]
        yield from _in_shell(image, "".join(text), command.folder, arguments, depth)
    else:
        script = command.word(at) if command.is_shell else command.word(0)
        rest = command.words[at + 1 :] if command.is_shell else rest
        search = ":".join((command.folder, *image.search_path))
        file = image.tree.program(script, search, command.folder)
        lines = _EXEC.findall(texts.get(file or "", ""))
        if lines and _SHELL.search(texts[file or ""].split("\n")[0].strip()):
            yield from _in_shell(image, lines[-1], command.folder, rest, depth)


def _in_shell(
    image: Image, text: str, folder: str, arguments: Sequence[str], depth: int
) -> Iterator[Command]:
    if len(text) > _LONGEST_WORD:
        return
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        tokens = [*lexer, ";"]
    except ValueError:  # a quotation without an end
        return
    words: list[str] = []
    for token in tokens:
        ends = token != "&&" and _ENDS.fullmatch(token)
        if token not in (";", "&&") and not ends:
            words += arguments if token in ("$@", "$*") else [token]
            continue
        while words and (_ASSIGNED.match(words[0]) or words[0] == "exec"):
            words.pop(0)
        if token == "||" or (words and (token.startswith("(") or _is_unknown(words[0]))):
            return
        if words[:1] == ["cd"]:
            if len(words) < 2 or _UNKNOWN.search(words[1]):
                return
            folder = posixpath.join(folder, words[1])
        elif words and words[0] not in _BUILTIN:
            yield from _follow(image, Command(tuple(words), folder, in_shell=True), depth - 1)
        if ends:
            return
        words = []


def _is_unknown(word: str) -> bool:
    return word in _DECIDES or word.startswith("#") or bool(_UNKNOWN.search(word))


# --- the account ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    uid: int
    groups: frozenset[int]

    def may(self, entry: Entry, right: int) -> bool:
        """Tell whether it may read or execute a file, or enter a folder (path_resolution(7))."""
        if self.uid == 0:
            return right != EXECUTE or bool(entry.mode & 0o111)
        shift = 6 if entry.uid == self.uid else 3 if entry.gid in self.groups else 0
        return bool(entry.mode >> shift & right)


def account(image: Image) -> Account | None:
    """Return the account of the image's user; None for a name that its /etc/passwd has not.

    As runc does: a number without a row has group 0, and /etc/group adds to those of a row.
    """
    user, _, group = str(image.config.get("User") or "0").partition(":")
    rows = [line.split(":") for line in image.tree.texts.get("/etc/passwd", "").splitlines()]
    rows = [row for row in rows if len(row) > 3 and row[2].isdecimal() and row[3].isdecimal()]
    row = next((row for row in rows if user in (row[0], row[2])), None)
    if row is None and not user.isdecimal():
        return Account(0, frozenset({0})) if user == "root" else None
    named = [line.split(":") for line in image.tree.texts.get("/etc/group", "").splitlines()]
    groups = [each for each in named if len(each) > 3 and each[2].isdecimal()]
    more = {int(each[2]) for each in groups if row and row[0] in each[3].split(",")}
    own = {int(group)} if group.isdecimal() else {int(e[2]) for e in groups if e[0] == group}
    first = own if group else {int(row[3])} if row else {0}
    return Account(int(row[2]) if row else int(user), frozenset(first | (set() if group else more)))


def barred(image: Image, who: Account, path: str) -> str:
    """Return the first folder on the way to a file that an account may not enter; "" for none."""
    for at in image.tree.visited(path):
        folder = image.tree.folders.get(posixpath.dirname(at))
        if folder and not who.may(folder, EXECUTE):
            return posixpath.dirname(at)
    return ""
