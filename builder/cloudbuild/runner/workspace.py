"""The files of a build's workspace: those that match a pattern, and copies of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from builder.cloudbuild.runner.sandbox import WORKSPACE, Sandbox
from builder.core import files


@dataclass(frozen=True)
class WorkspaceFile:
    """A file of the workspace; `path` is relative to it."""

    path: str
    content: IO[bytes]
    mode: int

    def save(self, to: Path) -> int:
        """Write the file whole or not at all. Returns its size in bytes."""
        with files.replacing(to, self.mode & 0o777) as file:
            shutil.copyfileobj(self.content, file)
            return file.tell()


def files_of(sandbox: Sandbox, pattern: str = "") -> Iterator[WorkspaceFile]:
    """The files of the workspace. With a pattern, only those in the folder that it begins with."""
    fixed = re.split(r"[*?\[]", pattern.removeprefix(f"{WORKSPACE}/").removeprefix("./"))[0]
    start = PurePosixPath(WORKSPACE) / fixed.rpartition("/")[0].lstrip("/")
    above = start.parent  # an archive's names begin with the name of its folder
    for member, content in sandbox.read(str(start)):
        if content:
            path = (above / member.name).relative_to(WORKSPACE)
            yield WorkspaceFile(str(path), content, member.mode)


def matches(path: str, pattern: str) -> bool:
    """Whether a file of the workspace matches a pattern.

    As in gsutil, `*` matches within a folder and `**` across folders. A pattern that ends in a
    slash matches everything in that folder.
    """
    pattern = pattern.removeprefix(f"{WORKSPACE}/").removeprefix("./")
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern.rstrip("/")):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        text += known.get(part, re.escape(part))
    return re.fullmatch(f"{text}(?:/.*)?" if pattern.endswith("/") else text, path) is not None
