"""The private engine's programs: Docker, containerd and runc from Debian's packages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from builder.core import apt, files
from builder.core.errors import OutsideError
from builder.core.events import OnEvent
from builder.core.files import data_home
from builder.engine.docker import release as release_of
from builder.engine.private.packages import Packages, unpack


@dataclass(frozen=True)
class DockerRelease:
    """A Docker that Debian packages."""

    folder: str
    """Where its programs lie, below data_home()."""
    suites: tuple[str, ...]
    """Those of Debian that have it; the first whose programs run on this libc is used."""
    packages: tuple[str, ...]
    """What is unpacked of the suite."""


NEWEST: Final = DockerRelease(
    "docker", ("forky", "trixie"), ("docker.io", "docker-cli", "docker-buildx", "containerd")
)
WORKER: Final = DockerRelease(
    "docker-20.10", ("bookworm",), ("docker.io", "containerd", "libdevmapper1.02.1")
)
"""Docker 20.10.24 without buildx, which the workers of Cloud Build run (googleapis/librarian#2860,
2025-11; GoogleCloudPlatform/terraform-google-enterprise-application#706, 2026-04)."""

_TOOLS: Final = {
    "dockerd": "usr/sbin/dockerd",
    "docker-proxy": "usr/sbin/docker-proxy",
    "containerd": "usr/bin/containerd",
    "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
    "docker-buildx": "usr/lib*/docker/cli-plugins/docker-buildx",
    "docker-init": "usr/bin/tini-static",  # `docker run --init` starts it
    "runc": "usr/*bin/runc",
}
_WITH_LIBRARIES: Final = """#!/bin/sh
root=$(dirname "$0")/../{root}
for folder in "$root"/usr/lib/*-linux-gnu* "$root"/lib/*-linux-gnu*; do
  export LD_LIBRARY_PATH="$folder${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
  [ ! -d "$folder/xtables" ] || export XTABLES_LIBDIR="$folder/xtables"
done
exec "$root/{program}" "$@"
"""
"""Starts a program with the libraries that were unpacked beside it, but with the host's own libc.
The program is not started by a loader: dockerd starts itself again through /proc/self/exe."""
_DOCKER: Final = """#!/bin/sh
bin=$(dirname "$0")
case "$1" in
  buildx) shift; exec "$bin/docker-buildx" "$@" ;;
  build) exec "$bin/docker-buildx" "$@" ;;
esac
exec "$bin/../root/usr/bin/docker" "$@"
"""
"""docker with buildx as a subcommand, without a plugin in the user's ~/.docker, which keeps the
user's logins."""


@dataclass(frozen=True)
class Software:
    folder: Path
    versions: Mapping[str, str]
    """Of each Debian package."""

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def has_containerd_store(self) -> bool:
        """Whether it can keep images in containerd: since 24.0, by Docker's release notes."""
        return release_of(self.versions["docker.io"]) >= (24, 0)

    @classmethod
    def read(cls, folder: Path) -> Software:
        """Return the programs in a folder. Raises OSError where they are gone."""
        return cls(folder, json.loads((folder / "versions.json").read_text()))


def install(on_event: OnEvent, release: DockerRelease = NEWEST) -> Software:
    """Return the programs of a release, unpacked once for all engines of this user.

    Of several unpacked ones, the newest that runs on this machine. Raises OutsideError if no
    suite's programs run here.
    """
    home = data_home() / release.folder
    with files.locked(home / "lock"):
        unpacked = sorted(home.glob("*/versions.json"), key=lambda path: path.stat().st_mtime)
        for path in reversed(unpacked):
            if _runs(path.parent / "bin" / "dockerd"):
                return Software.read(path.parent)
        refused, host = [], apt.host_suite()
        with tempfile.TemporaryDirectory(dir=home, prefix=".new.") as scratch:
            packages = cache(lambda suite: Packages(suite, Path(scratch), on_event=on_event))
            with ThreadPoolExecutor() as threads:  # the lists are slow to parse, and independent
                list(threads.map(packages, dict.fromkeys((release.suites[0], host))))
            for suite in release.suites:
                folder = Path(scratch) / f"software-{suite}"
                versions = _unpack(folder, release.packages, packages(suite), packages(host))
                if all(_runs(folder / "bin" / name) for name in ("dockerd", "containerd", "runc")):
                    key = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:12]
                    target = home / f"{versions['docker.io'].split('+')[0]}-{key}"
                    files.write(folder / "versions.json", json.dumps(versions, indent=1))
                    shutil.rmtree(target, ignore_errors=True)
                    folder.rename(target)
                    return Software(target, versions)
                refused.append(f"{suite} ({versions['docker.io']})")
        raise OutsideError(
            f"none of Debian's Docker versions runs on this machine; tried {', '.join(refused)}",
            "install Docker and let the factory use it (engine = machine)",
        )


def _unpack(folder: Path, names: Sequence[str], suite: Packages, host: Packages) -> dict[str, str]:
    """Fill a folder with the programs of a suite. Returns the versions of the packages.

    runc and iptables come from the host's own suite: runc starts itself again through
    /proc/self/exe, so it must run on the host's libc.
    """
    versions: dict[str, str] = {}
    bin_ = folder / "bin"
    bin_.mkdir(parents=True)
    for source, part, wanted in (
        (suite, "root", names),
        (host, "root", ["runc", "tini"]),
        (host, "iptables", ["iptables"]),
    ):
        fetched = source.download(wanted, part == "iptables")
        unpack([package for package in fetched if package.name != "libc6"], folder / part)
        versions |= {package.name: package.version for package in fetched if package.name in wanted}
    for name, pattern in _TOOLS.items():
        if target := next((folder / "root").glob(pattern), None):
            (bin_ / name).symlink_to(os.path.relpath(target, bin_))
    if "libdevmapper1.02.1" in names:  # which a small Debian lacks
        (bin_ / "dockerd").unlink()
        script = _WITH_LIBRARIES.format(root="root", program="usr/sbin/dockerd")
        files.write(bin_ / "dockerd", script, 0o755)
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore"):
        link = folder / "iptables/usr/sbin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("xtables-nft-multi")  # dpkg would make it, by the package's alternatives
        script = _WITH_LIBRARIES.format(root="iptables", program=f"usr/sbin/{name}")
        files.write(bin_ / name, script, 0o755)
    if (bin_ / "docker-buildx").exists():
        files.write(bin_ / "docker", _DOCKER, 0o755)
    else:
        (bin_ / "docker").symlink_to("../root/usr/bin/docker")
    return versions


def _runs(program: Path) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
