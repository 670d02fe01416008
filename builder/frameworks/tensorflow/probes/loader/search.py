"""Which file ld.so picks for a name, in the order of ld.so(8); and every file of a name."""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH112, PTH113, PTH118, PTH120
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from typing import NamedTuple

from .elf import Elf, read_elf


class SearchResult(NamedTuple):
    """The file that the loader picks for a name (None: none), and where it looked before that."""

    path: str | None
    looked: tuple[str, ...]


class Loader(NamedTuple):
    """What ld.so knows beside the caller: LD_LIBRARY_PATH, ld.so.cache, the default folders.

    configured: the folders that ldconfig reads (ld.so.conf(5)); empty where nothing tells.
    """

    library_path: tuple[str, ...]
    cache: dict[str, tuple[str, ...]]
    defaults: tuple[str, ...]
    executable: Elf | None
    configured: tuple[str, ...] = ()

    def folders(self, caller: Elf) -> list[str]:
        """Return the folders before the cache, in ld.so(8)'s order, for a dlopen() in `caller`.

        DT_RPATH counts only where there is no DT_RUNPATH, and then the executable's counts too.
        """
        rpath: list[str] = []
        if not caller.runpath:
            rpath += _expand(caller.rpath, caller.path)
            if self.executable and not self.executable.runpath:
                rpath += _expand(self.executable.rpath, self.executable.path)
        return [*rpath, *self.library_path, *_expand(caller.runpath, caller.path)]

    def find(self, name: str, caller: Elf) -> SearchResult:
        """Return the file that dlopen(name), called in `caller`, opens."""
        looked: list[str] = []
        before = [(folder, os.path.join(folder, name)) for folder in self.folders(caller)]
        cached = [("ld.so.cache", path) for path in self.cache.get(name, ())]
        after = [(folder, os.path.join(folder, name)) for folder in self.defaults]
        for place, path in (*before, *(cached or [("ld.so.cache", "")]), *after):
            if place not in looked:
                looked.append(place)
            if path and os.path.isfile(path) and read_elf(path):
                return SearchResult(path, tuple(looked))
        return SearchResult(None, tuple(looked))

    def forgets(self, result: SearchResult) -> bool:
        """Tell whether a file is found by the cache alone, and by none that is written anew."""
        if not self.configured or not result.path or result.looked[-1] != "ld.so.cache":
            return False
        folders = {os.path.realpath(folder) for folder in self.configured}
        return os.path.realpath(os.path.dirname(result.path)) not in folders

    def all(self, name: str, callers: Iterable[Elf]) -> list[str]:
        """Return each different file of this name that some caller's search could come across."""
        folders = list(self.defaults)
        for caller in callers:
            folders += self.folders(caller)
        for folder in list(folders):
            # glibc prefers these where the processor knows them
            folders += [f"{folder}/glibc-hwcaps/x86-64-v{level}" for level in (2, 3, 4)]
        paths = [os.path.join(folder, name) for folder in folders] + list(self.cache.get(name, ()))
        real = (os.path.realpath(path) for path in paths if os.path.isfile(path))
        return list(dict.fromkeys(real))


def _expand(folders: Iterable[str], owner: str) -> list[str]:
    origin = os.path.dirname(os.path.realpath(owner))
    expanded = (
        folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders
    )
    return list(dict.fromkeys(os.path.normpath(folder) for folder in expanded))


def system_loader(environ: dict[str, str]) -> Loader:
    """Return the loader of the machine (here: the container) that this runs on."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    debian = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib")
    redhat = ("/lib64", "/usr/lib64")
    listed = environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
    return Loader(
        library_path=tuple(
            os.path.normpath(part or os.curdir) for part in listed.split(":") if listed
        ),
        cache=_ld_cache(),
        defaults=debian if os.path.isdir(f"/usr/lib/{triplet}") else redhat,
        executable=read_elf(os.path.realpath(sys.executable)),
        configured=_configured(),
    )


def _ldconfig(options: str) -> str:
    """Return what ldconfig prints; "" where there is none."""
    tool = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if tool is None:
        return ""
    return subprocess.run(
        [tool, options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    ).stdout.decode(errors="replace")


def _configured() -> tuple[str, ...]:
    """Return the folders that ldconfig would read, from a run that writes nothing."""
    lines = _ldconfig("-NXv").splitlines()
    return tuple(line.partition(":")[0] for line in lines if line.startswith("/") and ":" in line)


def _ld_cache() -> dict[str, tuple[str, ...]]:
    text = _ldconfig("-p")
    cache: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            soname = name.split(" ")[0]
            cache[soname] = (*cache.get(soname, ()), path)
    return cache


def find_by_name(
    root: str, names: Iterable[str], prefixes: tuple[str, ...]
) -> dict[str, list[str]]:
    """Return every file of the image that has one of these names, or begins with a prefix."""
    exact = set(names)
    skipped = {os.path.join(root, name) for name in ("proc", "sys", "dev", "tmp", "run")}
    matches: dict[str, list[str]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
        for name in files:
            if name in exact or name.startswith(prefixes):
                matches.setdefault(name, []).append(os.path.join(folder, name))
    return matches
