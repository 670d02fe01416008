"""Debian's packages for a private engine, read and fetched with the host's apt.

Nothing is installed. apt gets a folder with lists and an empty dpkg status, for one use: the host
does not change, and root is not needed. The mirror, its options and its keyring are the host's.
Only the suite is replaced, so that a Debian 12 host can fetch from Debian 13 or 14 and back. The
host's apt.conf (proxies, CA) stays in force.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from builder.core.apt import KEYRING, AptSource, Mirror, mirror
from builder.core.errors import OutsideError, fix_of
from builder.core.events import OnEvent, ignore, step
from builder.core.files import write

_KEYRINGS: Final = (KEYRING, KEYRING.replace(".gpg", ".pgp"))
_URI: Final = re.compile(r"^'\S+' (\S+\.deb) ", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    path: Path
    """Of its .deb file."""


class Packages:
    """The packages of one suite, with its updates and security fixes.

    folder: where apt's files and the packages lie, in a folder of the suite's name. Raises
    OutsideError for a mirror whose lists cannot be read.
    """

    def __init__(
        self, suite: str, folder: Path, source: Mirror | None = None, on_event: OnEvent = ignore
    ) -> None:
        self.suite, self.folder, self.on_event = suite, folder / suite, on_event
        self.mirror = source or mirror()
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True)
        write(self.folder / "state/status", "")
        write(self.folder / "apt.conf", self._configuration())
        write(self.folder / "debian.sources", self._sources())
        with step(f"Debian {suite}: package lists", on_event):
            self._apt("update")

    def download(self, names: Sequence[str], dependencies: bool = False) -> tuple[Package, ...]:
        """Return the newest version of each package; apt compares each file with the index.

        dependencies: also of all that they depend on, but for recommendations. Raises OutsideError
        for a package that the mirror lacks.
        """
        uris = self._apt("install" if dependencies else "download", "--print-uris", *names)
        packages = [_package(self.folder / name) for name in sorted(_URI.findall(uris))]
        specs = [f"{package.name}={package.version}" for package in packages]
        with step(f"Debian {self.suite}: {len(packages)} packages", self.on_event) as fetching:
            self._apt("download", *specs, cwd=self.folder)
            size = sum(package.path.stat().st_size for package in packages)
            fetching.detail = f"{size / 1e6:.1f} MB"
        return tuple(packages)

    def _sources(self) -> str:
        archive, security = self.mirror.archive, self.mirror.security
        if security is None and archive.uri.endswith("/debian"):
            # a minimal Debian names no security archive; most mirrors have it beside the archive
            security = AptSource(f"{archive.uri}-security", (), archive.options)
        stanzas = [archive.stanza(self.suite)]
        for source, pocket in ((archive, "updates"), (security, "security")):
            if source and self._exists(source.uri, f"{self.suite}-{pocket}"):
                stanzas.append(source.stanza(f"{self.suite}-{pocket}"))
        keyring = next((path for path in _KEYRINGS if Path(path).exists()), None)
        if keyring and "Signed-By" not in dict(archive.options):
            stanzas = [f"{stanza}Signed-By: {keyring}\n" for stanza in stanzas]
        return "\n".join(stanzas)

    def _exists(self, uri: str, suite: str) -> bool:
        """Return whether the mirror has a suite. Raises OutsideError where it does not say."""
        with tempfile.TemporaryDirectory() as scratch:
            url = f"{uri}/dists/{suite}/InRelease"
            command = ["/usr/lib/apt/apt-helper", "download-file", url, f"{scratch}/InRelease"]
            done = _call([*command, "-c", str(self.folder / "apt.conf")])
        if done.returncode and not re.search(r"\b40[34]\b|not found", done.stderr, re.IGNORECASE):
            raise self._failed(done)
        return done.returncode == 0

    def _configuration(self) -> str:
        folder = self.folder
        settings = {
            "APT::Update::Error-Mode": "any",  # a list that could not be fetched is a failure
            "APT::Sandbox::User": "root",  # the cache is not readable for another user
            "APT::Install-Recommends": "false",
            # A mirror that stands still is used. The signature is checked all the same.
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Retries": "3",
            "Dir::State": f"{folder}/state/",
            "Dir::State::status": f"{folder}/state/status",
            "Dir::Cache": f"{folder}/cache/",
            "Dir::Etc::sourcelist": f"{folder}/debian.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
        }
        hooks = "#clear APT::Update;\n#clear APT::Default-Release;\n"  # those of the host
        return hooks + "".join(f'{name} "{value}";\n' for name, value in settings.items())

    def _apt(self, verb: str, *arguments: str, cwd: Path | None = None) -> str:
        done = _call(["apt-get", "-qq", "-c", str(self.folder / "apt.conf"), verb, *arguments], cwd)
        if done.returncode:
            raise self._failed(done)
        return done.stdout

    def _failed(self, done: subprocess.CompletedProcess[str]) -> OutsideError:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        first = (lines or done.stderr.strip().splitlines() or ["no message"])[0]
        return OutsideError(
            f"apt: Debian {self.suite} from {self.mirror.archive.uri}:"
            f" {first.removeprefix('E:').strip()}",
            fix_of(
                done.stderr,
                "check the network and the proxy (apt-get update must work on this machine), "
                "and retry",
            ),
        )


def _package(path: Path) -> Package:
    """Return what the name of a .deb file says: docker.io_26.1.5%2bdfsg1-9_amd64.deb."""
    name, version, _ = path.name.split("_")
    return Package(name, unquote(version), path)


def _call(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise OutsideError(
            f"{command[0]} is missing: this needs Debian's package tools",
            "use a Debian machine, or install Docker and let the factory use it (engine = machine)",
        ) from error


def unpack(packages: Iterable[Package], folder: Path) -> None:
    """Extract the packages' files into `folder`. No maintainer script runs. Raises OutsideError."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        done = _call(["dpkg-deb", "--extract", str(package.path), str(folder)])
        if done.returncode:
            raise OutsideError(
                f"{package.path}: could not be unpacked: {done.stderr.strip().splitlines()[-1]}",
                f"check the free space, delete {package.path} and retry",
            )
