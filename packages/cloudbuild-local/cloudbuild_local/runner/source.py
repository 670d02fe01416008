"""The source of a build: the files that gcloud would send, one archive of them, and their commit.

.gcloudignore has gitignore's syntax and one more rule, `#!include:FILE` (same folder, one level).
Without .gcloudignore, a folder that has .git or .gitignore leaves out both and what .gitignore
names. Any other folder is taken whole. An ignored folder stays out with everything in it, whatever
later rules say. Links are followed (google-cloud-sdk, command_lib/util/gcloudignore.py).
"""

import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pathspec import GitIgnoreSpec

from cloudbuild_local.errors import InputError

IGNORE_FILE = ".gcloudignore"
_INCLUDE = re.compile(r"#\s*!include:\s*(.*?)\s*")


def archive(folder: Path, file: IO[bytes]) -> int:
    """Write the source as a tar, also its empty folders. Return the number of files.

    Raises InputError for a file that cannot be read, and for a source without files.
    """
    count = 0
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in entries(folder):
            member, path = tarfile.TarInfo(name), folder / name
            try:
                status = path.stat()
                member.mode = status.st_mode & 0o7777
                if name.endswith("/"):
                    member.type = tarfile.DIRTYPE
                    tar.addfile(member)
                    continue
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(0, "it is not a regular file")
                with path.open("rb") as content:
                    member.size = status.st_size
                    tar.addfile(member, content)
            except OSError as error:
                what = f"{name}: cannot be read: {error.strerror or error}"
                raise InputError(what, f"correct it, or add {name} to {IGNORE_FILE}") from None
            count += 1
    if not count:
        raise InputError(f"{folder}: nothing is left of the source", f"look at {IGNORE_FILE}")
    return count


def entries(folder: Path) -> list[str]:
    """Return the paths of the source, sorted; that of a folder ends with a slash.

    Raises InputError for rules that cannot be read, and for a link back to a folder above it.
    """
    spec = GitIgnoreSpec.from_lines(_rules(folder))
    return sorted(_walk(folder, "", spec, (os.path.realpath(folder),)))


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


def _rules(folder: Path) -> list[str]:
    file, git = folder / IGNORE_FILE, folder / ".gitignore"
    if file.is_file():
        return list(_lines(file, includes=True))
    if not git.exists() and not (folder / ".git").exists():
        return []
    defaults = [IGNORE_FILE, ".git", ".gitignore"]
    return defaults + (list(_lines(git, includes=False)) if git.is_file() else [])


def _lines(file: Path, includes: bool) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{file.name}: cannot be read: {reason}", "correct the file") from None
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.fullmatch(line) if includes else None
        if not include:
            yield line
            continue
        if "/" in include[1] or not (file.parent / include[1]).is_file():
            what = f"{file.name}:{number}: {line}: no such file in this folder"
            raise InputError(what, "name a file beside it, for example #!include:.gitignore")
        yield from _lines(file.parent / include[1], includes=False)


def commit(folder: Path) -> dict[str, str]:
    """Return the substitutions that a trigger takes from git, {} without a repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    sha, branch = git("rev-parse", "HEAD"), git("symbolic-ref", "--short", "-q", "HEAD")
    tag = git("describe", "--tags", "--exact-match", "HEAD")
    remote = re.sub(r"\.git/?$", "", git("remote", "get-url", "origin")).rstrip("/")
    parts = re.split(r"[:/]", remote.partition("://")[2] or remote)
    name = parts[-1] or Path(git("rev-parse", "--show-toplevel")).name
    values = {
        "COMMIT_SHA": sha,
        "REVISION_ID": sha,
        "SHORT_SHA": sha[:7],
        "BRANCH_NAME": branch,
        "TAG_NAME": tag,
        "REF_NAME": branch or tag,
        "REPO_NAME": name,
        "REPO_FULL_NAME": "/".join(parts[-2:]) if parts[1:] else name,
    }
    return values if sha else {}
