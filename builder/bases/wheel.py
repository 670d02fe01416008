"""What an installer lays out of one wheel, where, and with which content and mode.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

from isal import igzip_lib, isal_zlib

from builder.bases.drops import Drop, dropped
from builder.core.errors import OutsideError

VENV: Final = "/opt/venv"
"""The environment of an image, which the wheels go into."""

INSTALLER: Final = b"uv"
"""The content of INSTALLER: whose layout it is."""

_READ: Final = 1 << 18
"""Bytes of a packed file that are unpacked at once. What fits into a processor's cache is unpacked
a sixth faster than 1 MiB."""
_LOCAL: Final = struct.Struct("<4s22xHH")
_SCHEMES: Final = ("purelib", "platlib", "headers", "scripts", "data")
_ENTRY: Final = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?")
_FIX: Final = "take another version of it, and tell those who publish it"
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


def site_packages(python: str) -> str:
    """The folder of an image's packages. python: "3.11"."""
    return f"{VENV}/lib/python{python}/site-packages"


@dataclass(frozen=True)
class Installed:
    """A file that a wheel installs.

    path: in the image, without the leading slash. size: bytes. identity: equal for equal content.
    pieces: the content, read anew at each call.
    """

    path: str
    mode: int
    size: int
    identity: tuple[int, int]
    pieces: Callable[[], Iterator[bytes]]

    def content(self) -> bytes:
        """The whole content."""
        return b"".join(self.pieces())


def installed(
    wheel: IO[bytes], name: str, python: str, drops: Sequence[Drop] = ()
) -> dict[str, Installed]:
    """Path in the image -> file, of a wheel that is open for reading; it has to stay open.

    name: the distribution, for messages and its headers. python: "3.11". Raises OutsideError for a
    wheel that is damaged, or that no installer should install.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise refused(name, str(error)) from None
    return _Layout(wheel, name, python, members).files(drops)


class _Layout:
    """The files of a wheel, and where each goes."""

    def __init__(
        self, wheel: IO[bytes], name: str, python: str, members: Sequence[zipfile.ZipInfo]
    ) -> None:
        self.wheel, self.name = wheel, name
        self.site = site_packages(python).lstrip("/")
        venv = VENV.lstrip("/")
        self.info = _info_folder(name, members)
        self.data = self.info.removesuffix(".dist-info") + ".data"
        self.places = {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": f"{venv}/bin",
            "headers": f"{venv}/include/site/python{python}/{name}",
            "data": venv,
        }
        self.members = members

    def files(self, drops: Sequence[Drop]) -> dict[str, Installed]:
        """Every file of the environment."""
        found: dict[str, Installed] = {}
        moved: dict[str, str] = {}
        changed: dict[str, bytes] = {}
        for member in self.members:
            scheme, path = self._place(member)
            file = _member(self.wheel, self.name, member, path)
            if scheme == "scripts":
                file = _script(file)
                changed[self._recorded(path)] = file.content()
            moved[member.filename] = self._recorded(path)
            add(found, file, self.name, self.name)
        for path, content in self._made(found):
            executable = path.startswith(self.places["scripts"])
            add(found, made(path, content, 0o755 if executable else 0o644), self.name, self.name)
            changed[self._recorded(path)] = content
        gone = {path for path in found if dropped(self._recorded(path), drops)}
        at = f"{self.site}/{self.info}/RECORD"
        if at not in found:
            raise refused(self.name, "it has no RECORD")
        record = self._record(found[at].content(), moved, changed, set(map(self._recorded, gone)))
        found[at] = made(at, record, found[at].mode)
        return {path: file for path, file in found.items() if path not in gone}

    def _place(self, member: zipfile.ZipInfo) -> tuple[str, str]:
        """The scheme of a member ("" for what lies at the wheel's root), and its path."""
        self._checked(member)
        first, _, rest = member.filename.partition("/")
        if first != self.data:
            return "", f"{self.site}/{member.filename}"
        scheme, _, below = rest.partition("/")
        if scheme not in _SCHEMES or not below:
            raise refused(self.name, f"{member.filename!r} goes to no place that installers know")
        return scheme, f"{self.places[scheme]}/{below}"

    def _checked(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or {"", ".", ".."} & set(parts):
            raise refused(self.name, f"its file {name!r} has a name that leads elsewhere")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise refused(self.name, f"{name!r} is no regular file")
        if member.flag_bits & 0x1 or member.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise refused(self.name, f"{name!r} is packed in a way that wheels do not use")

    def _made(self, found: dict[str, Installed]) -> Iterator[tuple[str, bytes]]:
        """What an installer adds: a script for each command, and the notes in dist-info."""
        info = f"{self.site}/{self.info}"
        points = found.get(f"{info}/entry_points.txt")
        if points:
            for command, text in _commands(self.name, points.content()):
                yield f"{self.places['scripts']}/{command}", text
        yield f"{info}/INSTALLER", INSTALLER
        yield f"{info}/REQUESTED", b""

    def _recorded(self, path: str) -> str:
        """A path as RECORD has it: below site-packages, or up from there."""
        if path.startswith(f"{self.site}/"):
            return path[len(self.site) + 1 :]
        return posixpath.relpath(path, self.site)

    def _record(
        self, text: bytes, moved: dict[str, str], changed: dict[str, bytes], gone: set[str]
    ) -> bytes:
        """RECORD of what is there: moved, made and dropped files included, sorted by path."""
        try:
            rows = [row for row in csv.reader(io.StringIO(text.decode(), newline="")) if row]
        except (UnicodeDecodeError, csv.Error) as error:
            raise refused(self.name, f"its RECORD cannot be read: {error}") from None
        found = {moved.get(row[0], row[0]): [*row[1:], "", ""][:2] for row in rows}
        for path, content in changed.items():
            found[path] = [recorded(hashlib.sha256(content).digest()), str(len(content))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([path, *found[path]] for path in sorted(found) if path not in gone)
        return out.getvalue().encode()


def add(found: dict[str, Installed], file: Installed, owner: str, other: str) -> None:
    """Put a file among others. Raises OutsideError where another content is at its place.

    owner, other: the distributions of the file and of those that are there, for the message.
    """
    there = found.get(file.path)
    if there and there.identity != file.identity:
        raise OutsideError(
            f"/{file.path}: {owner} and {other} install different files there"
            if owner != other
            else f"{owner}: two different files for /{file.path}",
            f"leave {owner} out of the requirements, or take another version of it",
        )
    found[file.path] = file


def made(path: str, content: bytes, mode: int = 0o644) -> Installed:
    """A file of known content."""
    identity = (len(content), isal_zlib.crc32(content))
    return Installed(path, mode, len(content), identity, lambda: iter((content,)))


def _info_folder(name: str, members: Iterable[zipfile.ZipInfo]) -> str:
    """The dist-info folder of a wheel; there has to be one, with a WHEEL of version 1."""
    folders = {
        one.filename.partition("/")[0]
        for one in members
        if re.fullmatch(r"[^/]+\.dist-info/WHEEL", one.filename)
    }
    if len(folders) != 1:
        raise refused(name, f"it has {len(folders)} folders *.dist-info with a WHEEL, not one")
    return folders.pop()


def _member(wheel: IO[bytes], name: str, member: zipfile.ZipInfo, path: str) -> Installed:
    executable = (member.external_attr >> 16) & 0o111
    return Installed(
        path,
        0o755 if executable else 0o644,
        member.file_size,
        (member.file_size, member.CRC),
        lambda: _unpacked(wheel, name, member),
    )


def _unpacked(wheel: IO[bytes], name: str, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member. Raises OutsideError where it is not what the directory says."""
    wheel.seek(member.header_offset)
    header = wheel.read(_LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise refused(name, f"no file begins where {member.filename!r} should")
    _, name_size, extra_size = _LOCAL.unpack(header)
    at, left = member.header_offset + _LOCAL.size + name_size + extra_size, member.compress_size
    unpacker = (
        isal_zlib.decompressobj(-15) if member.compress_type == zipfile.ZIP_DEFLATED else None
    )
    checksum = size = 0
    while left:
        wheel.seek(at)
        packed = wheel.read(min(_READ, left))
        at, left = at + len(packed), left - len(packed)
        if not packed:
            break
        try:
            piece = unpacker.decompress(packed) if unpacker else packed
        except igzip_lib.IsalError as error:  # type: ignore[misc] # a class, not as its stub says
            raise refused(name, f"{member.filename!r}: {error}") from None
        checksum, size = isal_zlib.crc32(piece, checksum), size + len(piece)
        if size > member.file_size:
            break
        yield piece
    if size != member.file_size or checksum != member.CRC:
        raise refused(name, f"the content of {member.filename!r} is not what its checksum says")


def _script(file: Installed) -> Installed:
    """A script of the wheel: executable, and run by the environment's Python."""
    content = file.content()
    first, newline, rest = content.partition(b"\n")
    if first.rstrip() in (b"#!python", b"#!pythonw"):
        content = f"#!{VENV}/bin/python".encode() + newline + rest
    return made(file.path, content, 0o755)


def _commands(name: str, text: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and script of each command of an entry_points.txt."""
    parser = configparser.RawConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        said = str(error).splitlines()[0]
        raise refused(name, f"its entry_points.txt cannot be read: {said}") from None
    for section in ("console_scripts", "gui_scripts"):
        for command, value in parser.items(section) if parser.has_section(section) else ():
            match = _ENTRY.fullmatch(value.strip())
            if not match or not re.fullmatch(r"[\w.+-]+", command) or command in (".", ".."):
                raise refused(name, f"its command {command!r} = {value!r} is none")
            module, function = match.groups()
            imported = function.partition(".")[0]
            python = f"{VENV}/bin/python"
            script = _SCRIPT.format(
                python=python, module=module, imported=imported, function=function
            )
            yield command, script.encode()


def recorded(sha256: bytes) -> str:
    """A SHA-256 digest as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).decode().rstrip("=")


def refused(name: str, why: str) -> OutsideError:
    """The error of a wheel that no installer should install."""
    return OutsideError(f"the wheel of {name}: {why}", _FIX)
