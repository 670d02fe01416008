"""TensorFlow's releases, with the CUDA libraries that go with them: tensorflow.yaml, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.facts import Source, read_table, sources_of
from builder.facts.cuda import CudaSet, Cudnn, Driver, cuda

DATA = Path(__file__).parent


@dataclass(frozen=True)
class Release:
    """One minor release of TensorFlow. `wheels` is the CUDA library set it was tested with."""

    minor: str
    versions: tuple[str, ...]
    python: tuple[str, ...]
    cuda: str
    cudnn: str
    wheels: str | None
    pins: Mapping[str, str]  # libraries whose version differs from the set's
    pins_source: Source
    ranges: bool  # the extra takes the tested version and later ones of the same major
    source: Source


@dataclass(frozen=True)
class TpuRelease:
    """A TensorFlow that has a TPU wheel, and the libtpu that it is locked to."""

    version: str
    libtpu: str
    accepts: str
    source: Source


@dataclass(frozen=True)
class Tables:
    """What is known about TensorFlow and CUDA, oldest first. sets, packages, cudnn and drivers are
    those of builder.facts.cuda.CudaFacts."""

    releases: tuple[Release, ...]
    tpu: tuple[TpuRelease, ...]
    sets: Mapping[str, CudaSet]
    packages: Mapping[str, str]
    cudnn: tuple[Cudnn, ...]
    drivers: tuple[Driver, ...]


@cache
def tables() -> Tables:
    """Return tensorflow.yaml, with the tables of cuda.yaml."""
    table, nvidia = read_table(DATA / "tensorflow.yaml"), cuda()
    known = sources_of(table)
    return Tables(
        releases=tuple(
            Release(
                minor=entry["minor"],
                versions=tuple(entry["versions"]),
                python=tuple(entry["python"]),
                cuda=entry["cuda"],
                cudnn=entry["cudnn"],
                wheels=entry.get("wheels"),
                pins=entry.get("pins", {}),
                pins_source=known["wheel"],
                ranges=entry.get("open") == "true",
                source=known[entry["source"]],
            )
            for entry in table["releases"]
        ),
        tpu=tuple(
            TpuRelease(entry["version"], entry["libtpu"], entry["accepts"], known[entry["source"]])
            for entry in table["tpu"]
        ),
        sets=nvidia.sets,
        packages=nvidia.packages,
        cudnn=nvidia.cudnn,
        drivers=nvidia.drivers,
    )
