"""Would each library load: those that Python's modules are linked to, and those that the frameworks
open by name? The loader is followed from each module, and from what opens the library.

What a framework needs refuses the image; what another module needs is a finding, for nobody may
import it. A module that is linked to a framework, and needs symbols that no library of the image
defines, was built for another release of it: that refuses the image as well.

The suites of our own images ask their frameworks themselves (builder/prove/suites.py).
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from builder.devicecode.dynamic import Dynamic
from builder.devicecode.library import Library
from builder.facts.frameworks import NVIDIA, Framework
from builder.image.plan import LOADER
from builder.prove import own_loader
from builder.prove.checks import driver
from builder.prove.image import Image, NotThereError, listed
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check
from builder.reading.loader import DRIVERS, Fault, Files, Loaded, Process

_MODULE: Final = re.compile(
    r"/(site|dist)-packages/(.*(\.cpython-3\d+-x86_64-linux-gnu|\.abi3|/_pywrap_[a-z_]+)"
    r"|jaxlib/[\w/]+|jax_plugins/\w+/\w+|jax_\w+_plugin/\w+)\.so$"
)
"""A module that Python imports, or a plugin that it opens."""
_OTHER_PYTHON: Final = re.compile(r"\.cpython-3(\d+)-")
_OF_CUDA: Final = re.compile(r"lib(cu|nv|nccl)")
"""Libraries that only the folders of their wheels, and CUDA's own, hold."""
_LONGEST: Final = 60
_NUMBERS: Final = re.compile(r"[\d._]+")
_EXPORTED: Final = re.compile(r"(?<![\w.}])/[\w.+/-]+")

BRING: Final = "install what brings it (apt-file search), or take the package out"
OTHER_RELEASE: Final = "install the release that was built for what it loads, both from one index"


def run(image: Image) -> Answer:
    """Follow the loader from each module of Python, and from each library that a framework opens.
    What could not be followed is said."""
    modules = [each for each in image.content.libraries if _MODULE.search(each.path)]
    if not modules and not image.frameworks:
        raise NotThereError("no compiled module of Python")
    follower = _Follower(image)
    defects = [*follower.modules(modules), *follower.extensions()]
    loaded = len(modules) - len({defect.message.partition(" ")[0] for defect in defects})
    if image.gpu:
        defects += [*follower.opened(), *follower.driver(), *follower.copies()]
    asked, unanswered = own_loader.judge(image)
    if all(isinstance(defect, Finding) for defect in defects):
        defects += asked  # else it would say the same in other words
    said = f"; asked inside: {', '.join(image.probed)}" if image.probed else ""
    seen = {"note": f"{loaded} modules load, by ld.so's way{said}"}
    if not_followed := sorted({*follower.not_followed, *unanswered}):
        seen["not_followed"] = "; ".join(not_followed)
    return defects, seen


def taken(
    image: Image, apart: Collection[str], programs: Mapping[str, Dynamic]
) -> tuple[frozenset[str], str]:
    """Return the libraries that something in an image loads, and what was not followed.

    apart: libraries that count only where another file loads them. programs: what the loader reads
    of executables, by path.
    """
    follower = _Follower(image)
    modules = [each for each in image.content.libraries if _MODULE.search(each.path)]
    for defects in (follower.modules(modules), follower.extensions(), follower.opened()):
        deque(defects, maxlen=0)
    nothing = Process(follower.files, "")
    for path in follower.libraries.keys() - apart:
        process = follower.python(path) if own_loader.SITE.match(path) else nothing
        process.copy(follower.anywhere).open(path)
    follower.files.objects |= programs
    for path, program in programs.items():
        if program.interpreter and not Process(follower.files, path, follower.anywhere).is_followed:
            follower.not_followed.add(f"{path}, which has no loader of glibc's")
    return frozenset(follower.files.taken), "; ".join(sorted(follower.not_followed))


def _symbols(names: Sequence[str]) -> str:
    """Return the first symbols; those of C++ can have hundreds of letters."""
    return listed([name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names])


class _Follower:
    """Follows the loader in one image. not_followed: what could not be, and why."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.files = Files(image.content.layers, image.tree, image.environment)
        self.libraries = {library.path: library for library in image.content.libraries}
        self.by_name: dict[str, list[str]] = {}
        for path in image.tree.files:
            if ".so" in path and image.tree.resolve(path):
                self.by_name.setdefault(posixpath.basename(path), []).append(path)
        self.not_followed: set[str] = set()
        self.programs: dict[str, Process] = {}
        self.of_framework: dict[str, Process] = {}
        self.known: set[str] = set()
        self.uncertain = self._entry_script()

    def _entry_script(self) -> bool:
        """Take in the folders that the entry point's script adds to LD_LIBRARY_PATH; return whether
        it computes some."""
        search, config = ":".join(self.image.search_path), self.image.config
        words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        scripts = {self.image.tree.program(str(word), search) for word in words}
        texts = "\n".join(self.files.texts.get(path or "", "") for path in scripts)
        text = "\n".join(line for line in texts.split("\n") if "LD_" in line)
        added = tuple(path for path in _EXPORTED.findall(text) if path in self.image.tree.folders)
        self.files.library_path += added
        computed = "LD_LIBRARY_PATH" in text and ("$(" in text or "`" in text)
        if computed:
            self.not_followed.add("what the entry point's script computes for LD_LIBRARY_PATH")
        return computed

    # --- processes --------------------------------------------------------------------------------

    def python(self, path: str) -> Process:
        """Return a process of the Python that imports a module of this path."""
        names = own_loader.interpreters(path)
        word = f"/bin/{posixpath.basename(names[0])}"
        names += [name for name in self.files.objects if name.endswith(word)]
        program = next((name for name in names if self.files.read(name)), names[0])
        if program not in self.programs:
            self.programs[program] = Process(self.files, program)
            if not self.programs[program].is_followed:
                why = "is not there" if not self.files.read(program) else "has no loader of glibc's"
                self.not_followed.add(f"symbols, because {program} {why}")
        return self.programs[program]

    def _beside(self, module: str) -> str:
        site = own_loader.SITE.match(module)
        return site[0] if site else posixpath.dirname(module) + "/"

    def _preloaded(self, module: str, name: str) -> str | None:
        """Return where a framework's own Python finds a library before it imports the module:
        PyTorch looks in nvidia/*/lib beside it (torch/__init__.py, _preload_cuda_deps)."""
        paths = self.by_name.get(name, [])
        wheels = f"{self._beside(module)}{NVIDIA}/"
        beside = next((path for path in paths if path.startswith(wheels)), None)
        anywhere = None if _OF_CUDA.match(name) and not self.uncertain else next(iter(paths), None)
        return beside or anywhere

    def anywhere(self, name: str) -> str | None:
        """Return a library that any program may have opened before: a framework's first."""
        for process in self.of_framework.values():
            if name in process.names:
                return process.names[name].path
        return next(iter(self.by_name.get(name, ())), None)

    # --- modules ----------------------------------------------------------------------------------

    def modules(self, modules: list[Library]) -> Iterator[Defect]:
        """Yield what keeps modules from being imported, those of the frameworks first."""
        own: list[tuple[Framework, str]] = []
        for framework in self.image.frameworks:
            own += [(framework, m.path) for m in modules if self.image.is_module(m.path, framework)]
        for framework, path in own:
            process = self.python(path).copy(partial(self._preloaded, path))
            new = process.open(path)
            self.of_framework.setdefault(framework.name, process)
            yield from self._missing(path, process, Defect)
            for fault in self._faults(process, new):
                self.known.add(fault.path)
                yield Defect(*self.wrong(fault, path))
        for path in sorted({module.path for module in modules} - {path for _, path in own}):
            tag, site = _OTHER_PYTHON.search(path), own_loader.SITE.match(path)
            if tag and site and "." in site["python"] and site["python"] != f"3.{tag[1]}":
                continue  # Python does not see it
            process = self.python(path).copy(self.anywhere)
            new = process.open(path)
            yield from self._missing(path, process, Finding)
            for fault in self._nowhere(process, new):
                kind = Defect if self._framework_of(fault.path, process) else Finding
                yield kind(*self.wrong(fault, path))

    def _missing(self, path: str, process: Process, kind: type[Defect]) -> Iterator[Defect]:
        lacking = {n: by for n, by in process.missing.items() if not DRIVERS.match(n)}
        if lacking:
            needs = "; ".join(self._lacks(name, by) for name, by in lacking.items())
            yield kind(f"{path} cannot be loaded: {needs}", BRING)

    def _lacks(self, name: str, by: Loaded) -> str:
        asking = posixpath.basename(by.path)
        if there := self.by_name.get(name):
            return f"{asking} needs {name}, which lies in {there[0]}, where nothing looks for it"
        return f"{asking} needs {name}, and the image lacks it"

    def _faults(self, process: Process, new: list[Loaded]) -> Iterator[Fault]:
        """Yield what is wrong with libraries that no process before has loaded."""
        if not process.is_followed:
            return
        fresh = [each for each in new if self.files.resolve(each.path) not in self.known]
        faults = list(process.faults(fresh))
        broken = {fault.path for fault in faults}
        self.known |= {self.files.resolve(p.path) or "" for p in fresh if p.path not in broken}
        for fault in faults:
            real = self.files.resolve(fault.path) or fault.path
            yield Fault(real, fault.symbols, fault.versions)

    def _nowhere(self, process: Process, new: list[Loaded]) -> Iterator[Fault]:
        """Yield the faults that no order of imports would mend: no library of the image defines the
        symbols."""
        for fault in self._faults(process, new):
            symbols = self.files.undefined(fault.symbols)
            if symbols or fault.versions:
                self.known.add(fault.path)
                yield Fault(fault.path, symbols, fault.versions)

    def wrong(self, fault: Fault, first: str) -> tuple[str, str]:
        """Return what is wrong with a library, and the fix."""
        linked = self._linked(fault)
        parts = []
        if fault.versions:
            needs = {f"{each.version} of {path}" for each, path in fault.versions}
            parts.append(f"it needs {listed(sorted(needs))}, which has no such version")
        if fault.symbols:
            parts.append(f"nothing that it loads defines {_symbols(fault.symbols)}")
            if linked:
                parts.append(f"it is linked to {', '.join(linked[:4])}")
        asked = "" if fault.path == self.files.resolve(first) else f", which {first} loads"
        said = f"{fault.path} does not fit what it is loaded with: {'; '.join(parts)}{asked}"
        return said, OTHER_RELEASE

    def _linked(self, fault: Fault) -> list[str]:
        """Return the distributions that a library is linked to; that of `libnccl` alone where it is
        a function of this name that is missing."""
        dynamic, symbols = self.files.read(fault.path), fault.symbols or ("",)
        origins: dict[str, bool] = {}
        for name in dynamic.needed if dynamic else ():
            stem = name.removeprefix("lib").partition(".so")[0]
            for path in self._taken(name):
                origins[self._origin(path)] = symbols[0].startswith(stem)
        others = origins.keys() - {"", self._origin(fault.path)}
        return sorted(each for each in others if origins[each]) or sorted(others)

    def _taken(self, name: str) -> Iterator[str]:
        for process in (*self.of_framework.values(), *self.programs.values()):
            if name in process.names:
                yield process.names[name].path
                return

    def _origin(self, path: str) -> str:
        library = self.libraries.get(self.files.resolve(path) or "")
        return library.origin if library and library.package else ""

    # --- what is linked to a framework ------------------------------------------------------------

    def _framework_of(self, path: str, process: Process) -> bool:
        """Tell whether a library is linked to one of a framework's own."""
        dynamic = self.files.read(path)
        packages = {name for each in self.image.frameworks for name in each.distributions}
        for name in dynamic.needed if dynamic else ():
            there = process.names.get(name)
            library = self.libraries.get(self.files.resolve(there.path) or "") if there else None
            if library and library.package in packages:
                own = self.libraries.get(self.files.resolve(path) or "")
                return own is None or own.package not in packages
        return False

    def extensions(self) -> Iterator[Defect]:
        """Yield the libraries that other packages open beside a framework, and that were built for
        another release of it. A package may bring one for each of several releases."""
        own = {name for process in self.of_framework.values() for name in process.names}
        faults: dict[str, list[Fault]] = {}
        fits = set[str]()
        for path, library in self.libraries.items():
            linked = library.dynamic and own & set(library.dynamic.needed)
            if not linked or not own_loader.SITE.match(path) or _MODULE.search(path):
                continue
            process = self._after_frameworks(path)
            found = list(self._nowhere(process, process.open(path)))
            if not self._framework_of(path, process) or process.missing:
                continue
            is_broken = path in {fault.path for each in faults.values() for fault in each}
            fits |= set() if found or is_broken else {_NUMBERS.sub("", path)}
            for fault in found:
                faults.setdefault(library.origin, []).append(fault)
        for each in faults.values():
            kind = (
                Finding if all(_NUMBERS.sub("", fault.path) in fits for fault in each) else Defect
            )
            more = f", and {len(each) - 1} more of its libraries" if each[1:] else ""
            message, fix = self.wrong(each[0], each[0].path)
            yield kind(message + more, fix)

    def _after_frameworks(self, path: str) -> Process:
        process = self.python(path).copy(self.anywhere)
        for each in self.of_framework.values():
            process.names = {**each.names, **process.names}
            process.loaded = {**each.loaded, **process.loaded}
        return process

    # --- what the frameworks open by name ---------------------------------------------------------

    def opened(self) -> Iterator[Defect]:
        """Beside a framework that uses the GPU, another one may feed it from the CPU."""
        said = []
        for framework in self.image.frameworks:
            lacks = _Opening(self, framework)
            said.append(list(framework.opened(self.image.content.libraries, lacks.why)))
        works = any(all(isinstance(defect, Finding) for defect in each) for each in said)
        for each in (defect for defects in said for defect in defects):
            yield Finding(**asdict(each)) if works or self.uncertain else each

    def driver(self) -> Iterator[Defect]:
        """Yield a libcuda that would be taken in place of the machine's: that of a forward
        compatibility package ends with error 803 or 804 on another driver, a stub with 34."""
        program = next(iter(self.programs.values()), None)
        start = program.program if program else Loaded("", None)
        found = self.files.find("libcuda.so.1", None, start)
        real = self.files.resolve(found) if found else None
        if found and real and not driver.is_in_the_way(real, self.image.has_own_base):
            if self._comes_after_the_machines(posixpath.dirname(found)):
                return  # TensorFlow's own images name CUDA's stubs last, in z-cuda-stubs.conf
            yield Defect(
                f"a program takes {found} for the driver, and not the machine's: CUDA then starts "
                "on some machines alone (errors 803, 804), or on none (34)",
                "take its folder out of LD_LIBRARY_PATH and /etc/ld.so.conf.d; NVIDIA's container "
                "toolkit adds it where it is needed",
            )

    def _comes_after_the_machines(self, folder: str) -> bool:
        """Tell whether ld.so finds the driver before it looks into a folder of ld.so.conf: NVIDIA's
        container toolkit mounts it into the multiarch folder."""
        configured = self.files.configured
        if folder in self.files.library_path or folder not in configured:
            return False
        return f"/{LOADER}" in configured[: configured.index(folder)]

    def copies(self) -> Iterator[Finding]:
        """Yield the libraries of wheels in whose place another copy is taken."""
        wheels: dict[str, Library] = {}
        for library in self.libraries.values():
            if library.package.startswith(NVIDIA):
                wheels.setdefault(library.name, library)
        said = set[str]()
        for name, process in self.of_framework.items():
            for each, taken in process.names.items():
                wheel, real = wheels.get(each), self.files.resolve(taken.path)
                if not wheel or wheel.path == real or self._origin(taken.path):
                    continue
                if wheel.origin not in said:
                    yield Finding(
                        f"{name} takes {taken.path} for {each}, and not that of {wheel.origin}, "
                        "which was installed for it",
                        "take one of them out, or its folder out of LD_LIBRARY_PATH",
                    )
                said.add(wheel.origin)


class _Opening:
    """What a framework opens by name, one after the other, in the process that has imported it."""

    def __init__(self, follower: _Follower, framework: Framework) -> None:
        self.follower = follower
        self.files, self.by_name = follower.files, follower.by_name
        self.process = follower.of_framework.get(framework.name) or (
            next(iter(follower.programs.values()), None) or Process(follower.files, "")
        )
        self.process.also = lambda _: None

    def why(self, name: str, opener: str = "") -> str:
        """Say why a library does not open: it "is not in the image"; "" where it does. opener: the
        beginning of the name of the library whose code opens it."""
        if not (there := self.by_name.get(name)):
            return "is not in the image"
        if name in self.process.names:
            return ""
        by = self._opener(opener) if opener else None
        if opener and (by is None or by.dynamic is None):
            return ""  # whose search path is not known
        found = self.files.find(name, by, self.process.program)
        if found is None:
            return f"lies in {there[0]}, where {opener or 'the loader'} does not look for it"
        read = self.files.read(found)
        soname = read.soname if read else ""
        if soname and soname.partition(".so")[0] != name.partition(".so")[0]:
            return f"is {soname} by another name ({self.files.resolve(found)})"
        self.process.missing = {}
        new = self.process.open(found, by)
        lacking = [n for n in self.process.missing if not DRIVERS.match(n)]
        if lacking:
            return f"cannot be loaded: {found} needs {listed(lacking)}, which is not found"
        if self.process.is_followed and (faults := list(self.process.faults(new))):
            return f"cannot be loaded: {self.follower.wrong(faults[0], found)[0]}"
        return ""

    def _opener(self, stem: str) -> Loaded | None:
        for path in self.process.loaded.values():
            if posixpath.basename(path.path).startswith(f"{stem}.so"):
                return path
        paths = [path for name, all_ in self.by_name.items() if name.startswith(f"{stem}.so")
                 for path in all_]  # fmt: skip
        if not paths:
            return None
        self.process.open(paths[0])
        return self.process.loaded.get(self.files.resolve(paths[0]) or "")


CHECK = Check.of("loader", 5, run)
