"""Which release of a framework runs on which GPU, by what was read of its wheels.

builder/facts/gpu-support.json holds what tools/gpu-support read, and no verdicts: those follow
today's rule, for any GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from builder.devicecode.library import Wheel, wheel_from_json
from builder.devicecode.pruning.fatbin import COMPILED
from builder.devicecode.verdict import Audit, carries
from builder.facts import DATA, Source

FILE = DATA / "gpu-support.json"


@dataclass(frozen=True)
class Release:
    """One release of a framework: its wheels together."""

    framework: str
    version: str
    cuda: int
    wheels: tuple[Wheel, ...]
    python: tuple[str, ...] = ()
    """The versions of Python that have a wheel; empty where nobody needs them."""
    asks_for: Mapping[str, str] = field(default_factory=dict)
    """The versions of CUDA's packages and of libtpu that are taken with it, or a range
    (">=9.8,<10") where one has to be chosen, by their names; empty where nobody needs them."""

    @property
    def source(self) -> Source:
        wheels = ", ".join(f"{wheel.name} {wheel.version}" for wheel in self.wheels)
        return Source(f"device code read from the wheel of {wheels}", True)

    @property
    def metadata(self) -> Source:
        """The source of `python` and `asks_for`."""
        name = self.wheels[0].name
        return Source(f"metadata of {name} {self.version}'s wheels on PyPI", True)

    @cached_property
    def code(self) -> Audit:
        return Audit(tuple(library for wheel in self.wheels for library in wheel.libraries))

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """What nvcc compiled its libraries for: machine code (sm_70), then PTX (compute_90)."""
        carried = {name for library in self.code.libraries for name in carries(library, COMPILED)}
        return tuple(sorted(carried, key=lambda name: (name[0] == "c", len(name), name)))

    def support(self, capability: str) -> str:
        """Return the verdict's word for GPUs of a compute capability ("9.0")."""
        return str(self.code.verdict(capability).status)


@cache
def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows


def _release(row: Mapping[str, Any]) -> Release:
    return Release(
        row["framework"],
        row["version"],
        row["cuda"],
        tuple(wheel_from_json(wheel, wheel["sha256"]) for wheel in row["wheels"]),
        tuple(row.get("python", ())),
        row.get("asks_for", {}),
    )


def read() -> tuple[Release, ...]:
    return tuple(map(_release, _rows()))


@cache
def of(framework: str, version: str = "") -> tuple[Release, ...]:
    """Return the releases of a framework, or those of one version, oldest first; of one for several
    CUDAs, the newest CUDA first ("JAX" stands for "JAX, CUDA 12", too)."""
    return tuple(_release(row) for row in _rows_of(framework) if version in ("", row["version"]))


@cache
def _rows_of(framework: str) -> tuple[dict[str, Any], ...]:
    from packaging.version import Version

    rows = (row for row in _rows() if row["framework"].partition(",")[0] == framework)
    return tuple(sorted(rows, key=lambda row: (Version(row["version"]), -row["cuda"])))


def wheels(name: str, version: str) -> tuple[Wheel, ...]:
    rows = (wheel for row in _rows() for wheel in row["wheels"])
    found = (row for row in rows if (row["name"], row["version"]) == (name, version))
    return tuple(wheel_from_json(row, row["sha256"]) for row in found)


def versions(framework: str) -> tuple[str, ...]:
    """Return the versions of a framework that were read, oldest first."""
    return tuple(dict.fromkeys(row["version"] for row in _rows_of(framework)))
