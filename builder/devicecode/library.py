"""What one library carries: its device code by section and target, and whether the file is whole.

`as_json` and `from_json` are the form in which images/device-code.lock holds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from builder.devicecode.pruning.fatbin import Target
from builder.devicecode.ptx import Directives

OTHER_FORMAT: Final = "its device code is in containers of a version that is not known"
"""The doubt about a library of a newer format than the reader's."""


class Group(NamedTuple):
    """Containers of one section that hold code for the same targets, in the same order.

    stored, code: for each target, the bytes in the file and after decompression, of all the
    containers together. ptx: for each target, what its PTX text says; None for other code.
    """

    section: str
    containers: int
    targets: tuple[Target, ...]
    stored: tuple[int, ...]
    code: tuple[int, ...]
    ptx: tuple[Directives | None, ...] = ()


@dataclass(frozen=True)
class Library:
    """One library: its path, its size in bytes, and its device code.

    broken: why the file cannot be read; then nothing else is known of it. doubt: why it may not be
    whole; then no verdict is drawn from its device code. stubs: sections whose containers hold no
    kernel, which nvcc leaves in a library without device code. pruned: whether entries were taken
    out of containers. sha256: in hex, "" where it was not taken. package, version: the distribution
    that installed it, "" if no record names one. needed: the libraries that it is linked to. A lock
    keeps neither of the last three.
    """

    path: str
    size: int
    broken: str = ""
    doubt: str = ""
    stubs: tuple[str, ...] = ()
    pruned: bool = False
    sha256: str = ""
    groups: tuple[Group, ...] = ()
    package: str = ""
    version: str = ""
    needed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

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
    left_out = {"package", "version", "needed"}
    content: dict[str, Any] = _json().dump_python(
        library, mode="json", exclude=left_out, exclude_defaults=True
    )
    return content


def from_json(value: Mapping[str, Any], package: str = "", version: str = "") -> Library:
    """Return the library of these fields. Raises ValueError."""
    return replace(_json().validate_python(value), package=package, version=version)
