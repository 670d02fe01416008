"""A wheel of a package that an index has as source alone; nothing of the source runs.

An sdist of setuptools says in its egg-info what it installs, needs and starts (top_level.txt,
requires.txt, entry_points.txt; setuptools, "Package format"). A package of pure Python is copied
from there. The same source gives the same wheel, on any machine: a lock has the hashes of both.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.utils import canonicalize_name

LARGEST: Final = 50_000_000
"""Bytes of a source, packed; it may unpack to four times as many."""

_WHEEL: Final = (
    "Wheel-Version: 1.0\nGenerator: training-image-factory\nRoot-Is-Purelib: true\n"
    "Tag: py3-none-any\n"
)
_COMPILED: Final = re.compile(r"\.(pyx|c|cc|cpp|cxx|cu|rs|f|f90)$")
_BUILDS: Final = re.compile(
    r"\bext_modules\s*=|\bExtension\(|cffi_modules|maturin|mesonpy|scikit_build|rust_extensions"
    r"|cmake|use_2to3",
    re.IGNORECASE,
)
"""What says in a setup.py or pyproject.toml that copying is not enough."""
_ASIDE: Final = frozenset(("test", "tests", "docs", "doc", "examples", "benchmarks"))
_DAMAGED: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)


class NotPlainError(Exception):
    """No wheel can be made of a source without running it; `str()` says why in a few words."""


@dataclass(frozen=True)
class MadeWheel:
    content: bytes
    requires: tuple[str, ...]
    """As Requires-Dist has them."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def wheel_of(name: str, version: str, source: bytes) -> MadeWheel:
    """Return the wheel of a source, a tar.gz or a zip. Raises NotPlainError."""
    try:
        files = dict(_files(source))
    except _DAMAGED as error:
        raise NotPlainError(f"it cannot be read: {error}") from None
    says = "".join(files.get(each, b"").decode("utf-8", "replace") for each in _SETUP)
    if found := _BUILDS.search(says):
        raise NotPlainError(f"it has to be built ({found[0].strip(' =(')})")
    info = next((path[: -len("PKG-INFO")] for path in files if path.endswith(_INFO)), "")
    metadata = files.get(f"{info}PKG-INFO", b"").decode("utf-8", "replace").replace("\r\n", "\n")
    if f"\nVersion: {version}\n" not in metadata:
        raise NotPlainError("it does not say its version")
    modules = dict(_modules(files, info, name))
    if compiled := next(filter(_COMPILED.search, modules), ""):
        raise NotPlainError(f"it has to be compiled ({compiled})")
    if not modules:
        raise NotPlainError("it does not say which modules it has")
    head, _, body = metadata.partition("\n\n")
    requires = tuple(re.findall(r"^Requires-Dist: (.*)$", head, re.MULTILINE))
    if not requires:
        text = files.get(f"{info}requires.txt", b"").decode("utf-8", "replace")
        requires = tuple(_requirements(text)) if info else ()
        head += "".join(f"\nRequires-Dist: {each}" for each in requires)
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    content = {**modules, f"{folder}/METADATA": f"{head}\n\n{body}".encode()}
    content[f"{folder}/WHEEL"] = _WHEEL.encode()
    if entries := files.get(f"{info}entry_points.txt") if info else None:
        content[f"{folder}/entry_points.txt"] = entries
    return MadeWheel(_zipped(content, f"{folder}/RECORD"), requires)


_SETUP: Final = ("setup.py", "setup.cfg", "pyproject.toml")
_INFO: Final = ".egg-info/PKG-INFO"


def _files(source: bytes) -> Iterator[tuple[str, bytes]]:
    left = 4 * LARGEST
    if source[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(source)) as archive:
            for each in archive.infolist():
                left -= each.file_size
                if left < 0:
                    raise ValueError("it is too large")
                yield each.filename.partition("/")[2], archive.read(each)
        return
    with tarfile.open(fileobj=io.BytesIO(source), mode="r|gz") as tar:
        for member in tar:
            left -= member.size
            if left < 0:
                raise ValueError("it is too large")
            if member.isfile() and (file := tar.extractfile(member)):
                yield member.name.removeprefix("./").partition("/")[2], file.read()


def _modules(files: Mapping[str, bytes], info: str, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield what a source installs, by the path in site-packages."""
    base = info.rstrip("/").rpartition("/")[0]
    bases = [f"{base}/" if base else "", "", "src/", "lib/"]
    listed = files.get(f"{info}top_level.txt", b"").decode("utf-8", "replace").split()
    for top in listed if info and listed else (name, name.replace("-", "_")):
        if top in _ASIDE | sys.stdlib_module_names or not re.fullmatch(r"\w+(/\w+)*", top):
            continue
        for begin in dict.fromkeys(bases):
            own = {
                path.removeprefix(begin): content
                for path, content in files.items()
                if path == f"{begin}{top}.py" or path.startswith(f"{begin}{top}/")
            }
            if any(path.endswith(".py") for path in own):
                hidden = re.compile(r"(^|/)(\.|__pycache__/)|\.py[co]$|\.\.")
                yield from ((path, each) for path, each in own.items() if not hidden.search(path))
                break


def _requirements(text: str) -> Iterator[str]:
    """Yield the lines of a requires.txt as requirements: a section is [extra:marker]."""
    marker = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if section := re.fullmatch(r"\[([^:\]]*):?(.*)\]", line):
            extra = f'extra == "{canonicalize_name(section[1])}"' if section[1] else ""
            condition = f"({section[2]})" if section[2] and extra else section[2]
            marker = " and ".join(filter(None, (condition, extra)))
        else:
            yield f"{line} ; {marker}" if marker else line


def _zipped(content: Mapping[str, bytes], record: str) -> bytes:
    """Return a wheel's bytes: sorted, without times, and stored: releases of zlib differ."""
    rows = ""
    for path, each in sorted(content.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(each).digest()).decode().rstrip("=")
        rows += f"{path},sha256={digest},{len(each)}\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, each in (*sorted(content.items()), (record, f"{rows}{record},,\n".encode())):
            member = zipfile.ZipInfo(path)
            member.external_attr = 0o100644 << 16
            member.create_system = 3
            archive.writestr(member, each)
    return buffer.getvalue()
