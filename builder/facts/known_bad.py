"""Versions that fit each other by their metadata, and fail: known_bad.yaml, and linked.json for
extensions of frameworks, read once a process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from builder.facts import DATA, cuda, frameworks, read_table

_WHEEL: Final = re.compile(r"nvidia-(.+?)(?:-cu\d+)?")
_TITLES: Final = {"cublas": "cuBLAS", "cudart": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}
_NVIDIA_BUILD: Final = "nv"
"""How the local part of a version begins of what NVIDIA built."""

Versions = tuple[str, ...]
"""Alternatives, each a specifier; where there is none, every version."""


@dataclass(frozen=True)
class KnownBad:
    """A combination that is known to fail; known_bad.yaml says what each field holds."""

    name: str
    frameworks: tuple[str, ...]
    releases: Versions
    libraries: Mapping[str, Versions]
    fails: bool
    seen: str
    known: str
    instead: str
    source: str
    capabilities: Versions = ()
    says: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        return f"take {self.instead}"


@dataclass(frozen=True)
class FoundBad:
    row: KnownBad
    versions: Mapping[str, str]
    """Those that it is about, by their names for a person."""

    @property
    def pair(self) -> str:
        """What does not go together: "TensorFlow 2.21.0 with cuDNN 9.3.0.75"."""
        return " with ".join(f"{name} {version}" for name, version in self.versions.items())

    def __str__(self) -> str:
        return f"{self.pair}: {self.row.seen} ({self.row.known}: {self.row.source})"


def find(
    packages: Mapping[str, str], capability: str | None, also: Mapping[str, str] | None = None
) -> tuple[FoundBad, ...]:
    """Return the rows that apply to what lies in one image, those that a plain program fails by
    first.

    packages: the versions of its Python packages. capability: the GPU's; rows about some GPUs do
    not apply where it is not known. also: the versions of CUDA's libraries that no package brings,
    by their short names.
    """
    installed = {name: version for name, version in packages.items() if _version(version)}
    releases = _releases(installed)
    there = {**installed, **(also or {}), **_libraries(installed)}
    near = (row for row in (*rows(), *_linked()) if row.libraries.keys() <= there.keys())
    found = (_found(row, releases, there, capability) for row in near)
    return tuple(sorted(filter(None, found), key=lambda each: not each.row.fails))


def _found(
    row: KnownBad, releases: Mapping[str, str], libraries: Mapping[str, str], capability: str | None
) -> FoundBad | None:
    known = [name for name in row.frameworks if _has(row.releases, releases.get(name))]
    if row.frameworks and not known:
        return None
    if row.capabilities and not _has(row.capabilities, capability):
        return None
    if not all(_has(versions, libraries.get(name)) for name, versions in row.libraries.items()):
        return None
    named = {frameworks.of(name).title: releases[name] for name in known}
    return FoundBad(row, named | {_TITLES.get(n, n): libraries[n] for n in row.libraries})


def _has(versions: Versions, version: str | None) -> bool:
    """Tell whether a version is there, and one of these."""
    return version is not None and (
        not versions or any(_contains(each, version) for each in versions)
    )


@cache
def _contains(specifier: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet  # slow

    return SpecifierSet(specifier).contains(version, prereleases=True)


@cache
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _releases(packages: Mapping[str, str]) -> dict[str, str]:
    """Return the release of each framework of the rows among packages, by its key of image.yaml.

    What NVIDIA built has other libraries than the wheels on PyPI, and is left out."""
    return {
        framework.name: packages[name]
        for framework in map(frameworks.of, frameworks.OWN)
        for name in sorted(framework.distributions & packages.keys())
        if not (Version(packages[name]).local or "").startswith(_NVIDIA_BUILD)
    }


def _libraries(packages: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of CUDA's libraries among packages, by their short names."""
    short = {part: name for name, part in cuda.cuda().packages.items()}
    wheels = ((_WHEEL.fullmatch(name), version) for name, version in packages.items())
    return {short[wheel[1]]: version for wheel, version in wheels if wheel and wheel[1] in short}


@cache
def rows() -> tuple[KnownBad, ...]:
    return tuple(map(_row, read_table(DATA / "known_bad.yaml")["rows"]))


@cache
def _linked() -> tuple[KnownBad, ...]:
    """Return the extensions that tools/linked has read, each beside the releases that it misses
    the same symbol of."""
    links = json.loads((DATA / "linked.json").read_text(encoding="utf-8"))
    return tuple(_of_link(each, *lacks) for each in links for lacks in each["lacks"].items())


def _of_link(link: Mapping[str, Any], symbol: str, minors: Iterable[str]) -> KnownBad:
    package = link["package"]
    fits = f"{frameworks.of(link['framework']).title} {' or '.join(link['fits'])}"
    # some catch that a library does not load, and go on
    what = f"{package} does" if link["fails"] else f"libraries of {package} do"
    return KnownBad(
        name=package,
        frameworks=(link["framework"],),
        releases=tuple(f"=={minor}.*" for minor in minors),
        libraries={package: (f"=={link['version']}",)},
        fails=link["fails"],
        seen=f"{what} not load, because nothing defines {symbol}",
        known=f"its wheel fits {fits}",
        instead=f"{fits}, or leave {package} out",
        source="builder/facts/linked.md",
    )


def _row(row: Mapping[str, Any]) -> KnownBad:
    return KnownBad(
        name=row["name"],
        frameworks=tuple(row.get("frameworks", ())),
        releases=tuple(row.get("releases", ())),
        libraries={name: tuple(each) for name, each in row.get("libraries", {}).items()},
        capabilities=tuple(row.get("capabilities", ())),
        fails=row.get("fails") == "yes",
        seen=row["seen"],
        known=row["known"],
        instead=row["instead"],
        says=tuple(row.get("says", ())),
        warns=tuple(row.get("warns", ())),
        source=row["source"],
    )
