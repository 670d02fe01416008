"""The files of a container as a layer: without what its run and its engine left in it, sorted, with
dates that do not depend on when it ran.

Compared file by file with the root that mmdebstrap made of the same 88 packages (4,224 files), this
is what differs:

    dev/*                            an engine makes devices itself
    etc/fstab                        a placeholder of mmdebstrap
    usr/sbin/policy-rc.d             stays, as in the published image: no package starts a service
    var/lib/apt, var/cache/apt       apt's locks and states are left out: it makes them again
    var/lib/dpkg/arch, available     dpkg's own: not there for one architecture, and empty
    dates                            folders, and what scripts made, have the one date of all images
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from builder.bases.seed import FOLDER
from builder.core.templates import EPOCH

if TYPE_CHECKING:
    from builder.bases.tarball import LayerWriter

RECIPE: Final = "1"
"""Part of a root's key. Raise it where this file makes other roots from the same packages."""

_LEFT_OUT: Final = (
    FOLDER,
    f"{FOLDER}/*",
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
_EMPTY: Final = ("etc/resolv.conf",)
"""Files that an engine mounts its own over."""
_KEPT_HEADER: Final = "SCHILY.xattr.security.capability"
_PIECE: Final = 1 << 20


def write(exported: IO[bytes], newest: int, writer: LayerWriter) -> None:
    """Write the files of an exported container.

    newest: when the newest package was built, in seconds since 1970. What is younger was made in
    the container and gets the one date of all images.
    """
    with tarfile.open(fileobj=exported, mode="r:") as tar:
        found = {one.name.removeprefix("./").rstrip("/"): one for one in tar}
        kept = {name: one for name, one in found.items() if not _left_out(name, one)}
        for name in _EMPTY:
            kept[name] = tarfile.TarInfo(name)
            kept[name].mtime = EPOCH
        first = _first_names(kept)
        for name in sorted(kept):
            one = _entry(name, kept[name], newest)
            target = first.get(name, name)
            if target != name:
                one.type, one.linkname, one.size = tarfile.LNKTYPE, target, 0
            source = (
                found.get(kept[name].linkname, kept[name]) if kept[name].islnk() else kept[name]
            )
            one.size = source.size if one.isreg() else 0
            writer.entry(one, _content(tar, source, one.size))


def _left_out(name: str, info: tarfile.TarInfo) -> bool:
    known = info.isreg() or info.isdir() or info.issym() or info.islnk()
    return (
        name in ("", ".") or not known or any(fnmatchcase(name, pattern) for pattern in _LEFT_OUT)
    )


def _first_names(entries: dict[str, tarfile.TarInfo]) -> dict[str, str]:
    """Each of several names of one file -> the name that comes first in order."""
    groups: dict[str, list[str]] = {}
    for name, one in entries.items():
        if one.islnk():
            groups.setdefault(one.linkname.removeprefix("./"), []).append(name)
    first: dict[str, str] = {}
    for target, names in groups.items():
        every = [*names, *([target] if target in entries else [])]
        first |= dict.fromkeys(every, min(every))
    return first


def _entry(name: str, info: tarfile.TarInfo, newest: int) -> tarfile.TarInfo:
    """A fresh header: an engine's export adds times of access, names of accounts and the like."""
    new = tarfile.TarInfo(name)
    new.type = tarfile.REGTYPE if info.isreg() or info.islnk() else info.type
    new.mode, new.uid, new.gid = info.mode & 0o7777, info.uid, info.gid
    new.linkname = info.linkname if info.issym() else ""
    # dpkg gives a folder no date
    date = int(info.mtime)
    new.mtime = EPOCH if info.isdir() or date > newest else date
    if value := info.pax_headers.get(_KEPT_HEADER):
        new.pax_headers = {_KEPT_HEADER: value}
    return new


def _content(tar: tarfile.TarFile, source: tarfile.TarInfo, size: int) -> Iterator[bytes]:
    content = tar.extractfile(source) if size else None
    while content and (piece := content.read(_PIECE)):
        yield piece


def texts(blob: Path, names: Collection[str]) -> dict[str, str]:
    """Some files of a packed layer by their names; nothing after the last of them is read."""
    found: dict[str, str] = {}
    with blob.open("rb") as file, tarfile.open(fileobj=_unpacked(file), mode="r|") as tar:
        for info in tar:
            content = tar.extractfile(info) if info.name in names else None
            if content:
                found[info.name] = content.read().decode()
            if len(found) == len(names):
                break
    return found


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    import gzip

    import zstandard

    magic = file.read(2)
    file.seek(0)
    if magic == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    return zstandard.ZstdDecompressor().stream_reader(file)
