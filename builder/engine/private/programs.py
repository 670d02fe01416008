"""The private engine's programs: Docker, containerd and runc from Debian's packages."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.core import files, mirrors
from builder.core.errors import OutsideError
from builder.core.events import OnEvent
from builder.engine.private.packages import Packages, launcher, unpack
from builder.engine.private.place import EnginePlace, data_home
from builder.engine.progress import numbers


@dataclass(frozen=True)
class DockerRelease:
    """A Docker that Debian packages.

    folder: where its programs lie, below data_home(). suites: those of Debian that have it; the
    first whose programs run on this libc is used. packages: what is unpacked of the suite.
    """

    folder: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]


NEWEST = DockerRelease(
    "docker", ("forky", "trixie"), ("docker.io", "docker-cli", "docker-buildx", "containerd")
)
WORKER = DockerRelease(
    "docker-20.10", ("bookworm",), ("docker.io", "containerd", "libdevmapper1.02.1")
)
"""Docker 20.10.24 without buildx, which the workers of Cloud Build run (googleapis/librarian#2860,
2025-11; GoogleCloudPlatform/terraform-google-enterprise-application#706, 2026-04)."""


@dataclass(frozen=True)
class Software:
    """The unpacked programs. versions: of each Debian package."""

    folder: Path
    versions: Mapping[str, str]

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def has_containerd_store(self) -> bool:
        """Whether this Docker can keep images in containerd (docs.docker.com/engine/release-notes:
        since 24.0)."""
        return numbers(self.versions["docker.io"]) >= (24, 0)


def install(on_event: OnEvent, release: DockerRelease = NEWEST) -> Software:
    """The programs of a release, unpacked once for all engines of this user.

    Of several unpacked ones, the newest that runs on this machine. Raises OutsideError if no
    suite's programs run here.
    """
    home = data_home() / release.folder
    with files.locked(home / "lock"):
        made = sorted(home.glob("*/versions.json"), key=lambda path: path.stat().st_mtime)
        for path in reversed(made):
            if _runs(path.parent / "bin" / "dockerd"):
                return Software(path.parent, json.loads(path.read_text()))
        host = mirrors.host_suite()
        with ThreadPoolExecutor() as threads:  # the lists are slow to parse, and independent
            suites = dict.fromkeys((*release.suites, *NEWEST.suites, host))
            list(threads.map(lambda suite: Packages(suite, on_event=on_event).refresh(), suites))
        tried = []
        for suite in release.suites:
            folder = Path(tempfile.mkdtemp(dir=home, prefix=".new."))
            try:
                versions = _unpack(folder, release.packages, suite, host, on_event)
                if all(_runs(folder / "bin" / name) for name in ("dockerd", "containerd", "runc")):
                    key = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:12]
                    target = home / f"{versions['docker.io'].split('+')[0]}-{key}"
                    _link(folder, target)
                    files.write(folder / "versions.json", json.dumps(versions, indent=1))
                    shutil.rmtree(target, ignore_errors=True)
                    folder.rename(target)
                    folder = target
                    return Software(target, versions)
                tried.append(f"{suite} ({versions['docker.io']})")
            finally:
                if folder.name.startswith(".new."):
                    shutil.rmtree(folder, ignore_errors=True)
        raise OutsideError(
            f"none of Debian's Docker versions runs on this machine; tried {', '.join(tried)}",
            "install Docker and let the factory use it (engine = machine)",
        )


def _unpack(
    folder: Path, names: Sequence[str], suite: str, host: str, on_event: OnEvent
) -> dict[str, str]:
    """Fill `folder/root` and `folder/bin` from one suite. Returns the versions of the packages.

    runc comes from the first suite whose runc runs on the host's libc.
    """
    packages = Packages(suite, on_event=on_event)
    versions = packages.candidates(names)
    root = folder / "root"
    unpack(packages.download(versions), root)
    (folder / "bin").mkdir()
    tools = {
        "dockerd": "usr/sbin/dockerd",
        "docker-proxy": "usr/sbin/docker-proxy",
        "containerd": "usr/bin/containerd",
        "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
        "ctr": "usr/bin/ctr",
        "docker-buildx": "usr/libexec/docker/cli-plugins/docker-buildx",
    }
    for name, path in tools.items():
        found = next(
            (root / p for p in (path, path.replace("libexec", "lib")) if (root / p).exists()), None
        )
        if found:
            (folder / "bin" / name).symlink_to(os.path.relpath(found, folder / "bin"))
    if "libdevmapper1.02.1" in versions:  # which a small Debian lacks
        (folder / "bin" / "dockerd").unlink()
        files.write(folder / "bin" / "dockerd", _WITH_LIBRARIES, 0o755)
    own = Packages(host, on_event=on_event)
    for source in dict.fromkeys((suite, *NEWEST.suites, host)):
        # runc starts itself again through /proc/self/exe, so it must run on the host's own libc.
        candidate = Packages(source, on_event=on_event)
        version = candidate.candidates(["runc"])
        unpack(candidate.download(version), folder / f"runc-{source}")
        runc = next((folder / f"runc-{source}").glob("usr/*bin/runc"))
        if _runs(runc):
            (folder / "bin" / "runc").symlink_to(os.path.relpath(runc, folder / "bin"))
            versions |= version
            break
        shutil.rmtree(folder / f"runc-{source}")
    closure = own.closure(["iptables"])
    unpack(own.download(closure), folder / "iptables")
    # `docker run --init` starts docker-init, which is tini-static.
    init = own.candidates(["tini"])
    unpack(own.download(init), folder / "tini")
    (folder / "bin" / "docker-init").symlink_to("../tini/usr/bin/tini-static")
    return {**versions, "iptables": closure["iptables"], **init}


def _link(folder: Path, target: Path) -> None:
    """Write the scripts that contain their own path, for the folder's final name `target`."""
    root = folder / "iptables"
    sbin = root / "usr/sbin"
    libraries = next(root.glob("usr/lib/*-linux-gnu*/xtables"))
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore"):
        link = sbin / name
        link.unlink(missing_ok=True)
        link.symlink_to(
            "xtables-nft-multi"
        )  # dpkg would have made it, by the package's alternatives
        text = launcher(root, link, {"XTABLES_LIBDIR": str(libraries)})
        files.write(folder / "bin" / name, text.replace(str(folder), str(target)), 0o755)
    docker = target / "root/usr/bin/docker"
    if not (folder / "bin" / "docker-buildx").exists():
        (folder / "bin" / "docker").symlink_to("../root/usr/bin/docker")
        return
    # buildx works as a subcommand without a plugin folder in the user's ~/.docker, which keeps the
    # user's logins.
    script = f"""#!/bin/sh
case "$1" in
  buildx) shift; exec {target}/bin/docker-buildx "$@" ;;
  build) exec {target}/bin/docker-buildx "$@" ;;
esac
exec {docker} "$@"
"""
    files.write(folder / "bin" / "docker", script, 0o755)


_WITH_LIBRARIES = """#!/bin/sh
root=$(dirname "$0")/../root
LD_LIBRARY_PATH=$(echo "$root"/lib/*-linux-gnu*) exec "$root/usr/sbin/dockerd" "$@"
"""
"""Starts dockerd with the libraries that were unpacked beside it. The program is not started by a
loader: it starts itself again through /proc/self/exe."""


def _runs(program: Path) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def of(place: EnginePlace) -> Software:
    """The programs that the engine of this place was started with.

    Raises OutsideError if they are gone.
    """
    known = json.loads((place.data / "engine.json").read_text())
    folder = Path(known.get("software", "/nonexistent"))
    if not (folder / "versions.json").exists():
        raise OutsideError(
            f"{folder}: the engine's programs are gone", "builder engine stop, then start it again"
        )
    return Software(folder, json.loads((folder / "versions.json").read_text()))
