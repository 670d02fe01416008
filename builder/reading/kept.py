"""The files of a layer whose text later checks ask for: where the dynamic loader searches, what a
distribution requires, what scripts export and start. What of each is kept, and no more."""

from __future__ import annotations

import re
import struct
from typing import Final

PROGRAM: Final = re.compile(r"/bin/python3[^/]*$|\.so\.\d[^/]*[^\d./][^/]*$")
"""An interpreter, or a library whose name does not end with its version (libz.so.1.2.11.zlib-ng).
What the loader reads of them is kept; they have no device code."""

_WHOLE: Final = re.compile(
    r"^/etc/(passwd|group|ld\.so\.(conf|conf\.d/[^/]+\.conf))$|\.pth$|\.dist-info/INSTALLER$"
)
_CACHE: Final = "/etc/ld.so.cache"
_METADATA: Final = re.compile(r"\.dist-info/METADATA$|\.egg-info(/PKG-INFO)?$")
_WHEEL: Final = re.compile(r"\.dist-info/WHEEL$")
_FIELD: Final = re.compile(
    rb"^(?:Name|Version|Requires-Dist|Requires-Python|Provides-Extra): .*$", re.M
)
_TAG: Final = re.compile(rb"^Tag: .*$", re.M)
_SAYS: Final = re.compile(
    rb"^#!|\b(LD_LIBRARY_PATH|LD_PRELOAD|CUDA_VISIBLE_DEVICES|JAX_PLATFORM\w*|jax_platform\w*|"
    rb"set_visible_devices)\b|^\s*exec\s"
)
"""Lines of scripts and programs that decide what is loaded, started and seen."""
_PACKAGED: Final = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/")
_SCRIPT: Final = re.compile(r"\.(sh|bash|py)$|/\.(bashrc|profile|bash_profile)$|/etc/profile$")
_HEADER: Final = struct.Struct("<20sII20x")
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_ENTRY: Final = struct.Struct("<iIIIQ")


def text(path: str, content: bytes) -> str:
    """Return what is kept of a file, "" for most."""
    if path == _CACHE:
        return "\n".join(f"{name} => {target}" for name, target in _cached(content))
    if _WHOLE.search(path):
        kept = content
    elif _METADATA.search(path):
        # the fields end with an empty line, the description follows
        kept = b"\n".join(_FIELD.findall(re.split(rb"\r?\n\r?\n", content, maxsplit=1)[0]))
    elif _WHEEL.search(path):
        kept = b"\n".join(_TAG.findall(content))
    elif content.startswith(b"#!") or _is_own(path):
        kept = _said(content)
    else:
        return ""
    return kept.decode("utf-8", "replace")


def _is_own(path: str) -> bool:
    """Tell whether a file is a script, or of a program, and of no package that is installed."""
    own = _SCRIPT.search(path) and not _PACKAGED.search(path)
    return bool(own) or path.endswith(("/sitecustomize.py", "/usercustomize.py"))


def _said(content: bytes) -> bytes:
    """Return the lines that decide something and the heads of their blocks; the others are empty,
    so that lines keep their numbers."""
    lines = content.split(b"\n")
    kept, depth = [b""] * len(lines), 0
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        indent = len(line) - len(line.lstrip())
        if _SAYS.search(line) or (line.strip() and indent < depth):
            kept[number], depth = line, indent
    return b"\n".join(kept).rstrip(b"\n")


def _cached(content: bytes) -> list[tuple[str, str]]:
    """Return name and path of each library in a cache of glibc's (elf/cache.c, since 2.2)."""
    start = content.find(_MAGIC)  # an older cache may stand before it
    if start < 0 or len(content) < start + _HEADER.size:
        return []
    cache, found = content[start:], []
    _, count, _ = _HEADER.unpack_from(cache)
    for number in range(min(count, (len(cache) - _HEADER.size) // _ENTRY.size)):
        _, *places, _, _ = _ENTRY.unpack_from(cache, _HEADER.size + number * _ENTRY.size)
        name, path = (cache[at : cache.find(b"\0", at)].decode("utf-8", "replace") for at in places)
        found.append((name, path))
    return found
