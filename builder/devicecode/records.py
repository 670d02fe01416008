"""What wheels, and our own pruning, record of the libraries that they installed: hash and size.

A wheel's RECORD has a line `path,sha256=HASH,size` for each file (packaging.python.org, "Recording
installed projects"). Pruning writes the same lines for the libraries that it changed into a file of
its own (pruning/prune.py), because RECORD stays as the wheel has it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from packaging.utils import canonicalize_name

from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import LIBRARY_NAME

LARGEST: Final = 64 << 20
"""Bytes of a RECORD that are read; TensorFlow's has 2.5 MB."""
PRUNED: Final = "training_image_pruned.csv"
"""The name of pruning's own record. `pruning/prune.py`, which stands alone, has the same."""

_RECORD: Final = re.compile(r"(?:^|/)([^/]+)-([^/-]+)\.dist-info/RECORD$")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class RecordLine(NamedTuple):
    """What a record says of one file: its path as the record's own path is written, the SHA-256 in
    hex ("" if not given), the size in bytes (-1 if not given)."""

    path: str
    sha256: str
    size: int


class WheelRecord(NamedTuple):
    """One record, and its lines about libraries."""

    package: str
    version: str
    """`package` and `version`: the distribution whose RECORD it is, "" for the record of
    pruning."""
    lines: tuple[RecordLine, ...]
    files: Mapping[str, str] = {}
    """All that it lists but bytecode, each with its digest as it is written."""


def is_record(path: str) -> bool:
    """Tell whether a file of this path is a wheel's RECORD, or what pruning wrote."""
    return bool(_RECORD.search(path)) or PurePosixPath(path).name == PRUNED


def parse(path: str, text: str) -> WheelRecord:
    """Return the record in this text. path: the record's own, as the libraries' paths are."""
    folder = PurePosixPath(path).parent
    listed = list(rows_of(text))
    rows = tuple(
        RecordLine(str(name), _hex(digest), size)
        for name, digest, size in listed
        if LIBRARY_NAME.search(name)
    )
    match = _RECORD.search(path)
    if match is None:
        return WheelRecord(
            "", "", tuple(line._replace(path=str(folder / line.path)) for line in rows)
        )
    lines = tuple(line._replace(path=str(folder.parent / line.path)) for line in rows)
    site = str(folder.parent)
    files = {
        posixpath.normpath(f"{site}/{name}"): digest
        for name, digest, _ in listed
        if not name.endswith(".pyc")
    }
    return WheelRecord(canonicalize_name(match[1]), match[2], lines, files)


def rows_of(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield path, digest and size (-1 if not given) of each row, as the record writes them.

    What comes after a row that is no CSV is left out.
    """
    rows = csv.reader(text.replace("\0", "").splitlines())
    with contextlib.suppress(csv.Error):
        for row in rows:
            path, digest, size = (*row, "", "", "")[:3]
            yield path, digest, int(size) if _NUMBER.fullmatch(size) else -1


Row = tuple[str, str]
"""Digest and size, as a RECORD writes them; "" for what it does not say."""


def rewritten(
    path: str, text: str, rows: Mapping[str, Row | None], real: Callable[[str], str | None]
) -> str:
    """Return a wheel's RECORD with other rows for some files; the rest stays as it is written.

    path: its own. rows: of files, by path; None takes the row out. real: follows links.
    """
    site, lines = str(PurePosixPath(path).parent.parent), []
    for line in text.splitlines(keepends=True):
        name = next(csv.reader([line]), [""])[0]
        at = real(posixpath.normpath(f"{site}/{name}")) if name else None
        if at is None or at not in rows:
            lines.append(line)
        elif row := rows[at]:
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerow((name, *row))
            lines.append(out.getvalue())
    return "".join(lines)


def compare(libraries: Iterable[Library], records: Iterable[WheelRecord]) -> tuple[Library, ...]:
    """Return the libraries with their distribution, and with a doubt where a record says that their
    bytes are others."""
    wheels: dict[str, tuple[RecordLine, WheelRecord]] = {}
    pruned: dict[str, RecordLine] = {}
    for record in records:
        for line in record.lines:
            if record.package:
                wheels[line.path] = line, record
            else:
                pruned[line.path] = line
    compared = []
    for library in libraries:
        wheel, owner = wheels.get(library.path, (None, WheelRecord("", "", ())))
        doubt = "" if library.broken else _doubt(library, wheel, pruned.get(library.path))
        library = replace(library, doubt=doubt)
        if owner.package:
            library = replace(library, package=owner.package, version=owner.version)
        compared.append(library)
    return tuple(compared)


def _doubt(library: Library, wheel: RecordLine | None, pruned: RecordLine | None) -> str:
    """Say why a library may not be whole, by what the reader saw and by what is recorded."""
    if any(line and line.sha256 and _same(library, line) for line in (wheel, pruned)):
        return ""  # a record has this very file, byte for byte
    if not (library.groups or library.doubt or (wheel and library.size == wheel.size)):
        return ""  # without device code: it may be stripped or patched after it was installed
    if pruned:
        if _same(library, pruned):
            return library.doubt
        return f"its bytes are not those that {PRUNED} says it was pruned to"
    if wheel is None or _same(library, wheel):
        return library.doubt
    if library.size != wheel.size >= 0:
        return f"it has {library.size:,} bytes, its wheel's RECORD says {wheel.size:,}"
    return "its bytes are not its wheel's, and no record says that it was pruned"


def _same(library: Library, line: RecordLine) -> bool:
    size = line.size in (-1, library.size)
    return size and (not line.sha256 or library.sha256 == line.sha256)


def _hex(digest: str) -> str:
    kind, _, value = digest.partition("=")
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return ""
    return raw.hex() if kind == "sha256" and len(raw) == 32 else ""
