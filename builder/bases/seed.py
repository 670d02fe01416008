"""What a root is made from inside its container: required packages unpacked as far as dpkg needs
it to run, every .deb, and the script that installs them."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from builder.bases import deb
from builder.core.templates import EPOCH

if TYPE_CHECKING:
    from builder.bases.tarball import LayerWriter

RECIPE: Final = "1"
"""Part of a root's key. Raise it where this file makes other roots from the same packages."""
FOLDER: Final = "debs"
"""Where the packages and the script lie; it is not part of the root."""
SCRIPT: Final = f"{FOLDER}/install"

# The slim image's excludes. They stay in the root and also apply to packages that are added later.
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
}
_ACCOUNTS: Final = {"etc/passwd": "root:*:0:0:root:/root:/bin/sh\n", "etc/group": "root:*:0:\n"}
"""The user of the container. Where an image lacks these files, Podman writes them with a user that
is called 0 (seen with 4.3.1), and base-passwd's script keeps what is there. So the image has them,
and the install script removes them: base-passwd then writes its own."""
_SOURCES: Final = "etc/apt/sources.list.d/debian.sources"
_DATABASE: Final = ("var/lib/dpkg/status", "var/lib/dpkg/available")
# dpkg unpacks every package again, and a file that is there already costs it the most.
_NOT_NEEDED: Final = (*re.findall(r"path-exclude=/(\S+/)\*", _EXCLUDES), "usr/share/zoneinfo/")
_MERGED: Final = ("bin", "lib", "lib64", "sbin")

# The required packages depend on each other in circles: dpkg is told to ignore the order of
# unpacking (as debootstrap and mmdebstrap do), and configures in the right order by itself.
# base-passwd goes first, because other scripts need its accounts. apt knows the order of the rest.
_INSTALL: Final = f"""\
set -eu
umask 022
cd /
rm -f {" ".join(f"/{name}" for name in _ACCOUNTS)}
dpkg --force-depends --install /{FOLDER}/required/base-passwd.deb
dpkg --force-depends --install /{FOLDER}/required/*.deb
if [ -d /{FOLDER}/added ]; then
  apt-get install --quiet --yes --no-install-recommends -o APT::Sandbox::User=root \\
    -o APT::Keep-Downloaded-Packages=true -o Dpkg::Use-Pty=false /{FOLDER}/added/*.deb
fi
wrong=$(dpkg --audit)
[ -z "$wrong" ] || {{ echo "$wrong"; exit 1; }}
"""


@dataclass
class _Tree:
    """Files by name, without a leading slash; a later file takes the place of an earlier one."""

    merged: bool
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)

    def add(self, info: tarfile.TarInfo, content: bytes = b"") -> None:
        info.name = self._placed(info.name)
        if info.islnk():
            info.linkname = self._placed(info.linkname)
        known = self.entries.get(info.name)
        if known is None or not info.isdir():
            self.entries[info.name] = (info, content)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime, content = mode, EPOCH, text.encode()
        info.size = len(content)
        self.add(info, content)

    def folder(self, name: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self.add(info)

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        info.mtime = EPOCH
        self.entries[name] = (info, b"")

    def _placed(self, name: str) -> str:
        """Where a name of a package lies with a merged /usr."""
        top = name.partition("/")[0]
        return f"usr/{name}" if self.merged and top in _MERGED else name

    def sorted(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """All entries, each after its folders, hard links after all that they may lead to."""
        for name in list(self.entries):
            for parent in Path(name).parents:
                if str(parent) not in (".", *self.entries):
                    self.folder(str(parent))
        links = [one for one in sorted(self.entries) if self.entries[one][0].islnk()]
        for name in (*(one for one in sorted(self.entries) if one not in set(links)), *links):
            yield self.entries[name]


def write(
    writer: LayerWriter,
    suite: str,
    required: Sequence[tuple[str, Path]],
    added: Sequence[tuple[str, Path]],
) -> None:
    """Write the layer that the container starts from.

    required, added: name and .deb of each package; the required ones are unpacked too. Raises
    OutsideError for a package that cannot be read.
    """
    tree = _Tree(merged="usr-is-merged" in dict(required))
    if tree.merged:
        for top in _MERGED:
            tree.folder(f"usr/{top}")
            tree.link(top, f"usr/{top}")
    for _, path in required:
        for info, pieces in deb.files(path):
            if not info.name.startswith(_NOT_NEEDED):
                tree.add(info, b"".join(pieces))
    tree.link("usr/bin/awk", "mawk")  # until mawk's own script makes an alternative of it
    tree.folder("tmp", 0o1777)
    for name in _DATABASE:
        tree.text(name, "")
    for name, text in {
        **_FILES,
        **_ACCOUNTS,
        _SOURCES: _sources(suite, dict(required)["apt"]),
    }.items():
        tree.text(name, text, 0o755 if name == _POLICY else 0o644)
    tree.text(SCRIPT, _INSTALL, 0o755)
    for info, content in tree.sorted():
        writer.entry(info, (content,))
    for folder, packages in (("added", added), ("required", required)):
        if packages:
            writer.folder(f"{FOLDER}/{folder}")
        for name, path in packages:
            with path.open("rb") as file:
                writer.file(f"{FOLDER}/{folder}/{name}.deb", file, path.stat().st_size)


def _sources(suite: str, apt: Path) -> str:
    """The example sources of Debian's apt package, which name no mirror of this host."""
    for info, pieces in deb.files(apt):
        if re.search(r"apt/examples/(debian\.sources|sources\.list)$", info.name):
            return main_only(b"".join(pieces).decode())
    return f"# no default in this release's apt package; name a mirror of Debian {suite} here\n"


def main_only(example: str) -> str:
    """An example list of apt's, as deb822 entries for the `main` component."""
    seen: dict[str, list[str]] = {}
    for uris, suites in re.findall(r"(?m)^URIs: (\S+)\nSuites: (.+)$", example):
        seen.setdefault(uris, []).extend(suites.split())
    for uri, name in re.findall(r"(?m)^deb (\S+) (\S+) ", example):
        seen.setdefault(uri, []).append(name)
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for uri, suites in seen.items()
    )
