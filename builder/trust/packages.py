"""The packages of a lock, each with its package URL (purl-spec, types pypi and deb)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packageurl import PackageURL

from builder.config.debian_packages import DebianPackage
from builder.config.lockfile import Lock

_ARCHITECTURE: Final = re.compile(r"_([a-z0-9]+)\.deb$")


@dataclass(frozen=True)
class LockedPackage:
    """A Debian or Python package of a lock. sha256: of the download, in hex."""

    lock_file: str
    name: str
    version: str
    sha256: str
    purl: PackageURL


def locked(lock: Lock) -> Iterator[LockedPackage]:
    """Yield every package of a lock."""
    suite = lock.root.suite if lock.root else ""
    for deb in lock.root.packages if lock.root else ():
        yield _debian(f"os-{suite}.lock", deb, suite)
    for file, debs in lock.apt.items():
        for deb in debs:
            yield _debian(file, deb, suite)
    for file, pins in lock.wheels.items():
        for pin in pins:
            purl = PackageURL("pypi", None, pin.name, pin.version)
            yield LockedPackage(file, pin.name, pin.version, pin.sha256, purl)


def _debian(file: str, deb: DebianPackage, suite: str) -> LockedPackage:
    architecture = _ARCHITECTURE.search(deb.path)
    qualifiers = {
        "arch": architecture[1] if architecture else "",
        "distro": suite,
        "upstream": Path(deb.path).parent.name,  # the archive has a folder for each source package
    }
    purl = PackageURL("deb", "debian", deb.name, deb.version, qualifiers)
    return LockedPackage(file, deb.name, deb.version, deb.sha256, purl)
