"""A build's source: the files that belong to it, and one archive of them, as gcloud makes it.

.gcloudignore has gitignore's syntax and one more rule, `#!include:FILE` (same folder, one level).
Without .gcloudignore, a folder that has .git or .gitignore leaves out both and what .gitignore
names. Any other folder is taken whole. A folder that is left out stays out with everything in it,
whatever later rules say. Links are followed (google-cloud-sdk, command_lib/util/gcloudignore.py).

Unlike gcloud, this writes no .gcloudignore into the project. The archive is a function of its
contents only: the same tree gives the same bytes.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from builder.core import outgoing
from builder.core.errors import InputError

IGNORE_FILE = ".gcloudignore"
INCLUDE = "!include:"
GIT_FILES = (".git", ".gitignore")
DEFAULT_LINES = (IGNORE_FILE, *GIT_FILES)
"""What gcloud leaves out of a git repository without a .gcloudignore."""


# --- what belongs to it ---------------------------------------------------------------------------


def rules(folder: Path) -> tuple[str, ...]:
    """The lines that say what is left out of `folder`, with the included files' lines.

    Raises InputError for an include that is not a readable file of the same folder.
    """
    file = folder / IGNORE_FILE
    if file.is_file():
        return tuple(_lines(file, includes=True))
    if not any((folder / name).exists() for name in GIT_FILES):
        return ()
    git = folder / ".gitignore"
    return (*DEFAULT_LINES, *(_lines(git, includes=False) if git.is_file() else ()))


def _lines(file: Path, includes: bool) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{file.name}: cannot be read: {reason}", f"mend {file.name}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            yield line
        elif includes and line[1:].lstrip().startswith(INCLUDE):
            name = line[1:].lstrip().removeprefix(INCLUDE).strip()
            where = f"{file.name}:{number}: #{INCLUDE}{name}"
            if "/" in name or not name:
                raise InputError(
                    f"{where}: only a file of the same folder can be included",
                    "name a file beside it, for example #!include:.gitignore",
                )
            if not (file.parent / name).is_file():
                raise InputError(f"{where}: there is no such file", "correct it, or drop the line")
            yield from _lines(file.parent / name, includes=False)


@dataclass(frozen=True)
class Rule:
    """One pattern. shape: matches a whole path; a folder's path has no slash at its end."""

    shape: re.Pattern[str]
    folders_only: bool
    takes_back: bool


def rule(line: str) -> Rule | None:
    """The rule of a line of gitignore's syntax (git's documentation, gitignore(5)).

    None for a comment, an empty line, and a broken pattern (an open bracket, a lone backslash at
    the end).
    """
    line = re.sub(r"(?<!\\)((?:\\\\)*)[ \t]+$", r"\1", line)
    takes_back = line.startswith("!")
    line = line[1:] if takes_back else line
    folders_only = line.endswith("/")
    line = line.rstrip("/") if folders_only else line
    if not line or line.startswith("#"):
        return None
    anchored = "/" in line
    shape = "" if anchored else "(?:.*/)?"
    rest = line.removeprefix("/")
    at = 0
    while at < len(rest):
        here = rest[at]
        if at == 0 and rest.startswith("**/"):
            shape, at = shape + "(?:.*/)?", 3
        elif rest.startswith("/**/", at):
            shape, at = shape + "/(?:.*/)?", at + 4
        elif rest[at:] == "/**":
            shape, at = shape + "/.+", at + 3
        elif here == "*":
            shape += "[^/]*"
            at += len(rest[at:]) - len(rest[at:].lstrip("*"))
        elif here == "?":
            shape, at = shape + "[^/]", at + 1
        elif here == "\\":
            if at + 1 == len(rest):
                return None
            shape, at = shape + re.escape(rest[at + 1]), at + 2
        elif here == "[":
            found = re.match(r"\[([!^]?)(\]?(?:\\.|[^\]\\])*)\]", rest[at:])
            if not found:
                return None
            held = re.sub(r"(?<!\\)\[", r"\\[", found[2])
            held = f"\\]{held[1:]}" if held.startswith("]") else held
            shape += f"(?!/)[{'^' if found[1] else ''}{held}]"
            at += found.end()
        else:
            shape, at = shape + re.escape(here), at + 1
    try:
        return Rule(re.compile(shape, re.DOTALL), folders_only, takes_back)
    except re.error:
        return None


def ignored(path: str, is_folder: bool, rules: Sequence[Rule]) -> bool:
    """Whether the rules leave out this path itself, whatever they say of the folders above it."""
    for one in reversed(rules):  # the last rule that matches wins
        if (is_folder or not one.folders_only) and one.shape.fullmatch(path):
            return not one.takes_back
    return False


def _is_left_out(path: PurePosixPath, rules: Sequence[Rule]) -> bool:
    """Whether the rules leave out this file, or a folder that it lies in."""
    above = (one for one in path.parents if one.name)
    return ignored(str(path), False, rules) or any(ignored(str(one), True, rules) for one in above)


def files(folder: Path) -> tuple[str, ...]:
    """The paths of the source, relative to `folder`, sorted.

    Raises InputError for rules that cannot be read, and for a link back to a folder above it.
    """
    found = [one for line in rules(folder) if (one := rule(line))]
    return tuple(sorted(_walk(folder, "", found, (os.path.realpath(folder),))))


def _walk(
    folder: Path, inside: str, rules: Sequence[Rule], above: tuple[str, ...]
) -> Iterator[str]:
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            path, is_folder = f"{inside}{entry.name}", entry.is_dir()
            if ignored(path, is_folder, rules):
                continue
            if not is_folder:
                yield path
                continue
            real = os.path.realpath(folder / path)
            if real in above:
                raise InputError(
                    f"{path}: this link leads back to a folder above it",
                    f"remove the link, or add {path} to {IGNORE_FILE}",
                )
            yield from _walk(folder, f"{path}/", rules, (*above, real))


# --- one archive ----------------------------------------------------------------------------------


def archive(folder: Path, to: BinaryIO) -> int:
    """Write the source as tar.gz. Returns the number of files. Same contents, same bytes.

    Raises InputError for a file that cannot be read, one that must not leave this machine
    (core/outgoing.py), and for a source without files.
    """
    names = files(folder)
    found = [one for line in rules(folder) if (one := rule(line))]
    for name in names:
        outgoing.check(
            folder,
            folder / name,
            lambda real: _is_left_out(real, found),
            f"use Secret Manager, and add {name} to {IGNORE_FILE}",
        )
    if not names:
        raise InputError(
            f"{folder}: nothing is left of the source", f"look at {IGNORE_FILE} and .gitignore"
        )
    with (
        gzip.GzipFile(fileobj=to, mode="wb", filename="", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            path = folder / name
            try:
                with path.open("rb") as file:
                    member = tarfile.TarInfo(
                        name
                    )  # root's, without a date: nothing of this machine
                    member.size = os.fstat(file.fileno()).st_size
                    member.mode = 0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644
                    tar.addfile(member, file)
            except OSError as error:
                raise InputError(
                    f"{name}: cannot be read: {error.strerror or error}",
                    f"mend it, or add {name} to {IGNORE_FILE}",
                ) from None
    return len(names)
