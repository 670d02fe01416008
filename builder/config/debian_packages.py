"""Records of Debian packages: where each one lies in Debian's archive, and its checksum.

A file of records holds three lines for each package, sorted by name:

    adduser=3.134
        debian/20260711T221637Z/pool/main/a/adduser/adduser_3.134_all.deb
        sha256:c24f...  # 183272 bytes

The second line begins with the archive and a time. Debian's snapshot archive has the package under
exactly this path; a mirror has it without the time, until a newer version takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Final
from urllib.parse import unquote

from builder.core.errors import OutsideError
from builder.core.files import hash_of

ARCHIVE, SECURITY = "debian", "debian-security"
ARCHIVES: Final = (ARCHIVE, SECURITY)

_RECORD: Final = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9+.-]+)=(?P<version>\S+)\n"
    rf"    (?P<archive>{'|'.join(ARCHIVES)})/(?P<time>\d{{8}}T\d{{6}}Z)/(?P<path>pool/\S+\.deb)"
    r"\n    sha256:(?P<sha256>[0-9a-f]{64})  # (?P<bytes>\d+) bytes\n",
    re.M,
)


@dataclass(frozen=True, order=True)
class DebianPackage:
    name: str
    version: str
    archive: str
    """One of ARCHIVES."""
    time: str
    """When that archive had it, as snapshots are named."""
    path: str
    """Below the archive."""
    sha256: str
    """Of the .deb, in hex."""
    bytes: int


def dump(packages: Iterable[DebianPackage]) -> str:
    return "".join(
        f"{package.name}={package.version}\n"
        f"    {package.archive}/{package.time}/{package.path}\n"
        f"    sha256:{package.sha256}  # {package.bytes} bytes\n"
        for package in sorted(packages)
    )


@cache
def parse(text: str) -> tuple[DebianPackage, ...]:
    """Return the records of a text that `dump` wrote, after any comments.

    Raises ValueError for a line that is none, and for a path that leads out of the archive.
    """
    body = re.sub(r"(?m)^#.*\n", "", text)
    packages = tuple(_package(record) for record in _RECORD.finditer(body))
    if left := _RECORD.sub("", body).strip():
        raise ValueError(f"no record of a Debian package: {left.splitlines()[0]!r}")
    if wrong := [package.path for package in packages if ".." in package.path.split("/")]:
        raise ValueError(f"a path leads out of the archive: {wrong[0]!r}")
    return packages


def _package(record: re.Match[str]) -> DebianPackage:
    name, version, archive, time, path, sha256, size = map(str, record.groups())
    return DebianPackage(name, version, archive, time, path, sha256, int(size))


_URI: Final = re.compile(
    r"^'[^']*/(?P<path>pool/[^']+)' (?P<file>[^ ]+)\.deb (?P<bytes>\d+)"
    r" SHA256:(?P<sha256>[0-9a-f]{64})$",
    re.M,
)
_SECURITY_POOL: Final = "pool/updates/"
_UNTIL_KEPT: Final = timedelta(days=1)
"""How long after a list was signed the snapshot archive has surely read it."""


def from_apt(uris: str, dates: Mapping[str, str]) -> tuple[DebianPackage, ...]:
    """Return the records of the packages that `apt-get --print-uris` names.

    uris: apt's output with ForceHash SHA256. dates: for each of ARCHIVES, the newest `Date` of its
    signed lists. Raises OutsideError for a package that no record can hold.
    """
    from email.utils import parsedate_to_datetime

    packages = []
    for match in _URI.finditer(uris):
        name, version = (*match["file"].split("_"), "")[:2]
        archive = SECURITY if match["path"].startswith(_SECURITY_POOL) else ARCHIVE
        kept = parsedate_to_datetime(dates[archive]) + _UNTIL_KEPT
        time, path = kept.strftime("%Y%m%dT%H%M%SZ"), unquote(match["path"])
        size, sha256 = int(match["bytes"]), match["sha256"]
        packages.append(DebianPackage(name, unquote(version), archive, time, path, sha256, size))
    records = tuple(sorted(packages))
    try:
        readable = parse(dump(records)) == records
    except ValueError:
        readable = False
    if not readable:
        raise OutsideError(
            "Debian's lists name a package that no lock can hold, such as one outside of pool/",
            "take another mirror: debian_mirror in builder.toml",
        )
    return records


def checksum(packages: Iterable[DebianPackage]) -> str:
    """Return a checksum over the packages' bytes: neither a mirror nor a time changes it."""
    ordered = sorted(packages)
    return "sha256:" + hash_of(*(text for p in ordered for text in (p.name, p.version, p.sha256)))
