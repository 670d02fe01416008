"""A build's source: the files that belong to it, and one archive of them, as gcloud makes it.

.gcloudignore has gitignore's syntax and one more rule, `#!include:FILE` (same folder, one level).
Without .gcloudignore, a folder that has .git or .gitignore leaves out both and what .gitignore
names. Any other folder is taken whole. An ignored folder stays out with everything in it, whatever
later rules say. Links are followed (google-cloud-sdk, command_lib/util/gcloudignore.py).

Unlike gcloud, this writes no .gcloudignore into the project. The archive is a function of its
contents only: the same tree gives the same bytes.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pathspec import GitIgnoreSpec

from builder.core import outgoing
from builder.core.errors import InputError

IGNORE_FILE = ".gcloudignore"
_INCLUDE = re.compile(r"#\s*!include:\s*(.*?)\s*")


def archive(folder: Path, to: BinaryIO) -> int:
    """Write the source as tar.gz. Return the number of files. Same contents, same bytes.

    Raises InputError for a file that cannot be read, one that must not leave this machine
    (core/outgoing.py), and for a source without files.
    """
    spec = _spec(folder)
    names = list(entries(folder, spec))
    files = [name for name in names if not name.endswith("/")]

    def is_left_out(path: PurePosixPath) -> bool:
        above = (f"{parent}/" for parent in path.parents if parent.name)
        return any(spec.match_file(name) for name in (str(path), *above))

    for name in files:
        fix = f"use Secret Manager, and add {name} to {IGNORE_FILE}"
        outgoing.check(folder, folder / name, is_left_out, fix)
    if not files:
        raise InputError(
            f"{folder}: nothing is left of the source", f"look at {IGNORE_FILE} and .gitignore"
        )
    with (
        gzip.GzipFile(fileobj=to, mode="wb", filename="", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            _add(tar, folder, name)
    return len(files)


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    """Add a file or a folder as root's and without a date: nothing in it tells of this machine."""
    member = tarfile.TarInfo(name)
    if name.endswith("/"):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(member)
        return
    try:
        with (folder / name).open("rb") as file:
            status = os.fstat(file.fileno())
            member.size = status.st_size
            member.mode = 0o755 if status.st_mode & 0o100 else 0o644
            tar.addfile(member, file)
    except OSError as error:
        what = f"{name}: cannot be read: {error.strerror or error}"
        raise InputError(what, f"correct it, or add {name} to {IGNORE_FILE}") from None


def entries(folder: Path, spec: GitIgnoreSpec | None = None) -> list[str]:
    """Return the paths of the source, sorted; that of a folder ends with a slash.

    Raises InputError for rules that cannot be read, and for a link back to a folder above it.
    """
    return sorted(_walk(folder, "", spec or _spec(folder), (os.path.realpath(folder),)))


def _walk(folder: Path, inside: str, spec: GitIgnoreSpec, above: tuple[str, ...]) -> Iterator[str]:
    with os.scandir(folder / inside) as children:
        for entry in children:
            path = f"{inside}{entry.name}" + ("/" if entry.is_dir() else "")
            if spec.match_file(path):
                continue
            yield path
            if entry.is_dir():
                real = os.path.realpath(folder / path)
                if real in above:
                    what = f"{path}: this link leads back to a folder above it"
                    raise InputError(what, f"remove the link, or add {path} to {IGNORE_FILE}")
                yield from _walk(folder, path, spec, (*above, real))


def _spec(folder: Path) -> GitIgnoreSpec:
    """Return the rules of what is left out of a folder."""
    file, git = folder / IGNORE_FILE, folder / ".gitignore"
    lines: list[str] = []
    if file.is_file():
        lines = list(_lines(file, includes=True))
    elif git.exists() or (folder / ".git").exists():
        lines = [IGNORE_FILE, ".git", ".gitignore"]
        lines += _lines(git, includes=False) if git.is_file() else ()
    return GitIgnoreSpec.from_lines(lines)


def _lines(file: Path, includes: bool) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{file.name}: cannot be read: {reason}", f"correct {file.name}") from None
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.fullmatch(line) if includes else None
        if not include:
            yield line
            continue
        if "/" in include[1] or not (file.parent / include[1]).is_file():
            what = f"{file.name}:{number}: {line}: no such file in this folder"
            raise InputError(what, "name a file beside it, for example #!include:.gitignore")
        yield from _lines(file.parent / include[1], includes=False)
