"""This machine as a layer: its Python, the packages beside it, and the system's libraries. What the
dynamic loader reads is read of them, and no more."""

from __future__ import annotations

import mmap
import os
import sys
import sysconfig
from pathlib import Path

from builder.devicecode import dynamic
from builder.devicecode.library import Library
from builder.reading.layers import Entry, ReadLayer

PYTHON = os.path.realpath(sys.executable)
SITE = Path(sysconfig.get_path("platlib"))
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/x86_64-linux-gnu", "/lib64")
_LINKS = ("/lib", "/lib64")
_READ = mmap.ACCESS_READ


def layer() -> ReadLayer:
    """Return what a container of this machine's files would see."""
    paths = {Path(PYTHON), Path(sys.executable), *SITE.rglob("*.so*"), *map(Path, _LINKS)}
    for folder in (f"{sys.base_prefix}/lib", sysconfig.get_path("stdlib"), *_SYSTEM):
        paths |= {*Path(folder).glob("*.so*"), *Path(folder).glob("lib-dynload/*.so")}
    files, libraries = {}, []
    for path in paths:
        if path.is_symlink():
            files[str(path)] = Entry(0, 0o777, 0, 0, str(path.readlink()))
        elif path.is_file() and (size := path.stat().st_size):
            files[str(path)] = Entry(size, 0o755, 0, 0)
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=_READ) as data:
                libraries.append(Library(str(path), size, dynamic=dynamic.read(data)))
    texts = {
        str(path): path.read_text()
        for path in (Path("/etc/ld.so.conf"), *Path("/etc/ld.so.conf.d").glob("*.conf"))
        if path.exists()
    }
    return ReadLayer(
        "", frozenset(), frozenset(), files, {}, {}, tuple(libraries), {}, (), {}, texts
    )
