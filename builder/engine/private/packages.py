"""Debian's packages for a private engine, read and fetched with the host's apt.

Nothing is installed. apt gets lists, a cache and an empty dpkg status of our own: the host does not
change, and root is not needed. The mirror, its options and its keyring are the host's. Only the
suite is replaced, so that a Debian 12 host can fetch from Debian 13 or 14 and back. The host's
apt.conf (proxies, CA) stays in force.
"""

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.files import cache_home, locked, write
from builder.core.mirrors import AptSource, Mirror, mirror

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
LISTS_AGE = 3600.0
"""Seconds after which package lists are fetched again."""

# --- apt -----------------------------------------------------------------------------------------


class Packages:
    """The packages of one suite, with its updates and security fixes, for this architecture."""

    def __init__(
        self,
        suite: str,
        source: Mirror | None = None,
        cache: Path | None = None,
        lists_age: float = LISTS_AGE,
        on_event: OnEvent = ignore,
    ) -> None:
        self.suite = suite
        self.mirror = source or mirror()
        self.lists_age = lists_age
        self.on_event = on_event
        archive = self.mirror.archive
        key = hashlib.sha256(repr((suite, self.mirror)).encode()).hexdigest()[:8]
        self.folder = (cache or cache_home()) / "debian" / f"{suite}-{key}"
        self._sibling = archive.uri.endswith("/debian") and f"{archive.uri}-security"
        self._ready = False

    # Reading ------------------------------------------------------------------------------------

    def candidates(self, names: Iterable[str]) -> dict[str, str]:
        """The newest version of each package. Raises OutsideError for one that the mirror lacks."""
        wanted = list(names)
        text = self._apt("apt-cache", "policy", *wanted)
        found = dict(
            re.findall(r"(?m)^(\S+?)(?::\w+)?:\n(?:.*\n)??  Candidate: (?!\(none\))(\S+)", text)
        )
        if missing := [name for name in wanted if name not in found]:
            raise self._unknown(missing)
        return {name: found[name] for name in wanted}

    def closure(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> version of `names` and all that they depend on, sorted by name.

        Recommended packages are left out.
        """
        text = self._apt("apt-get", "--simulate", "install", *names)
        pairs = re.findall(r"(?m)^Inst (\S+?)(?::\w+)? (?:\[[^\]]*\] )?\((\S+) ", text)
        return dict(sorted(pairs))

    # Fetching -----------------------------------------------------------------------------------

    def download(self, versions: Mapping[str, str]) -> tuple[Path, ...]:
        """The cached .deb files of these versions; apt checks them against the index."""
        folder = self.folder.parent / "debs"  # shared by all suites
        wanted = {name: folder / _filename(name, version) for name, version in versions.items()}
        with locked(folder / ".lock"):
            missing = [name for name, path in wanted.items() if not self._have(path)]
            if missing:
                self._fetch({name: versions[name] for name in missing}, folder)
        return tuple(self._have(path) or path for path in wanted.values())

    def _have(self, path: Path) -> Path | None:
        """The cached file of a package, whatever its architecture (`amd64` or `all`)."""
        return next(iter(path.parent.glob(f"{_escaped(path.name)}_*.deb")), None)

    def _fetch(self, versions: Mapping[str, str], folder: Path) -> None:
        specs = [f"{name}={version}" for name, version in versions.items()]
        with (
            step(f"Debian {self.suite}: {len(versions)} packages", self.on_event) as fetching,
            tempfile.TemporaryDirectory(dir=folder, prefix=".new.") as scratch,
        ):
            try:
                self._apt("apt-get", "download", *specs, cwd=Path(scratch))
            except OutsideError:
                self.refresh(force=True)  # lists older than the mirror name files that are gone
                self._apt("apt-get", "download", *specs, cwd=Path(scratch))
            size = 0
            for deb in Path(scratch).glob("*.deb"):
                size += deb.stat().st_size
                deb.replace(folder / deb.name)
            fetching.progress(size, size)
            fetching.detail = f"{size / 1e6:.1f} MB"

    # The lists ----------------------------------------------------------------------------------

    def refresh(self, force: bool = False) -> None:
        """Fetch the package lists unless they are younger than `lists_age` seconds."""
        if self._ready and not force:
            return
        stamp = self.folder / "updated"
        with locked(self.folder / "lock"):
            age = time.time() - stamp.stat().st_mtime if stamp.exists() else float("inf")
            if force or not 0 <= age < self.lists_age:
                for name in ("state/lists/partial", "cache/archives/partial"):
                    (self.folder / name).mkdir(parents=True, exist_ok=True)
                write(self.folder / "state/status", "")
                write(self.folder / "apt.conf", self._configuration())
                write(self.folder / "debian.sources", self._sources())
                self._update()
                stamp.touch()
        self._ready = True

    def _update(self) -> None:
        with step(f"Debian {self.suite}: package lists", self.on_event) as updating:
            try:
                self._run("apt-get", "update")
            except OutsideError as error:
                if "is expired" not in error.message:
                    raise
                # A snapshot, or a mirror that stands still. The signature is still checked; the
                # protection against being held at an old state is lost: say so.
                updating.log(f"{error.message}: used all the same")
                file = self.folder / "debian.sources"
                kept = re.sub(r"(?m)^Check-Valid-Until: .*\n", "", file.read_text())
                write(file, re.sub(r"(?m)^(Types: deb)$", r"\1\nCheck-Valid-Until: no", kept))
                self._run("apt-get", "update")

    def _sources(self) -> str:
        archive, security = self.mirror.archive, self.mirror.security
        stanzas = [archive.stanza(self.suite)]
        if self._exists(archive.uri, f"{self.suite}-updates"):
            stanzas.append(archive.stanza(f"{self.suite}-updates"))
        if security is None and self._sibling:
            # a minimal Debian names no security archive; most mirrors have it beside the archive
            security = AptSource(self._sibling, (), archive.options)
        if security and self._exists(security.uri, f"{self.suite}-security"):
            stanzas.append(security.stanza(f"{self.suite}-security"))
        key = next((path for path in KEYRINGS if path.exists()), None)
        if key and "Signed-By" not in dict(archive.options):
            stanzas = [f"{stanza}Signed-By: {key}\n" for stanza in stanzas]
        return "\n".join(stanzas)

    def _exists(self, uri: str, suite: str) -> bool:
        """Whether the mirror has a suite. Raises OutsideError where the answer is neither."""
        with tempfile.TemporaryDirectory() as scratch:
            url = f"{uri}/dists/{suite}/InRelease"
            command = ["/usr/lib/apt/apt-helper", "download-file", url, f"{scratch}/InRelease"]
            done = _call([*command, "-c", str(self.folder / "apt.conf")])
        if done.returncode and not re.search(r"\b40[34]\b|not found", done.stderr, re.I):
            raise self._refused(done)
        return done.returncode == 0

    def _configuration(self) -> str:
        root = self.folder
        return "\n".join(
            [
                "#clear APT::Update;",  # hooks of the host
                "#clear APT::Default-Release;",
                'APT::Update::Error-Mode "any";',  # a list that could not be fetched is a failure
                'APT::Sandbox::User "root";',  # the cache is not readable for another user
                'APT::Install-Recommends "false";',
                'Acquire::Languages "none";',
                'Acquire::Retries "3";',
                f'Dir::State "{root}/state/";',
                f'Dir::State::status "{root}/state/status";',
                f'Dir::State::extended_states "{root}/state/extended_states";',
                f'Dir::Cache "{root}/cache/";',
                'Dir::Cache::pkgcache "pkgcache.bin";',
                'Dir::Cache::srcpkgcache "srcpkgcache.bin";',
                f'Dir::Etc::sourcelist "{root}/debian.sources";',
                'Dir::Etc::sourceparts "/dev/null";',
                'Dir::Etc::preferences "/dev/null";',
                'Dir::Etc::preferencesparts "/dev/null";',
                "",
            ]
        )

    # Calling apt --------------------------------------------------------------------------------

    def _apt(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        self.refresh()
        return self._run(program, *arguments, cwd=cwd)

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        command = [program, "-qq", "-c", str(self.folder / "apt.conf")]
        if program == "apt-cache":
            command.remove("-qq")
        done = _call([*command, *arguments], cwd)
        if done.returncode:
            pattern = r"(?m)Unable to locate package (\S+)|Version '(\S+)' for '(\S+)' was not"
            pattern += r"|Package '?(\S+?)'? has no installation|Can't find a source to download"
            pattern += r"|No packages found"
            if match := re.search(pattern, done.stderr):
                name, version, of, virtual = match.groups()
                raise self._unknown([f"{of}={version}" if of else name or virtual or arguments[-1]])
            raise self._refused(done)
        return done.stdout

    def _unknown(self, names: Sequence[str]) -> OutsideError:
        return OutsideError(
            f"Debian {self.suite} has no package {', '.join(names)}",
            f"look for its name: apt-cache -c {self.folder / 'apt.conf'} search WORD",
        )

    def _refused(self, done: subprocess.CompletedProcess[str]) -> OutsideError:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        said = (lines or done.stderr.strip().splitlines() or ["no message"])[0]
        return OutsideError(
            f"apt could not read Debian {self.suite} from {self.mirror.archive.uri}:"
            f" {said.removeprefix('E:').strip()}",
            "check the network and the proxy (apt-get update must work on this machine), and retry",
        )


def _filename(name: str, version: str) -> str:
    """apt's name of a file without the architecture; the colon of an epoch is escaped."""
    return f"{name}_{quote(version, safe='+~.-')}".replace("%3A", "%3a")


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


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


# --- programs ------------------------------------------------------------------------------------


def unpack(debs: Iterable[Path], folder: Path) -> None:
    """Extract the packages' files into `folder`. No maintainer script runs. Raises OutsideError."""
    folder.mkdir(parents=True, exist_ok=True)
    for deb in debs:
        done = _call(["dpkg-deb", "--extract", str(deb), str(folder)])
        if done.returncode:
            raise OutsideError(
                f"{deb}: could not be unpacked: {done.stderr.strip().splitlines()[-1]}",
                f"check the free space, delete {deb} and retry",
            )


def launcher(root: Path, program: Path, environment: Mapping[str, str] | None = None) -> str:
    """The text of a shell script that runs a program of an unpacked root with the root's libraries.

    It calls the root's own loader, so that the host's libc does not matter. It calls a statically
    linked program directly. environment: variables that it exports.
    """
    loader = next(iter(sorted(root.glob("**/lib/*-linux-gnu*/ld-linux*.so.*"))), None)
    call = f"exec {shlex.quote(str(program))}"
    with program.open("rb") as file:
        dynamic = b"/ld-linux" in file.read(4096)
    if loader and dynamic:
        paths = sorted({str(p.parent) for p in root.glob("**/lib/*-linux-gnu*/*.so*")})
        call = (
            f"exec {shlex.quote(str(loader))} --argv0 {shlex.quote(program.name)}"
            f" --library-path {shlex.quote(':'.join(paths))} {shlex.quote(str(program))}"
        )
    exports = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in (environment or {}).items()
    )
    return f'#!/bin/sh\n{exports}{call} "$@"\n'
