"""What one library carries: its device code by section and target, and whether the file is whole;
and what one wheel does.

images/device-code.lock and builder/facts/gpu-support.json hold them as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from builder.devicecode.dynamic import Dynamic
from builder.devicecode.pruning.fatbin import Target
from builder.devicecode.ptx import Directives

OTHER_FORMAT: Final = "its device code is in containers of a version that is not known"
"""The doubt about a library of a newer format than the reader's."""


class Group(NamedTuple):
    """Containers of one section that hold code for the same targets, in the same order."""

    section: str
    containers: int
    targets: tuple[Target, ...]
    stored: tuple[int, ...]
    code: tuple[int, ...]
    """`stored` and `code`: for each target, the bytes in the file and after decompression, of all
    the containers together."""
    ptx: tuple[Directives | None, ...] = ()
    """For each target, what its PTX text says; None for other code."""


@dataclass(frozen=True)
class Library:
    """One library: its path, its size in bytes, and its device code."""

    path: str
    size: int
    broken: str = ""
    """Why the file cannot be read; then nothing else is known of it."""
    doubt: str = ""
    """Why it may not be whole; then no verdict is drawn from its device code."""
    stubs: tuple[str, ...] = ()
    """Sections whose containers hold no kernel, which nvcc leaves in a library without device
    code."""
    pruned: bool = False
    """Whether entries were taken out of containers."""
    sha256: str = ""
    """In hex, "" where it was not taken."""
    groups: tuple[Group, ...] = ()
    package: str = ""
    version: str = ""
    """`package` and `version`: the distribution that installed it, "" if no record names one."""
    dynamic: Dynamic | None = field(default=None, compare=False)
    flags: tuple[str, ...] = field(default=(), compare=False)
    """Names of XLA's flags among the texts of a library that reads them, and more words like them.
    A lock does not keep them."""
    """What the loader reads of it, None for nothing. A lock keeps none of the last three."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def origin(self) -> str:
        """The distribution and its version, or the path if no distribution is known."""
        return f"{self.package} {self.version}" if self.package else self.path

    @property
    def device_code(self) -> int:
        """Bytes of kernels, as they are stored."""
        return sum(sum(group.stored) for group in self.groups)


@cache
def _json() -> TypeAdapter[Library]:
    return TypeAdapter(Library)


def as_json(library: Library) -> dict[str, Any]:
    """Return the JSON-ready fields of a library that say something."""
    left_out = {"package", "version", "dynamic", "flags"}
    content: dict[str, Any] = _json().dump_python(
        library, mode="json", exclude=left_out, exclude_defaults=True
    )
    return content


def from_json(value: Mapping[str, Any], package: str = "", version: str = "") -> Library:
    """Return the library of these fields. Raises ValueError."""
    return replace(_json().validate_python(value), package=package, version=version)


@dataclass(frozen=True)
class Wheel:
    """What was read of one wheel: its libraries with device code, at their installed paths."""

    name: str
    version: str
    sha256: str
    """In hex, as in locks. No libraries means that the wheel was read and has none."""
    libraries: tuple[Library, ...]

    @classmethod
    def of(cls, name: str, version: str, sha256: str, libraries: Iterable[Library]) -> Wheel:
        """Return what is kept of a wheel, of which all these libraries were read."""
        kept = (each for each in libraries if each.groups or each.broken or each.doubt)
        ordered = sorted(kept, key=lambda item: item.path)
        return cls(
            name,
            version,
            sha256,
            tuple(replace(item, package=name, version=version, sha256="") for item in ordered),
        )


def wheel_text(wheel: Wheel, **more: str) -> str:
    """Return a wheel as JSON with a library a line, so that a diff shows which one changed. more:
    other fields."""
    lines = [json.dumps(as_json(item), separators=(",", ":")) for item in wheel.libraries]
    head = json.dumps({"name": wheel.name, "version": wheel.version, **more})[:-1]
    inner = "".join(f"\n   {line}," for line in lines).removesuffix(",")
    return f'{head}, "libraries": [{inner}]}}'


def wheel_from_json(value: Mapping[str, Any], sha256: str) -> Wheel:
    """Return the wheel of these fields. Raises ValueError, KeyError, TypeError."""
    name, version = str(value["name"]), str(value["version"])
    libraries = (from_json(entry, name, version) for entry in value["libraries"])
    return Wheel(name, version, sha256, tuple(libraries))
