"""The rootfs: Debian's required packages, apt, Python and what image.yaml adds, as one layer.

The factory unpacks the required packages as far as dpkg needs it to run. In a container of them,
without network and with an environment that holds nothing of this machine, Debian's own scripts
install and configure every package. The container's files, normalized, are the layer. The same
packages give the same bytes on every engine.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import tarfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Final

from builder.core.docker_sdk import refusals
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.files import EPOCH
from builder.engine import containers
from builder.engine.docker import PLATFORM
from builder.image import deb, tarball
from builder.image.content_store import ContentStore
from builder.image.download import fetch_debs
from builder.image.layer import Compression, Layer, assemble
from builder.image.loading import load
from builder.image.plan import Rootfs
from builder.image.tarball import LayerWriter
from builder.reading.tars import members

if TYPE_CHECKING:
    from docker.models.containers import Container

    from builder.config.debian import Archives
    from builder.config.debian_packages import DebianPackage
    from builder.engine import Engine

INSTALL_FOLDER: Final = "debs"
"""Where the packages and the script lie that the container installs."""

KIND: Final = "training-image-factory.rootfs"
"""The label of the containers and images that a rootfs is made with."""
REPOSITORY: Final = containers.TEMPORARY

_ENVIRONMENT: Final = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LC_ALL=C.UTF-8",
    "TZ=UTC",
    "PYTHONHASHSEED=0",
    "PERL_HASH_SEED=0",
    "DEBIAN_FRONTEND=noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN=true",
)
# The slim image's excludes. They stay in the rootfs and apply to packages that are added later.
_EXCLUDES: Final = """\
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/groff/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/linda/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/man/*
"""
_POLICY: Final = "usr/sbin/policy-rc.d"
_FILES: Final = {
    "etc/dpkg/dpkg.cfg.d/slim": _EXCLUDES,
    # as in the published image: no fsync for each file, no services started by packages
    "etc/dpkg/dpkg.cfg.d/docker-apt-speedup": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/docker-no-languages": 'Acquire::Languages "none";\n',
    "etc/apt/apt.conf.d/docker-gzip-indexes": 'Acquire::GzipIndexes "true";\n',
    _POLICY: "#!/bin/sh\nexit 101\n",
    "var/lib/dpkg/status": "",
    "var/lib/dpkg/available": "",
}
_ACCOUNTS: Final = {"etc/passwd": "root:*:0:0:root:/root:/bin/sh\n", "etc/group": "root:*:0:\n"}
"""The user of the container. Where an image lacks these files, Podman writes them with a user that
is called 0 (seen with 4.3.1), and base-passwd's script keeps what is there. So the image has them,
and the install script removes them: base-passwd then writes its own."""
_SOURCES: Final = "etc/apt/sources.list.d/debian.sources"
# dpkg unpacks every package again, and a file that is there already costs it the most.
_NOT_NEEDED: Final = (*re.findall(r"path-exclude=/(\S+/)\*", _EXCLUDES), "usr/share/zoneinfo/")
_MERGED: Final = ("bin", "lib", "lib64", "sbin")

# The required packages depend on each other in circles: dpkg is told to ignore the order of
# unpacking (as debootstrap and mmdebstrap do), and configures in the right order by itself.
# base-passwd goes first, because other scripts need its accounts. apt knows the order of the rest.
_SCRIPT: Final = f"{INSTALL_FOLDER}/install"
_INSTALL: Final = f"""\
set -eu
umask 022
cd /
rm -f {" ".join(f"/{name}" for name in _ACCOUNTS)}
dpkg --force-depends --install /{INSTALL_FOLDER}/required/base-passwd.deb
dpkg --force-depends --install /{INSTALL_FOLDER}/required/*.deb
if [ -d /{INSTALL_FOLDER}/added ]; then
  apt-get install --quiet --yes --no-install-recommends -o APT::Sandbox::User=root \\
    -o APT::Keep-Downloaded-Packages=true -o Dpkg::Use-Pty=false /{INSTALL_FOLDER}/added/*.deb
fi
wrong=$(dpkg --audit)
[ -z "$wrong" ] || {{ echo "$wrong"; exit 1; }}
"""


def make(
    rootfs: Rootfs,
    engine: Engine,
    archives: Archives,
    store: ContentStore,
    compression: Compression,
    on_event: OnEvent = ignore,
    stop: threading.Event | None = None,
) -> Layer:
    """Return the layer of a rootfs: from the store, else made with the engine.

    stop: ends it with KeyboardInterrupt, and its container with it. Raises OutsideError where
    a package cannot be had or configured, or where the engine refuses.
    """
    key = rootfs.plan(compression).key
    stop = stop or threading.Event()
    with store.lock(key, partial(_check, stop)):
        if layer := store.find(key):
            return layer
        store.sweep()
        paths = fetch_debs(rootfs.packages, archives, on_event)
        newest = max(deb.built(path) for path in paths.values())
        if time.time() < newest:
            raise OutsideError(
                f"this machine's clock is behind the newest package, of {time.ctime(newest)}",
                "set the clock",
            )
        name = f"rootfs: Debian {rootfs.suite} from {len(paths)} packages"
        with (
            step(name, on_event) as making,
            refusals(REPOSITORY),
            store.writing() as out,
            TemporaryDirectory(dir=store.folder, prefix=store.unfinished) as scratch,
        ):
            exported = Path(scratch) / "exported.tar"
            _install(rootfs, paths, newest, engine, exported, making, stop)
            writer = LayerWriter(out, compression)
            with exported.open("rb") as file:
                normalize(file, newest, writer)
            layer = store.keep(out, writer.close(key))
            making.detail = f"{layer.blob.size / 1e6:.0f} MB"
    return layer


@contextlib.contextmanager
def container_of(
    engine: Engine,
    kind: str,
    layer: Layer,
    store: ContentStore,
    command: Sequence[str],
    network: str,
) -> Iterator[Container]:
    """Yield a container of one layer that was not started. At the end both are removed.

    kind: the label of both, by which the next run removes what a killed one left. network: the
    engine's name for its network.
    """
    containers.sweep(engine.client, kind)
    name = f"{REPOSITORY}:{secrets.token_hex(8)}"
    labels = containers.labels(kind, name)
    container = None
    try:
        load(engine, assemble([(layer, kind)], {"Labels": labels}), store, name)
        container = engine.client.containers.create(
            name,
            list(command[1:]),
            entrypoint=[command[0]],
            hostname=None if network == "host" else "localhost",
            labels=labels,
            network_mode=network,
            platform=PLATFORM,
            user="0:0",
        )
        yield container
    finally:
        if container is not None:
            container.remove(force=True, v=True)
        with contextlib.suppress(Exception):  # it may never have been loaded
            engine.client.images.remove(name, force=True)


def _install(
    rootfs: Rootfs,
    paths: Mapping[DebianPackage, Path],
    newest: int,
    engine: Engine,
    exported: Path,
    making: RunningStep,
    stop: threading.Event,
) -> None:
    """Install all packages in a container, and export its files as a tar.

    Raises OutsideError with the line of a script that failed.
    """
    store = ContentStore(exported.parent / "start")
    required = [(package.name, paths[package]) for package in sorted(rootfs.required)]
    added = [(package.name, paths[package]) for package in sorted(rootfs.added)]
    with store.writing() as out:
        # it goes no further than the engine
        writer = LayerWriter(out, Compression("gzip", 0))
        write_start(writer, rootfs.suite, required, added)
        layer = store.keep(out, writer.close(_SCRIPT))
    command = ["/usr/bin/env", "-i", *_ENVIRONMENT, f"SOURCE_DATE_EPOCH={newest}"]
    command += ["/bin/sh", f"/{_SCRIPT}"]
    _check(stop)
    with container_of(engine, KIND, layer, store, command, "none") as container:
        lines: list[str] = []

        def hear(line: str) -> None:
            lines.append(line)
            making.log(line)

        ended = threading.Event()
        containers.follow(container, hear, ended.set)
        container.start()
        while not ended.wait(0.2):
            _check(stop)
        if status := int(container.wait()["StatusCode"]):
            raise _failed(engine, status, lines)
        with exported.open("wb") as file:
            pieces: Any = container.export(chunk_size=1 << 20)
            for piece in pieces:
                _check(stop)
                file.write(piece)


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise KeyboardInterrupt


def _failed(engine: Engine, status: int, lines: Sequence[str]) -> OutsideError:
    """Return the error of an install script, from what dpkg and the packages' scripts printed."""
    if any("No space left on device" in line for line in lines):
        return engine.disk_full()
    at = next(
        (n for n, line in enumerate(lines) if line.startswith("dpkg: error processing")), None
    )
    if at is None:
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        return OutsideError(
            f"the rootfs could not be made (exit code {status}): {last}",
            "builder doctor shows the engine's state",
        )
    package = lines[at].removeprefix("dpkg: error processing ").rstrip(":")
    before = lines[at - 1] if at else ""
    return OutsideError(
        f"Debian's package could not be configured: {package}: {before.strip()}",
        "take the package out of image.yaml's `apt`, or choose another version: builder lock",
    )


# --- what the container starts from ---------------------------------------------------------------


def write_start(
    writer: LayerWriter,
    suite: str,
    required: Sequence[tuple[str, Path]],
    added: Sequence[tuple[str, Path]],
) -> None:
    """Write the layer that the container starts from: unpacked packages, every .deb, the script.

    No path is written twice: Docker's graph drivers refuse such a layer.
    required, added: name and .deb of each package; the required ones are unpacked too. Raises
    OutsideError for a package that cannot be read.
    """
    merged, folders = "usr-is-merged" in dict(required), set[str]()

    def placed(name: str) -> str:
        return f"usr/{name}" if merged and name.partition("/")[0] in _MERGED else name

    for top in _MERGED if merged else ():
        writer.folder(f"usr/{top}")
        writer.link(top, f"usr/{top}")
        folders.add(f"usr/{top}")
    writer.folder("tmp", 0o1777)  # in place of base-files' own
    folders.add("tmp")
    for _, path in required:
        for info, pieces in deb.files(path):
            info.name = placed(info.name)
            if info.name in folders or info.name.startswith(_NOT_NEEDED):
                continue  # as dpkg does, which leaves a folder that is there as it is
            if info.isdir():
                folders.add(info.name)
            if info.islnk():
                info.linkname = placed(info.linkname)
            writer.entry(info, pieces)
    writer.link("usr/bin/awk", "mawk")  # until mawk's own script makes an alternative of it
    sources = _sources(suite, dict(required)["apt"])
    for name, text in {**_FILES, **_ACCOUNTS, _SOURCES: sources}.items():
        writer.file(name, text.encode(), mode=0o755 if name == _POLICY else 0o644)
    writer.file(_SCRIPT, _INSTALL.encode(), mode=0o755)
    for folder, packages in (("added", added), ("required", required)):
        if packages:
            writer.folder(f"{INSTALL_FOLDER}/{folder}")
        for name, path in packages:
            with path.open("rb") as file:
                writer.file(f"{INSTALL_FOLDER}/{folder}/{name}.deb", file, path.stat().st_size)


def _sources(suite: str, apt: Path) -> str:
    """Return the example sources of Debian's apt package, which name no mirror of this host."""
    for info, pieces in deb.files(apt):
        if re.search(r"apt/examples/(debian\.sources|sources\.list)$", info.name):
            return main_only(b"".join(pieces).decode())
    return f"# no default in this release's apt package; name a mirror of Debian {suite} here\n"


def main_only(example: str) -> str:
    """Return an example list of apt's, as deb822 entries for the `main` component."""
    suites: dict[str, list[str]] = {}
    for uris, names in re.findall(r"(?m)^URIs: (\S+)\nSuites: (.+)$", example):
        suites.setdefault(uris, []).extend(names.split())
    for uri, name in re.findall(r"(?m)^deb (\S+) (\S+) ", example):
        suites.setdefault(uri, []).append(name)
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(names)}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for uri, names in suites.items()
    )


# --- the normalizer -------------------------------------------------------------------------------
#
# A container's files become a layer that does not depend on when and where it ran. What its run and
# its engine left in it is taken out, the entries are sorted, and what was made in it gets one date.
# A root that mmdebstrap made of the same 88 packages (4,224 files) differs in devices, in states of
# apt and dpkg, and in dates: here, folders and what scripts made have the one date of all images.

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


def normalize(exported: IO[bytes], newest: int, writer: LayerWriter) -> None:
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
            file = tar.extractfile(source) if info.size else None
            writer.entry(info, tarball.pieces(file) if file else ())


def texts(blob: Path, names: Collection[str]) -> dict[str, str]:
    with blob.open("rb") as file, members(file) as entries:
        return {
            info.name: content.read().decode()
            for info, content in entries
            if content and info.name in names
        }


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
