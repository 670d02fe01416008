"""The dynamic loader, without a container: which file it takes for each library, and from where.

It follows glibc 2.36 (elf/dl-load.c, elf/dl-deps.c, elf/dl-version.c; ld.so(8)) over what was read
of an image's layers. Python opens its modules with RTLD_NOW, and so do ctypes and the frameworks:
one symbol that nothing defines ends the load. Another libc's loader (musl's) is not followed, nor
is what a program loads before: a caller says what that may be.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Final

from builder.devicecode.dynamic import Dynamic, Wanted, hashed
from builder.reading.layers import ReadLayer, Tree, visible

DRIVERS: Final = re.compile(r"lib(cuda|nvcuvid|cudadebugger|nvidia-[\w-]+)\.so")
"""Libraries that a machine with a GPU mounts."""

_OF_DRIVERS: Final = re.compile(r"(cu[A-Z]|cuvid|nvml|nvcuvid|Nv)\w*$")
"""Functions of the driver's libraries."""
_TRIPLETS: Final = {62: "x86_64", 183: "aarch64"}
_LOADERS: Final = ("/ld-linux-x86-64.so.2", "/ld-linux-aarch64.so.1")
_HWCAPS: Final = tuple(f"glibc-hwcaps/x86-64-v{level}" for level in (3, 2))
"""What machines with GPUs have; few have the fourth level."""
_CONFIGURATION: Final = "/etc/ld.so.conf"


@dataclass(frozen=True)
class Loaded:
    """A file that is in a process."""

    path: str
    """As it was opened, which $ORIGIN speaks of."""
    dynamic: Dynamic | None
    """None for a file of which nothing could be read."""
    by: Loaded | None = None
    """What asked for it, None for the program and for what is opened by its path."""


@dataclass(frozen=True)
class Fault:
    """Why a library is not loaded."""

    path: str
    symbols: tuple[str, ...] = ()
    """Those that nothing in the process defines."""
    versions: tuple[tuple[Wanted, str], ...] = ()
    """Those that a library in the process does not define, with its path."""


class Files:
    """The files of an image, as the loader sees them. variables: those of the image."""

    def __init__(
        self, layers: Sequence[ReadLayer], tree: Tree, variables: Mapping[str, str]
    ) -> None:
        self.tree = tree
        self.objects: dict[str, Dynamic] = {}
        self.texts = tree.texts
        for layer, seen in visible(layers):
            read = {each.path: each.dynamic for each in layer.libraries if each.dynamic}
            read |= layer.programs
            for path, entry in layer.files.items():
                if (found := read.get(entry.hard or path)) and seen(path):
                    self.objects[path] = found
        self.library_path = tuple(_listed(variables.get("LD_LIBRARY_PATH", "")))
        self.preloaded = tuple(re.split(r"[\s:]+", variables.get("LD_PRELOAD", "").strip()))
        self.taken: set[str] = set()
        """What a process has loaded, by the path where its links lead."""
        self.hashes = cache(self._hashes)
        self.resolve = cache(tree.resolve)

    def read(self, path: str) -> Dynamic | None:
        """Return what the loader reads of a file, wherever its links lead."""
        return self.objects.get(self.resolve(path) or "")

    def find(self, name: str, by: Loaded | None, program: Loaded) -> str | None:
        """Return the file that is taken for a name, as `by` asks for it; None where there is none.
        A file for another machine is passed over."""
        if "/" in name:
            paths: Iterator[str] = iter(self._expanded(name, by or program, program))
        else:
            folders = self._folders(by, program)
            paths = (f"{folder}/{name}" for folder in folders)
        return next((path for path in paths if self._fits(path, program)), None) or (
            self._of_cache(name, program)
        )

    def _fits(self, path: str, program: Loaded) -> bool:
        folder, name = posixpath.split(path)
        # most folders have no such file: this asks once for each of them
        at = posixpath.join(self.resolve(folder) or "/", name)
        if at not in self.tree.files or self.resolve(at) not in self.tree.files:
            return False
        there = self.read(path)
        return not (there and program.dynamic) or there.machine == program.dynamic.machine

    def _folders(self, by: Loaded | None, program: Loaded) -> Iterator[str]:
        wanted: list[tuple[str, Loaded]] = []
        if not (by and by.dynamic and by.dynamic.runpath):
            chain, at = [], by
            while at:
                chain.append(at)
                at = at.by
            wanted = [(_rpath(each), each) for each in (*chain, program)]
        searched = [each for paths, of in wanted for each in self._each(paths, of, program)]
        searched += self.library_path
        if by and by.dynamic:
            searched += self._each(by.dynamic.runpath, by, program)
        machine = program.dynamic.machine if program.dynamic else 62
        triplet = f"{_TRIPLETS.get(machine, 'x86_64')}-linux-gnu"
        system = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64")
        for folder in (*searched, *self.configured, *system, "/lib", "/usr/lib"):
            yield from (f"{folder}/{level}" for level in _HWCAPS)
            yield folder

    def _each(self, paths: str, of: Loaded, program: Loaded) -> Iterator[str]:
        return (each for path in _listed(paths) for each in self._expanded(path, of, program))

    def _expanded(self, path: str, of: Loaded, program: Loaded) -> list[str]:
        """Return what a path with $ORIGIN, $LIB and $PLATFORM stands for."""
        # the kernel says where the program lies: without links
        origin = (self.resolve(of.path) if of is program else of.path) or of.path
        platform = _TRIPLETS.get(program.dynamic.machine if program.dynamic else 62, "x86_64")
        path = re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: posixpath.dirname(origin), path)
        path = re.sub(r"\$(PLATFORM\b|\{PLATFORM\})", platform, path)
        libs = (f"lib/{platform}-linux-gnu", "lib64", "lib")
        return list(dict.fromkeys(re.sub(r"\$(LIB\b|\{LIB\})", lib, path) for lib in libs))

    @cached_property
    def configured(self) -> tuple[str, ...]:
        """The folders that ld.so.conf names. Its links may be missing: the container toolkit writes
        the cache anew."""
        return tuple(self._configured(_CONFIGURATION))

    def _configured(self, path: str, depth: int = 3) -> Iterator[str]:
        for line in self.texts.get(path, "").splitlines() if depth else ():
            words = line.partition("#")[0].replace(",", " ").split()
            if words[:1] == ["include"]:
                for pattern in (posixpath.join("/etc", word) for word in words[1:]):
                    for each in sorted(self.texts):
                        if fnmatchcase(each, pattern):
                            yield from self._configured(each, depth - 1)
            elif words[:1] != ["hwcap"]:
                yield from words

    @cached_property
    def _cached(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in self.texts.get("/etc/ld.so.cache", "").splitlines():
            name, _, path = line.partition(" => ")
            found.setdefault(name, []).append(path)
        return found

    def _of_cache(self, name: str, program: Loaded) -> str | None:
        return next((p for p in self._cached.get(name, ()) if self._fits(p, program)), None)

    def _hashes(self, path: str) -> frozenset[int]:
        return self.objects[path].hashes

    def undefined(self, symbols: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in symbols if _hash(name) not in self._everywhere)

    @cached_property
    def _everywhere(self) -> frozenset[int]:
        return frozenset().union(*(each.hashes for each in self.objects.values()))


class Process:
    """What is loaded into one process. also: where else a library may come from that the search
    does not find: what a program opened before by its path. missing: name -> what asks for it.
    elsewhere: name -> the file that `also` said, and what asks for it."""

    def __init__(
        self, files: Files, program: str, also: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self.files, self.also = files, also
        self.program = Loaded(program, files.read(program))
        self.loaded: dict[str, Loaded] = {}
        self.names: dict[str, Loaded] = {}
        self.missing: dict[str, Loaded] = {}
        self.elsewhere: dict[str, tuple[str, Loaded]] = {}
        self.load(self.program)
        for name in files.preloaded:
            if name and (found := files.find(name, None, self.program)):
                self.load(self._new(found, None))

    def copy(self, also: Callable[[str], str | None] | None = None) -> Process:
        other = Process.__new__(Process)
        other.files, other.program, other.also = self.files, self.program, also or self.also
        other.loaded, other.names = dict(self.loaded), dict(self.names)
        other.missing, other.elsewhere = {}, {}
        return other

    @property
    def is_followed(self) -> bool:
        """Whether its loader is glibc's."""
        dynamic = self.program.dynamic
        return dynamic is not None and dynamic.interpreter.endswith(_LOADERS)

    def open(self, path: str, by: Loaded | None = None) -> list[Loaded]:
        """Open a library by its path, and return what came into the process."""
        return self.load(self._new(path, by))

    def load(self, first: Loaded) -> list[Loaded]:
        """Load a file and all that it is linked to, breadth first, and return what is new."""
        new = [first] if self._enter(first) else []
        waiting = deque(new)
        while waiting:
            asking = waiting.popleft()
            for name in asking.dynamic.needed if asking.dynamic else ():
                if name in self.names:
                    continue
                found = self.files.find(name, asking, self.program)
                if not found and (found := self.also(name)):
                    self.elsewhere[name] = found, asking
                if not found:
                    self.missing.setdefault(name, asking)
                    continue
                each = self._new(found, asking)
                if self._enter(each, name):
                    new.append(each)
                    waiting.append(each)
        return new

    def _new(self, path: str, by: Loaded | None) -> Loaded:
        return Loaded(path, self.files.read(path), by)

    def _enter(self, each: Loaded, name: str = "") -> bool:
        """Take a file in under its names; return whether it was not there yet."""
        real = self.files.resolve(each.path) or each.path
        self.files.taken.add(real)
        known = self.loaded.get(real)
        entered = known or each
        self.loaded[real] = entered
        soname = each.dynamic.soname if each.dynamic else ""
        for each_name in (name, soname):
            if each_name:
                self.names.setdefault(each_name, entered)
        return known is None

    def faults(self, new: Sequence[Loaded]) -> Iterator[Fault]:
        """Yield what keeps these files of the process from being loaded. None are known where one
        is missing, or a file in the process could not be read: it may define what is asked for."""
        if any(not DRIVERS.match(name) for name in self.missing):
            return
        scope = [self.files.hashes(real) for real in self.loaded if real in self.files.objects]
        whole = len(scope) == len(self.loaded)
        for each in new:
            if each.dynamic is None:
                continue
            undefined = each.dynamic.undefined if whole else ()
            symbols = tuple(
                name
                for name in undefined
                if not _is_in(_hash(name), scope) and not _OF_DRIVERS.match(name)
            )
            versions = tuple(self._lacking(each.dynamic))
            if symbols or versions:
                yield Fault(each.path, symbols, versions)

    def _lacking(self, dynamic: Dynamic) -> Iterator[tuple[Wanted, str]]:
        for wanted in dynamic.wanted:
            there = self.names.get(wanted.file)
            offered = there.dynamic.versions if there and there.dynamic else ()
            # a library without versions gets a warning, and is taken
            if there and offered and wanted.version not in offered:
                yield wanted, there.path


def _is_in(value: int, scope: Sequence[frozenset[int]]) -> bool:
    return any(value in each for each in scope)


_hash = cache(hashed)


def _rpath(of: Loaded) -> str:
    """Return the DT_RPATH of a file; one with a RUNPATH has none."""
    return of.dynamic.rpath if of.dynamic and not of.dynamic.runpath else ""


def _listed(paths: str) -> Iterator[str]:
    return (path for path in re.split("[:;]", paths) if path)
