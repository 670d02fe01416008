"""Which release of a framework runs on which GPU: gpu-support.json, which scripts/gpu-support
computes from the wheels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from builder.facts import DATA, Source, accelerators

FILE = DATA / "gpu-support.json"


@dataclass(frozen=True)
class Wheel:
    """One wheel that was read; sha256 in hex."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Cell:
    """How a release runs on a GPU.

    support: the verdict's word ("native", "older minor", "PTX", "missing"). seconds: to compile PTX
    on one core. driver: the oldest branch ("525"), "" where it does not run.
    """

    support: str
    seconds: int
    driver: str


@dataclass(frozen=True)
class Release:
    """One release of a framework: its wheels together, on each GPU.

    targets: what nvcc compiled its libraries for: machine code (sm_70), then PTX (compute_90).
    python: the versions of Python that have a wheel; asks_for: the versions of CUDA's packages and
    of libtpu that are taken with it, or a range (">=9.8,<10") where one has to be chosen, by their
    names. Both are empty where nobody needs them.
    """

    framework: str
    version: str
    cuda: int
    wheels: tuple[Wheel, ...]
    targets: tuple[str, ...]
    cells: dict[str, Cell]
    python: tuple[str, ...] = ()
    asks_for: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        wheels = ", ".join(f"{wheel.package} {wheel.version}" for wheel in self.wheels)
        return Source(f"device code read from the wheel of {wheels}", True)

    @property
    def metadata(self) -> Source:
        """The source of `python` and `asks_for`."""
        package = self.wheels[0].package
        return Source(f"metadata of {package} {self.version}'s wheels on PyPI", True)

    def support(self, capability: str) -> str:
        """Return the verdict's word for GPUs of a compute capability ("9.0"); "" for one that the
        table lacks."""
        fitting = (cell for gpu, cell in self.cells.items() if _capability(gpu) == capability)
        return next((cell.support for cell in fitting), "")


def _capability(gpu: str) -> str | None:
    return accelerators.find(gpu).compute_capability


def parse(text: str) -> tuple[Release, ...]:
    """Return the releases of gpu-support.json."""
    return tuple(
        Release(
            row["framework"],
            row["version"],
            row["cuda"],
            tuple(Wheel(**wheel) for wheel in row["wheels"]),
            tuple(row["targets"]),
            {gpu: Cell(**cell) for gpu, cell in row["cells"].items()},
            tuple(row.get("python", ())),
            row.get("asks_for", {}),
        )
        for row in json.loads(text)
    )


def read() -> tuple[Release, ...]:
    """Return the releases that were read, in the order of the table."""
    return parse(FILE.read_text(encoding="utf-8"))


@cache
def of(framework: str) -> tuple[Release, ...]:
    """Return the releases of a framework, oldest first; of one for several CUDAs, the newest CUDA
    first ("JAX" stands for "JAX, CUDA 12", too)."""
    from packaging.version import Version

    rows = (row for row in read() if row.framework.partition(",")[0] == framework)
    return tuple(sorted(rows, key=lambda row: (Version(row.version), -row.cuda)))


def versions(framework: str) -> tuple[str, ...]:
    """Return the versions of a framework that were read, oldest first."""
    return tuple(dict.fromkeys(row.version for row in of(framework)))
