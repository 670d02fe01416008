"""images/pushed.lock: where the tags of a project's images lead, as git has it.

Whoever may write to a registry moves its tags, also to an image that was proven long ago, or for
another target. So a push and a promotion write down where they led a tag, and git is the timeline:
what verifies, promotes, rebuilds or submits a tag that is in this file takes the image that it
names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from builder.core import files
from builder.core.errors import InputError
from builder.registry import Reference

FILE: Final = "images/pushed.lock"
KEPT: Final = 10
"""How many images of a tag are kept, so that the tag can go back to them."""
_HEADER: Final = """\
# Where each tag leads, and where it led before, the newest first. `builder push` and `builder
# promote` write it, and it is committed: an image under such a tag counts only if it stands here.
"""
_LINE: Final = re.compile(r"(\S+/\S+:\S+)((?: sha256:[0-9a-f]{64})+)")


def of(root: Path) -> dict[str, tuple[str, ...]]:
    """Return what git has of a project's tags: HOST/PATH:TAG -> the digests that it led to, the
    newest first. Raises InputError for another form."""
    tags: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate((files.text_of(root / FILE) or "").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.rstrip())) is None or match[1] in tags:
            raise InputError(
                f"{FILE}:{number}: no line of a tag, or a second one of it",
                "take the file from git, and run builder promote DIGEST TAG",
            )
        tags[match[1]] = tuple(match[2].split())
    return tags


def record(root: Path, to: Reference, digest: str) -> None:
    """Write down that a tag leads to this image now."""
    path = root / FILE
    with files.locked_for("pushed", path):
        tags = of(root)
        before = tags.get(str(to), ())
        tags[str(to)] = (digest, *(other for other in before if other != digest))[:KEPT]
        if tags[str(to)] != before:
            lines = (f"{name} {' '.join(digests)}\n" for name, digests in sorted(tags.items()))
            files.write(path, _HEADER + "".join(lines))
