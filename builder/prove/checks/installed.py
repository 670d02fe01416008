"""Is what was installed whole, and do its versions fit each other?

Each distribution says which files are its own (RECORD), what it requires (METADATA, Requires-Dist)
and which Python and machine it is for (WHEEL); packaging.python.org, "Recording installed
projects", "Core metadata", "Platform compatibility tags". A library that is gone refuses an image,
and so does a framework with an older release than it requires: the rest are findings, for people
take tests and documents out, and newer releases often work.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.records import WheelRecord
from builder.prove.image import Image, NotThereError, listed
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_METADATA: Final = re.compile(
    r"^(?P<site>.*/(?:site|dist)-packages)/(?P<folder>[^/]+\.(?:dist|egg)-info)(/(METADATA|PKG-INFO))?$"
)
_PYTHON: Final = re.compile(r"/python(3\.\d+)/")
_COMPILER: Final = re.compile(r"/(bin/ptxas|nvvm/libdevice/libdevice\.10\.bc)$")
"""What XLA and Triton compile with: as good as a library."""
_INSTALLERS: Final = ("pip", "uv", "poetry", "pdm", "")
"""What leaves RECORD as the wheel has it; conda's packages have one of a build, split since."""
_AGAIN: Final = "install it again (pip install --force-reinstall --no-deps)"
_LOWER: Final = ("==", "===", "~=", ">=", ">")


@dataclass(frozen=True)
class Distribution:
    name: str
    version: Version
    site: str
    requires: tuple[str, ...] = ()
    """As METADATA has it."""
    tags: frozenset[Tag] = frozenset()
    """Of WHEEL."""
    installer: str = ""
    files: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def run(image: Image) -> Answer:
    if image.is_ours:
        raise NotThereError("the factory's locks say what is in it, and its rules what is left out")
    found = list(distributions(image))
    if not found:
        raise NotThereError("no Python packages")
    own = {name for each in image.frameworks for name in each.distributions}
    defects = [*_gone(image, found), *_shared(image), *_versions(found, own), *_foreign(found, own)]
    defects += _without_a_compiler(image, found)
    return defects, {"note": f"{len(found)} distributions"}


def distributions(image: Image) -> Iterator[Distribution]:
    for path, text in image.tree.texts.items():
        match = _METADATA.match(path)
        if match is None:
            continue
        rows = [line.partition(": ")[::2] for line in text.splitlines()]
        fields = dict(rows)
        folder = posixpath.join(match["site"], match["folder"])
        record = image.tree.records.get(f"{folder}/RECORD")
        wheel = image.tree.texts.get(f"{folder}/WHEEL", "")
        try:
            version = Version(fields.get("Version", "").strip())
            tags = {tag for line in wheel.splitlines() for tag in parse_tag(line[len("Tag: ") :])}
        except (InvalidVersion, ValueError):
            continue
        yield Distribution(
            canonicalize_name(fields.get("Name", "").strip()),
            version,
            match["site"],
            tuple(value.strip() for key, value in rows if key == "Requires-Dist"),
            frozenset(tags),
            image.tree.texts.get(f"{folder}/INSTALLER", "").strip(),
            tuple(record.files) if record else (),
        )


# --- files ----------------------------------------------------------------------------------------


def _gone(image: Image, found: Iterable[Distribution]) -> Iterator[Defect]:
    """Yield the files that were installed and are gone: each distribution's libraries, and once the
    rest."""
    others: dict[str, list[str]] = {}
    files = image.tree.files.keys()
    alike = (path for path in files if ".so" in path or _COMPILER.search(path))
    names = {posixpath.basename(path) for path in alike if image.tree.resolve(path)}
    for each in found:
        # scripts and manuals lie elsewhere: some installers put them nowhere
        own = (path for path in each.files if path.startswith(f"{each.site}/"))
        gone = [path for path in own if not (path in files or image.tree.resolve(path))]
        libraries = [p for p in gone if LIBRARY_NAME.search(p) or _COMPILER.search(p)]
        elsewhere = [path for path in libraries if posixpath.basename(path) in names]
        # a base's CUDA may stand in for a wheel's: whether it is found, the check `loader` says
        spared = each.installer not in _INSTALLERS or _conda(image, each)
        for kind, paths in (
            (Finding, libraries if spared else elsewhere),
            (Defect, [] if spared else [path for path in libraries if path not in elsewhere]),
        ):
            if paths:
                yield kind(f"{listed(paths)}: installed by {each}, and gone", _AGAIN)
        rest = [path for path in gone if path not in libraries]
        if rest:
            others[str(each)] = rest
    if others:
        count, first = sum(map(len, others.values())), next(iter(others.values()))
        yield Finding(
            f"{count} files that were installed are gone, of {listed(list(others))}: "
            f"{listed(first)}",
            "install what the program needs again; tests and documents are not missed",
        )


def _conda(image: Image, each: Distribution) -> bool:
    prefix = each.site.partition("/lib/python")[0]
    return not each.installer and f"{prefix}/conda-meta" in image.tree.folders


def shared(records: Iterable[WheelRecord]) -> dict[str, list[str]]:
    """Return the files that several distributions have installed, each with bytes of its own, by
    the distributions' names."""
    owners: dict[str, dict[str, str]] = {}
    for each in records:
        for path, digest in each.files.items() if each.package else ():
            name = f"{each.package} {each.version}"
            owners.setdefault(path, {})[name] = digest or name
    found: dict[str, list[str]] = {}
    for path, digests in sorted(owners.items()):
        if len({*digests.values()}) > 1:
            found.setdefault(" and ".join(sorted(digests)), []).append(path)
    return found


def _shared(image: Image) -> Iterator[Finding]:
    """Yield the distributions that have installed a library of one path."""
    for names, paths in shared(image.tree.records.values()).items():
        if libraries := [path for path in paths if LIBRARY_NAME.search(path)]:
            what = f"{names} both install {listed(libraries)}: what came last counts, and the other"
            yield Finding(f"{what} is broken", "uninstall both, and install one")


def _without_a_compiler(image: Image, found: Iterable[Distribution]) -> Iterator[Finding]:
    """Yield what Triton compiles the launcher of each kernel with (triton/runtime/build.py)."""
    search = ":".join(image.search_path)
    compilers = (image.environment.get("CC", "gcc"), "gcc", "clang", "cc")
    lacks = [] if any(image.tree.program(each, search) for each in compilers) else ["a C compiler"]
    lacks += [] if next(image.tree.named("Python.h"), None) else ["Python.h"]
    if image.gpu and lacks and any(each.name == "triton" for each in found):
        yield Finding(
            f"Triton compiles with the image's own compiler, and {' and '.join(lacks)} is not "
            "there: each kernel that it compiles at run time fails",
            "apt-get install gcc libc6-dev python3-dev, where the program compiles",
        )


# --- versions -------------------------------------------------------------------------------------


def _versions(found: Iterable[Distribution], own: set[str]) -> Iterator[Defect]:
    """Yield what is required and not there, or there in another version. own: the frameworks."""
    every = list(found)
    installed: dict[str, list[Distribution]] = {}
    for each in every:
        installed.setdefault(each.name, []).append(each)
    for each in every:
        wrong = {Defect: list[str](), Finding: list[str]()}
        for needed in _required(each):
            there = installed.get(canonicalize_name(needed.name), [])
            if any(needed.specifier.contains(one.version, prereleases=True) for one in there):
                continue
            older = there and each.name in own and _is_older(there, needed.specifier)
            has = ", ".join(str(one.version) for one in there) or "not there"
            wrong[Defect if older else Finding].append(f"{needed.name}{needed.specifier} ({has})")
        for kind, names in wrong.items():
            if names:
                fix = "install them together, in one command: pip then finds versions that fit"
                yield kind(f"{each} requires {listed(names)}", fix)


def _required(each: Distribution) -> Iterator[Requirement]:
    python = _PYTHON.search(f"{each.site}/")
    version = python[1] if python else "3"
    values: Mapping[str, str] = {
        "python_version": version, "python_full_version": f"{version}.0", "extra": "",
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
        "platform_machine": "x86_64", "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }  # fmt: skip
    for text in each.requires:
        try:
            needed = Requirement(text)
            if not needed.marker or (python and needed.marker.evaluate(dict(values))):
                yield needed
        except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
            continue


def _is_older(there: Iterable[Distribution], wanted: SpecifierSet) -> bool:
    least = [Version(each.version.removesuffix(".*")) for each in wanted if each.operator in _LOWER]
    return bool(least) and all(each.version < max(least) for each in there)


def _foreign(found: Iterable[Distribution], own: set[str]) -> Iterator[Defect]:
    """Yield what is for another Python or machine than those of the folder that it lies in."""
    every = list(found)
    needs = {canonicalize_name(r.name) for d in every if d.name in own for r in _required(d)}
    for each in every:
        python = _PYTHON.search(f"{each.site}/")
        if not each.tags or not python or any(_fits(tag, python[1]) for tag in each.tags):
            continue
        kind = Defect if each.name in own | needs else Finding
        tags = sorted(map(str, each.tags))
        yield kind(
            f"{each} is for {listed(tags)}, and lies among the packages of Python {python[1]} for "
            "x86-64: its modules are not imported",
            "install it with the Python that runs the program, for linux/amd64",
        )


def _fits(tag: Tag, python: str) -> bool:
    minor = int(python.partition(".")[2])
    machine = tag.platform == "any" or (
        tag.platform.startswith(("linux", "manylinux", "musllinux"))
        and tag.platform.endswith("x86_64")
    )
    match = re.fullmatch(r"(?:cp|py)3(\d*)", tag.interpreter)
    since = int(match[1] or 0) if match else 99
    exact = tag.interpreter.startswith("cp") and tag.abi != "abi3" and tag.abi != "none"
    return machine and (since == minor if exact else since <= minor)


CHECK = Check.of("installed", 2, run)
