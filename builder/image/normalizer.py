"""The normalizer: a container's files as a layer that does not depend on when and where it ran.

What its run and its engine left in it is taken out, the entries are sorted, and what was made in it
gets one date.

A root that mmdebstrap made of the same 88 packages (4,224 files) differs in devices, in states of
apt and dpkg, and in dates: here, folders and what scripts made have the one date of all images.
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

from builder.core.files import EPOCH
from builder.image.tarball import LayerWriter, content, unpacked

INSTALL_FOLDER: Final = "debs"
"""Where the packages and the script lie that the container installs."""

_OMIT: Final = (
    INSTALL_FOLDER,
    f"{INSTALL_FOLDER}/*",
    # what an engine puts into every container
    ".dockerenv",
    "run/.containerenv",
    "etc/hostname",
    "etc/hosts",
    "etc/mtab",
    "dev/*",
    "proc/*",
    "sys/*",
    # what the run left: logs, locks, caches, the previous version of a database
    "run/secrets",
    "run/secrets/*",
    "tmp/*",
    "var/tmp/*",
    "var/log/*",
    "var/cache/apt/*.bin",
    "var/cache/ldconfig/aux-cache",
    "var/cache/debconf/*-old",
    "var/lib/apt/lists/*",
    "var/lib/apt/extended_states",
    "var/lib/dpkg/*-old",
)
_EMPTY: Final = "etc/resolv.conf"
"""A file that an engine mounts its own over."""
_CAPABILITY: Final = "SCHILY.xattr.security.capability"


def write(exported: IO[bytes], newest: int, writer: LayerWriter) -> None:
    """Write the files of an exported container.

    newest: when the newest package was built, in seconds since 1970. What is younger was made in
    the container and gets the one date of all images.
    """
    with tarfile.open(fileobj=exported, mode="r:") as tar:
        entries = {info.name.removeprefix("./").rstrip("/"): info for info in tar}
        keep = {name: info for name, info in entries.items() if not _omitted(name, info)}
        keep[_EMPTY] = tarfile.TarInfo(_EMPTY)
        keep[_EMPTY].mtime = EPOCH
        first = _first_names(keep)
        for name in sorted(keep):
            info = _normalized(name, keep[name], newest)
            target = first.get(name, name)
            if target != name:
                info.type, info.linkname, info.size = tarfile.LNKTYPE, target, 0
            source = keep[name]
            if source.islnk():
                source = entries.get(source.linkname, source)
            info.size = source.size if info.isreg() else 0
            writer.entry(info, content(tar, source) if info.size else ())


def texts(blob: Path, names: Collection[str]) -> dict[str, str]:
    """Return some files of a packed layer by their names; nothing after the last one is read."""
    texts: dict[str, str] = {}
    with blob.open("rb") as file, tarfile.open(fileobj=unpacked(file), mode="r|") as tar:
        for info in tar:
            if info.name in names:
                texts[info.name] = b"".join(content(tar, info)).decode()
            if len(texts) == len(names):
                break
    return texts


def _omitted(name: str, info: tarfile.TarInfo) -> bool:
    known = info.isreg() or info.isdir() or info.issym() or info.islnk()
    return name in ("", ".") or not known or any(fnmatchcase(name, pattern) for pattern in _OMIT)


def _first_names(entries: Mapping[str, tarfile.TarInfo]) -> dict[str, str]:
    """Return for each of several names of one file the name that comes first in order."""
    groups: dict[str, set[str]] = {}
    for name, info in entries.items():
        if info.islnk():
            target = info.linkname.removeprefix("./")
            groups.setdefault(target, {target} & entries.keys()).add(name)
    return {name: min(names) for names in groups.values() for name in names}


def _normalized(name: str, info: tarfile.TarInfo, newest: int) -> tarfile.TarInfo:
    """Return a fresh header: an export adds times of access, names of accounts and the like."""
    new = tarfile.TarInfo(name)
    new.type = tarfile.REGTYPE if info.isreg() or info.islnk() else info.type
    new.mode, new.uid, new.gid = info.mode & 0o7777, info.uid, info.gid
    new.linkname = info.linkname if info.issym() else ""
    date = int(info.mtime)
    new.mtime = EPOCH if info.isdir() or date > newest else date  # dpkg gives a folder no date
    if value := info.pax_headers.get(_CAPABILITY):
        new.pax_headers = {_CAPABILITY: value}
    return new
