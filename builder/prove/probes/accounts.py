"""Which files of an image does nobody account for?

A file is accounted for by the list of a locked Debian package, by the RECORD of a locked Python
package, as bytecode of such a file, as a link to one, or by the factory, which names its own. The
others are named. Where Python, a shell or the loader would find them, they are refused.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH110, PTH114, PTH115, PTH118, PTH119, PTH123, PTH207
from __future__ import annotations

import glob
import os
import re
import stat
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    from collections.abc import Collection, Iterable, Iterator, Mapping

    Json = dict[str, Any]

SHOWN = 20
LINKS = 8
"""How often a link may lead to a link."""

# What the scripts of Debian's packages make, the rootfs's own settings, and what an engine mounts
_ETC = """
.pwd.lock alternatives/* apt/apt.conf.d/docker-* apt/sources.list.d/debian.sources
ca-certificates.conf dpkg/dpkg.cfg.d/docker-apt-speedup dpkg/dpkg.cfg.d/slim environment group*
gshadow* hostname hosts inputrc ld.so.cache machine-id motd nsswitch.conf pam.d/common-* passwd*
profile python3/debian_config rc?.d/* resolv.conf security/opasswd shadow* shells ssl/certs/*
subgid* subuid* timezone
"""
MADE = (
    *(f"/etc/{name}" for name in _ETC.split()),
    "/.dockerenv", "/root/.bashrc", "/root/.profile", "/run/*", "/usr/lib/ssl/*",
    "/usr/sbin/policy-rc.d", "/usr/share/info/dir", "/usr/share/*/cache/*", "/var/cache/*",
    "/var/lib/*", "/var/log/*",
)  # fmt: skip
LOADER = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu", "/usr/local/lib/x86_64-linux-gnu",
)  # fmt: skip
_PACKAGES = re.compile(r"/(site|dist)-packages/|^/usr/(local/)?lib/python3[\d.]*/")
_LIBRARY = re.compile(r"\.so(\.[\w.]+)?$")
_CONFIGURES = re.compile(r"/etc/ld\.so\.(preload|conf(\.d/.*)?)$")
_BYTECODE = re.compile(r"/__pycache__/([^/]+)\.cpython-\d+(\.opt-\d)?\.pyc$")


def files(root: str, skip: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the path of every file in an image, and where it leads ("" for one that is no link)."""
    left_out = {os.path.join(root, name.lstrip("/")) for name in (*skip, "proc", "sys", "dev")}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in left_out]
        inside = os.path.normpath("/" + os.path.relpath(folder, root))
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                yield os.path.join(inside, name), ""
            elif stat.S_ISLNK(mode):
                yield (
                    os.path.join(inside, name),
                    os.path.normpath(os.path.join(inside, os.readlink(path))),
                )


def of_debian(root: str, locked: Collection[str]) -> Iterator[str]:
    """Yield the files of Debian's packages by dpkg's lists. locked: their names; none for all."""
    for path in glob.glob(os.path.join(glob.escape(root), "var/lib/dpkg/info/*.list")):
        if not locked or os.path.basename(path)[:-5].partition(":")[0] in locked:
            with open(path) as opened:
                yield from opened.read().splitlines()
    diversions = os.path.join(root, "var/lib/dpkg/diversions")
    if os.path.exists(diversions):
        with open(diversions) as opened:
            yield from opened.read().splitlines()[1::3]


def resolved(root: str, paths: Iterable[str]) -> dict[str, str]:
    """Return paths of an image, each with the links among its folders followed."""
    folders: dict[str, str] = {}
    result = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            real = os.path.realpath(os.path.join(root, folder.lstrip("/")))
            folders[folder] = os.path.normpath("/" + os.path.relpath(real, os.path.realpath(root)))
        result[path] = os.path.join(folders[folder], name)
    return result


def unaccounted(
    entries: Mapping[str, str], brought: Collection[str], own: Collection[str]
) -> list[str]:
    """Return the files of an image that nobody accounts for.

    entries: path -> where it leads, as `files` gives them. brought: what packages bring, and the
    factory. own: patterns of further paths. What MADE has counts only where it lies: a link to it
    would make a program of it.
    """

    def known(path: str, depth: int = 0) -> bool:
        patterns = own if depth else (*own, *MADE)
        if path in brought or any(fnmatchcase(path, pattern) for pattern in patterns):
            return True
        source = _BYTECODE.sub(r"/\1.py", path)
        if source != path:
            return known(source)
        target = entries.get(path)
        if target is None:  # a link leads to a folder, whose files are judged, or nowhere
            return depth > 0
        return bool(target) and depth < LINKS and known(target, depth + 1)

    return sorted(path for path in entries if not known(path))


def is_run(path: str, folders: Mapping[str, Collection[str]]) -> bool:
    """Tell whether a shell, Python or the loader would find a file by itself.

    folders: of PATH, of PYTHONPATH with sys.path, of LD_LIBRARY_PATH.
    """
    folder, name = os.path.split(path)
    if folder in folders["PATH"] or _PACKAGES.search(path) or _CONFIGURES.match(path):
        return True
    if any(path.startswith(f"{top}/") for top in folders["PYTHONPATH"]):
        return True
    libraries = (*LOADER, *folders["LD_LIBRARY_PATH"])
    return bool(_LIBRARY.search(name)) and (folder in libraries or "/glibc-hwcaps/" in path)


def at_start(root: str, paths: Iterable[str]) -> list[str]:
    """Return the files that run code whenever Python starts: `.pth` with an import, and hooks."""
    result = []
    for path in paths:
        name = os.path.basename(path)
        if name in ("sitecustomize.py", "usercustomize.py"):
            result.append(path)
        elif name.endswith(".pth"):
            with open(os.path.join(root, path.lstrip("/")), "rb") as opened:
                if re.search(rb"^import[ \t]", opened.read(1 << 20), re.MULTILINE):
                    result.append(path)
    return sorted(result)


def report(
    root: str, request: Json, recorded: Collection[str], python: Collection[str]
) -> tuple[list[str], Json]:
    """Return the files that would be run and that nobody accounts for, and what was seen.

    recorded: the files of the locked Python packages. python: the folders of sys.path.
    """
    entries = dict(files(root, request["skip"]))
    targets = resolved(root, filter(None, entries.values()))
    entries = {path: targets.get(target, "") for path, target in entries.items()}
    brought = {*resolved(root, of_debian(root, request["debian"])).values(), *recorded}
    unknown = unaccounted(entries, brought, (f"{request['program']}/*", *request["own"]))
    folders = {}
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        listed = request["environment"].get(name, "").split(":")
        listed += python if name == "PYTHONPATH" else ()
        below = resolved(root, (f"{top.rstrip('/')}/" for top in listed if top.strip("/")))
        folders[name] = {folder.rstrip("/") for folder in below.values()}
    seen = {
        "unaccounted": len(unknown),
        "unaccounted_files": unknown[:SHOWN],
        "code_at_start": at_start(root, (path for path, target in entries.items() if not target)),
    }
    return [path for path in unknown if is_run(path, folders)], seen
