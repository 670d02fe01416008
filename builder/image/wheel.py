"""What an installer lays out of one wheel: where, with which content and mode.

The layout is that of PEP 427 and PEP 491 (now the "Binary distribution format" of packaging's
specifications), as `uv pip install` writes it: a test compares the two file by file. A name that
would leave the environment, a link, or two files of different content at one place is refused.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import posixpath
import re
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import IO, Final

from isal import igzip_lib, isal_zlib

from builder.core.errors import OutsideError
from builder.facts.frameworks import Exclude
from builder.image.plan import VENV, site_packages

INSTALLER: Final = b"uv"
"""The content of INSTALLER: whose layout it is."""

_PIECE: Final = 1 << 18
"""Bytes of a file that are read, and unpacked, at once: what fits into a processor's cache."""
_LOCAL: Final = struct.Struct("<4s22xHH")
_MOST_FILES: Final = 200_000
_MOST_LISTED: Final = 32 << 20
"""Bytes of the list at the end of a wheel: its files are counted when all of it is read."""
_MOST_UNPACKED: Final = 16 << 30
_DEEPEST: Final = 64
_LONGEST: Final = 255
"""Bytes of a file's name, as file systems have it."""
_TEXTS: Final = {"/RECORD": 16 << 20, "/entry_points.txt": 1 << 18, ".py": 64 << 20}
"""Bytes of the files that are read whole, by the end of their names."""
_LARGEST_SCRIPT: Final = 16 << 20
_DAMAGED: Final = (
    zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, IndexError, OverflowError,
    struct.error,
)  # fmt: skip
"""What zipfile raises for a damaged archive."""
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENTRY_POINT: Final = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?")
_SCRIPT: Final = """\
#!{python}
# -*- coding: utf-8 -*-
import sys
from {module} import {imported}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""
_PYTHON: Final = f"{VENV}/bin/python"


@dataclass(frozen=True)
class InstalledFile:
    path: str
    """In the image, without the leading slash."""
    mode: int
    size: int
    """Bytes."""
    identity: tuple[int, int]
    """Equal for equal content."""
    pieces: Callable[[], Iterator[bytes]]
    """The content, read anew at each call."""

    @classmethod
    def of(cls, path: str, content: bytes, mode: int = 0o644) -> InstalledFile:
        identity = (len(content), isal_zlib.crc32(content))
        return cls(path, mode, len(content), identity, lambda: iter((content,)))

    def content(self) -> bytes:
        return b"".join(self.pieces())


def installed(
    wheel: IO[bytes], name: str, python: str, exclude: Sequence[Exclude] = ()
) -> dict[str, InstalledFile]:
    """Return the files that a wheel installs, by their path in the image.

    wheel: open for reading; it has to stay open. name: the distribution, for messages and its
    headers. python: "3.11". Raises OutsideError for a wheel that is damaged, or that no installer
    should install.
    """
    try:
        with zipfile.ZipFile(_Listed(wheel)) as archive:
            members = [each for each in archive.infolist() if not each.filename.endswith("/")]
    except _DAMAGED as error:
        raise bad_wheel(name, str(error) or type(error).__name__) from None
    _check(name, members)
    layout = _Layout(name, python, members)
    files: dict[str, InstalledFile] = {}
    rows: dict[str, str] = {}  # the wheel's own path of each file -> its path in RECORD
    changed: dict[str, InstalledFile] = {}
    for member in members:
        scheme, path = layout.place(member.filename)
        file = _member(wheel, name, member, path)
        rows[member.filename] = layout.recorded(path)
        if scheme == "scripts":
            file = _script(name, file)
            changed[rows[member.filename]] = file
        add(files, file, name, name)
    for file in layout.generated(files):
        add(files, file, name, name)
        changed[layout.recorded(file.path)] = file
    gone = {path for path in files if excluded(layout.recorded(path), exclude)}
    if not (record := files.get(f"{layout.info}/RECORD")):
        raise bad_wheel(name, "it has no RECORD")
    text = _record(name, record.content(), rows, changed, set(map(layout.recorded, gone)))
    files[record.path] = InstalledFile.of(record.path, text, record.mode)
    return {path: file for path, file in files.items() if path not in gone}


def _check(name: str, members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise OutsideError for members that no wheel has, or that take too much memory or disk."""
    if len(members) > _MOST_FILES:
        raise bad_wheel(name, f"it has {len(members)} files, more than {_MOST_FILES}")
    if sum(member.file_size for member in members) > _MOST_UNPACKED:
        raise bad_wheel(name, f"it unpacks to more than {_MOST_UNPACKED >> 30} GiB")
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        path, parts = member.filename, member.filename.split("/")
        if member.header_offset < end:
            raise bad_wheel(name, f"{path!r} overlaps another file, or the wheel's begin")
        end = member.header_offset + _LOCAL.size + member.compress_size
        if len(parts) > _DEEPEST or max(len(part.encode()) for part in parts) > _LONGEST:
            raise bad_wheel(name, f"its file {path[:80]!r}... has too long a name")
        most = next((most for suffix, most in _TEXTS.items() if path.endswith(suffix)), None)
        if most is not None and member.file_size > most:
            raise bad_wheel(name, f"{path!r} has {member.file_size} bytes")
        if not path.isprintable() or "\\" in path or {"", ".", ".."} & set(parts):
            raise bad_wheel(name, f"its file {path!r} has a name that leads elsewhere")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise bad_wheel(name, f"{path!r} is no regular file")
        if member.flag_bits & 0x1 or member.compress_type not in _PACKINGS:
            raise bad_wheel(name, f"{path!r} is packed in a way that wheels do not use")


def add(files: dict[str, InstalledFile], file: InstalledFile, owner: str, other: str) -> None:
    """Put a file among others. Raises OutsideError where another content is at its place.

    owner, other: the distributions of the file and of those that are there, for the message.
    """
    present = files.get(file.path)
    if present and present.identity != file.identity:
        raise OutsideError(
            f"/{file.path}: {owner} and {other} install different files there"
            if owner != other
            else f"{owner}: two different files for /{file.path}",
            f"leave {owner} out of the requirements, or take another version of it",
        )
    files[file.path] = file


def recorded(sha256: bytes) -> str:
    """Return a SHA-256 digest as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).decode().rstrip("=")


def bad_wheel(name: str, why: str) -> OutsideError:
    return OutsideError(
        f"the wheel of {name}: {why}", "take another version of it, and tell those who publish it"
    )


class _Listed:
    """A wheel whose list of files is read only where it has less than _MOST_LISTED bytes."""

    def __init__(self, wheel: IO[bytes]) -> None:
        self.seek, self.tell, self._read = wheel.seek, wheel.tell, wheel.read

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_LISTED:
            raise ValueError(f"its list of files has {size} bytes")
        return self._read(size)


class _Layout:
    def __init__(self, name: str, python: str, members: Sequence[zipfile.ZipInfo]) -> None:
        self.name, self.site = name, site_packages(python).lstrip("/")
        venv, info = VENV.lstrip("/"), _info_folder(name, members)
        self.info, self.data = f"{self.site}/{info}", info.removesuffix(".dist-info") + ".data"
        self.schemes = {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": f"{venv}/bin",
            "headers": f"{venv}/include/site/python{python}/{name}",
            "data": venv,
        }

    def place(self, member: str) -> tuple[str, str]:
        """Return the scheme of a member ("" for what lies at the wheel's root), and its path."""
        first, _, rest = member.partition("/")
        if first != self.data:
            return "", f"{self.site}/{member}"
        scheme, _, below = rest.partition("/")
        if scheme not in self.schemes or not below:
            raise bad_wheel(self.name, f"{member!r} goes to no place that installers know")
        return scheme, f"{self.schemes[scheme]}/{below}"

    def generated(self, files: Mapping[str, InstalledFile]) -> Iterator[InstalledFile]:
        """Yield what an installer adds: a script for each command, and the notes in dist-info."""
        if points := files.get(f"{self.info}/entry_points.txt"):
            for command, text in _commands(self.name, points.content()):
                yield InstalledFile.of(f"{self.schemes['scripts']}/{command}", text, 0o755)
        yield InstalledFile.of(f"{self.info}/INSTALLER", INSTALLER)
        yield InstalledFile.of(f"{self.info}/REQUESTED", b"")

    def recorded(self, path: str) -> str:
        """Return a path as RECORD has it: below site-packages, or up from there."""
        if path.startswith(f"{self.site}/"):
            return path[len(self.site) + 1 :]
        return posixpath.relpath(path, self.site)


def _member(wheel: IO[bytes], name: str, member: zipfile.ZipInfo, path: str) -> InstalledFile:
    return InstalledFile(
        path,
        0o755 if (member.external_attr >> 16) & 0o111 else 0o644,
        member.file_size,
        (member.file_size, member.CRC),
        lambda: _unpacked(wheel, name, member),
    )


def _record(
    name: str,
    text: bytes,
    rows: Mapping[str, str],
    changed: Mapping[str, InstalledFile],
    gone: set[str],
) -> bytes:
    """Return the RECORD of what is installed, sorted by path."""
    record: dict[str, list[str]] = {}
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text.decode(), newline=""))):
            if number >= 2 * _MOST_FILES:
                raise bad_wheel(name, f"its RECORD has more than {2 * _MOST_FILES} lines")
            if row:
                record[rows.get(row[0], row[0])] = [*row[1:3], "", ""][:2]
    except (UnicodeDecodeError, csv.Error) as error:
        raise bad_wheel(name, f"its RECORD cannot be read: {error}") from None
    for path, file in changed.items():
        digest = hashlib.sha256()
        for piece in file.pieces():
            digest.update(piece)
        record[path] = [recorded(digest.digest()), str(file.size)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([path, *record[path]] for path in sorted(record) if path not in gone)
    return out.getvalue().encode()


def _info_folder(name: str, members: Iterable[zipfile.ZipInfo]) -> str:
    """Return the dist-info folder of a wheel; there has to be one that holds a WHEEL."""
    folders = {
        member.filename.partition("/")[0]
        for member in members
        if re.fullmatch(r"[^/]+\.dist-info/WHEEL", member.filename)
    }
    if len(folders) != 1:
        raise bad_wheel(name, f"it has {len(folders)} folders *.dist-info with a WHEEL, not one")
    return folders.pop()


def _unpacked(wheel: IO[bytes], name: str, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member. Raises OutsideError where it is not what the zip says."""
    wheel.seek(member.header_offset)
    header = wheel.read(_LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise bad_wheel(name, f"no file begins where {member.filename!r} should")
    _, name_size, extra_size = _LOCAL.unpack(header)
    at, left = member.header_offset + _LOCAL.size + name_size + extra_size, member.compress_size
    deflated = member.compress_type == zipfile.ZIP_DEFLATED
    unpacker = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE) if deflated else None
    checksum = size = 0
    while not (unpacker and unpacker.eof):
        needy, packed = not unpacker or unpacker.needs_input, b""
        if needy and left:
            wheel.seek(at)
            packed = wheel.read(min(_PIECE, left))
            at, left = at + len(packed), left - len(packed)
        most = min(_PIECE, member.file_size - size + 1)  # what is too long shows itself
        try:
            piece = unpacker.decompress(packed, most) if unpacker else packed
        except igzip_lib.IsalError as error:  # type: ignore[misc] # a class, not as its stub says
            raise bad_wheel(name, f"{member.filename!r}: {error}") from None
        if needy and not packed and not piece:
            break
        checksum, size = isal_zlib.crc32(piece, checksum), size + len(piece)
        if size > member.file_size:
            break
        yield piece
    if size != member.file_size or checksum != member.CRC:
        raise bad_wheel(name, f"the content of {member.filename!r} is not what its checksum says")


def _script(name: str, file: InstalledFile) -> InstalledFile:
    """Return a script of the wheel: executable, and run by the environment's Python."""
    begin = next(filter(None, file.pieces()), b"")
    if begin.partition(b"\n")[0].rstrip() not in (b"#!python", b"#!pythonw"):
        return replace(file, mode=0o755)
    if file.size > _LARGEST_SCRIPT:
        raise bad_wheel(name, f"the script {file.path!r} has {file.size} bytes")
    _, newline, rest = file.content().partition(b"\n")
    return InstalledFile.of(file.path, f"#!{_PYTHON}".encode() + newline + rest, 0o755)


def _commands(name: str, text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the script of each command of an entry_points.txt."""
    parser = configparser.RawConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        reason = str(error).splitlines()[0]
        raise bad_wheel(name, f"its entry_points.txt cannot be read: {reason}") from None
    for section in ("console_scripts", "gui_scripts"):
        for command, value in parser.items(section) if parser.has_section(section) else ():
            match = _ENTRY_POINT.fullmatch(value.strip())
            if not match or not re.fullmatch(r"[\w.+-]+", command) or command in (".", ".."):
                raise bad_wheel(name, f"its command {command!r} = {value!r} is none")
            module, function = match.groups()
            imported = function.partition(".")[0]
            script = _SCRIPT.format(
                python=_PYTHON, module=module, imported=imported, function=function
            )
            yield command, script.encode()


def excluded(path: str, by: Sequence[Exclude]) -> bool:
    """Return whether a rule excludes a file.

    path: below site-packages, or of a script `../../..`.
    """
    return any(matches(path, pattern) for rule in by for pattern in rule.paths)


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern stands for a path."""
    return bool(_compiled(pattern).fullmatch(path))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(p) or re.escape(p) for p in re.split(r"(\*+)", pattern)))
