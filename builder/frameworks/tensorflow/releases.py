"""TensorFlow's releases: what was read of their wheels, and for the old ones tensorflow.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.devicecode import gpu_support
from builder.facts import Source, read_table, sources_of
from builder.facts.frameworks import minor

DATA = Path(__file__).parent
NEWER = ">="
"""Before a version: the wheel takes later ones of the same major version, too."""


@dataclass(frozen=True)
class TensorFlowRelease:
    wheel: gpu_support.Release
    """What was read of its wheel."""
    cuda: str
    cudnn: str
    """`cuda` and `cudnn`: what it was built for ("12.5", "9.3"), by `source`."""
    source: Source
    libraries: Mapping[str, str]
    """The package of each CUDA library that it asks for, with the oldest version that it takes;
    empty where it asks for none."""
    ranges: bool
    """Whether it takes later ones, too."""
    libtpu: str
    """The oldest that its wheel for TPUs takes, "" where no such wheel can be locked."""

    @property
    def version(self) -> str:
        return self.wheel.version


@cache
def releases() -> tuple[TensorFlowRelease, ...]:
    """Return the releases that are known, oldest first."""
    return tuple(map(_release, gpu_support.of("TensorFlow")))


def find(version: str) -> TensorFlowRelease | None:
    """Return a release by its version, or the newest of a minor one ("2.20")."""
    known = gpu_support.versions("TensorFlow")[::-1]
    found = next((each for each in known if version in (each, minor(each))), None)
    return _release(*gpu_support.of("TensorFlow", found)) if found else None


def _release(wheel: gpu_support.Release) -> TensorFlowRelease:
    asks_for = {name: each.removeprefix(NEWER) for name, each in wheel.asks_for.items()}
    libraries = {name: each for name, each in asks_for.items() if name.startswith("nvidia-")}
    cuda, cudnn, source = _tested().get(minor(wheel.version), ("", "", wheel.metadata))
    if libraries:
        cuda = minor(libraries[f"nvidia-cuda-runtime-cu{wheel.cuda}"])
        cudnn = minor(libraries[f"nvidia-cudnn-cu{wheel.cuda}"])
    ranges = any(wheel.asks_for[name] != version for name, version in libraries.items())
    libtpu = asks_for.get("libtpu", "")
    return TensorFlowRelease(wheel, cuda, cudnn, source, libraries, ranges, libtpu)


@cache
def _tested() -> Mapping[str, tuple[str, str, Source]]:
    """Return minor release -> CUDA and cuDNN that it was built with, and where that stands."""
    table = read_table(DATA / "tensorflow.yaml")
    known = sources_of(table)
    return {
        release: (row["cuda"], row["cudnn"], known[row["source"]])
        for row in table["tested"]
        for release in row["releases"]
    }
