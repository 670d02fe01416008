"""What wheels, and our own pruning, say of the libraries that they installed: hash and size.

A wheel's RECORD has a line `path,sha256=HASH,size` for each file (packaging.python.org, "Recording
installed projects"). Pruning writes the same lines for the libraries that it changed into a file of
its own (pruning/prune.py), because RECORD stays as the wheel has it.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from .pruning.elf import LIBRARY_NAME, Buffer
from .pruning.prune import PRUNED

LARGEST = 64 << 20
"""Bytes of a RECORD that are read; TensorFlow's has 2.5 MB."""

_RECORD = re.compile(r"(?:^|/)([^/]+)-([^/-]+)\.dist-info/RECORD$")
_BLOCK = 1 << 20


class Recorded(NamedTuple):
    """One library as a record has it. sha256: in hex, "" if not given; size: -1 if not given."""

    sha256: str
    size: int
    package: str = ""
    version: str = ""


@dataclass(frozen=True)
class Records:
    """What is recorded of libraries, by path: by their wheels, and by pruning."""

    wheels: dict[str, Recorded] = field(default_factory=dict)
    pruned: dict[str, Recorded] = field(default_factory=dict)

    def add(self, path: str, text: str) -> None:
        """Take in a record. path: its own, as the libraries' paths are written."""
        folder = PurePosixPath(path).parent
        if PurePosixPath(path).name == PRUNED:
            self.pruned.update(_lines(folder, text, "", ""))
        elif match := _RECORD.search(path):
            self.wheels.update(_lines(folder.parent, text, normal(match[1]), match[2]))

    def knows(self, path: str) -> bool:
        """Whether anything is recorded of a library."""
        return path in self.wheels or path in self.pruned

    def confirms(self, path: str, found: Recorded) -> bool:
        """Whether a record has this very file, byte for byte."""
        known = (self.wheels.get(path), self.pruned.get(path))
        return any(one is not None and one.sha256 != "" and _same(found, one) for one in known)

    def doubt(self, path: str, found: Recorded) -> str:
        """Why this is not what was recorded; "" if it may be, or if nothing is recorded."""
        if pruned := self.pruned.get(path):
            same = _same(found, pruned)
            return "" if same else f"its bytes are not those that {PRUNED} says it was pruned to"
        wheel = self.wheels.get(path)
        if wheel is None or _same(found, wheel):
            return ""
        if found.size != wheel.size >= 0:
            return f"it has {found.size:,} bytes, its wheel's RECORD says {wheel.size:,}"
        return "its bytes are not its wheel's, and no record says that it was pruned"


def is_record(path: str) -> bool:
    """Whether a file of this path is a wheel's RECORD, or what pruning wrote."""
    return bool(_RECORD.search(path)) or PurePosixPath(path).name == PRUNED


def sha256(data: Buffer) -> str:
    """The SHA-256 of a library, in hex."""
    total = hashlib.sha256()
    for at in range(0, len(data), _BLOCK):
        total.update(data[at : at + _BLOCK])
    return total.hexdigest()


def normal(name: str) -> str:
    """A distribution's name as every tool compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _same(found: Recorded, known: Recorded) -> bool:
    size = known.size in (-1, found.size)
    return size and (not known.sha256 or found.sha256 == known.sha256)


def _lines(
    folder: PurePosixPath, text: str, package: str, version: str
) -> Iterator[tuple[str, Recorded]]:
    for row in csv.reader(text.replace("\0", "").splitlines()):
        path, digest, size = (*row, "", "", "")[:3]
        if LIBRARY_NAME.search(path):
            known = Recorded(_hex(digest), int(size) if size.isascii() and size.isdigit() else -1)
            yield str(folder / path), known._replace(package=package, version=version)


def _hex(digest: str) -> str:
    kind, _, value = digest.partition("=")
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return ""
    return raw.hex() if kind == "sha256" and len(raw) == 32 else ""
