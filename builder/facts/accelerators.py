"""Facts about accelerators, TensorFlow's releases and CUDA's libraries: data/*.yaml, typed.

Every value in the tables names a source, and every source says whether it was read by us. The
tables are read once a process.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from builder.core import yamlfile
from builder.core.errors import InputError

Kind = Literal["gpu", "tpu", "cpu"]
DATA = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    """Where a fact was read; `verified` where it was read or tried by us, not only heard."""

    text: str
    verified: bool


@dataclass(frozen=True)
class Architecture:
    """A GPU generation. `last_*` is None while it is supported; versions are CUDA toolkits'."""

    name: str
    first_cuda: str
    last_cuda: str | None
    last_driver: str | None
    source: Source


@dataclass(frozen=True)
class Accelerator:
    """One kind of device. `refused` says why no image is made for it, `instead` what to take."""

    name: str
    kind: Kind
    precision: str  # the dtype that mixed precision computes in; float32: no gain
    precision_source: Source
    source: Source
    aliases: tuple[str, ...] = ()
    architecture: Architecture | None = None
    compute_capability: str | None = None
    refused: str | None = None
    instead: str | None = None
    refused_source: Source | None = None


def _table(name: str) -> dict[str, Any]:
    path = DATA / name
    document = yamlfile.parse(path.read_text(encoding="utf-8"), name)
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{name}:{problem.line}: {problem.field}: {problem.what}", problem.fix)
    return cast(dict[str, Any], document.value)


def _sources(table: Mapping[str, Any]) -> dict[str, Source]:
    return {
        key: Source(entry["text"], entry["verified"] == "true")
        for key, entry in table["sources"].items()
    }


@cache
def accelerators() -> dict[str, Accelerator]:
    """Every accelerator by its name."""
    table = _table("accelerators.yaml")
    sources = _sources(table)
    architectures = {
        name: Architecture(
            name,
            entry["first_cuda"],
            entry.get("last_cuda"),
            entry.get("last_driver"),
            sources[entry["source"]],
        )
        for name, entry in table["architectures"].items()
    }
    return {
        entry["name"]: Accelerator(
            name=entry["name"],
            kind=entry["kind"],
            precision=entry["precision"],
            precision_source=sources["precision"],
            source=sources[entry["source"]],
            aliases=tuple(entry.get("aliases", ())),
            architecture=architectures.get(entry.get("architecture")),
            compute_capability=entry.get("compute_capability"),
            refused=entry.get("refused"),
            instead=entry.get("instead"),
            refused_source=sources.get(entry.get("refused_source")),
        )
        for entry in table["accelerators"]
    }


@cache
def _names() -> dict[str, str]:
    """Every spelling, in lower case, of every accelerator -> its name."""
    return {
        spelling.lower(): known.name
        for known in accelerators().values()
        for spelling in (known.name, *known.aliases)
    }


def find(name: str) -> Accelerator:
    """The accelerator a person means, in any case: "v100", "A100-80GB", "TPU-v3".

    Raises InputError that names the nearest known one.
    """
    key = name.lower().removeprefix("nvidia-").removeprefix("nvidia_").removeprefix("tesla_")
    known = _names().get(key)
    if known is None:
        near = difflib.get_close_matches(key, _names(), n=1)
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {_names()[near[0]]}; " if near else "")
            + f"known: {', '.join(accelerators())}",
        )
    return accelerators()[known]


@dataclass(frozen=True)
class Release:
    """One minor release of TensorFlow. `wheels` is the CUDA library set it was tested with."""

    minor: str
    versions: tuple[str, ...]
    python: tuple[str, ...]
    cuda: str
    cudnn: str
    capabilities: tuple[str, ...]  # sm_70: machine code; compute_90: machine code and PTX
    wheels: str | None
    pins: Mapping[str, str]  # libraries whose version differs from the set's
    pins_source: Source
    ranges: bool  # the extra takes the tested version and later ones of the same major
    source: Source
    capabilities_source: Source


@dataclass(frozen=True)
class TpuRelease:
    """A TensorFlow that has a TPU wheel, and the libtpu that it is locked to."""

    version: str
    libtpu: str
    accepts: str
    source: Source


@dataclass(frozen=True)
class CudaSet:
    """The CUDA libraries that a TensorFlow was tested with: short name -> version."""

    cuda: str
    libraries: Mapping[str, str]
    source: Source


@dataclass(frozen=True)
class Cudnn:
    """From version `since` on: the compute capabilities that every library has machine code for."""

    since: str
    capabilities: tuple[str, ...]
    source: Source


@dataclass(frozen=True)
class Driver:
    """The oldest Linux driver for any toolkit of a major version of CUDA."""

    cuda: str
    driver: str
    source: Source


@dataclass(frozen=True)
class Tables:
    """What is known about TensorFlow and CUDA. `packages`: short name -> part of the wheel's."""

    releases: tuple[Release, ...]
    tpu: tuple[TpuRelease, ...]
    sets: Mapping[str, CudaSet]
    packages: Mapping[str, str]
    cudnn: tuple[Cudnn, ...]
    drivers: tuple[Driver, ...]


@cache
def tables() -> Tables:
    """tensorflow.yaml and cuda.yaml, oldest first."""
    tensorflow, cuda = _table("tensorflow.yaml"), _table("cuda.yaml")
    read, known = _sources(tensorflow), _sources(cuda)
    return Tables(
        releases=tuple(
            Release(
                minor=entry["minor"],
                versions=tuple(entry["versions"]),
                python=tuple(entry["python"]),
                cuda=entry["cuda"],
                cudnn=entry["cudnn"],
                capabilities=tuple(entry["capabilities"]),
                wheels=entry.get("wheels"),
                pins=entry.get("pins", {}),
                pins_source=read["wheel"],
                ranges=entry.get("open") == "true",
                source=read[entry["source"]],
                capabilities_source=read[entry["capabilities_source"]],
            )
            for entry in tensorflow["releases"]
        ),
        tpu=tuple(
            TpuRelease(entry["version"], entry["libtpu"], entry["accepts"], read[entry["source"]])
            for entry in tensorflow["tpu"]
        ),
        sets={
            name: CudaSet(name, entry["libraries"], known[entry["source"]])
            for name, entry in cuda["sets"].items()
        },
        packages=cuda["packages"],
        cudnn=tuple(
            Cudnn(entry["since"], tuple(entry["capabilities"]), known[entry["source"]])
            for entry in cuda["cudnn"]
        ),
        drivers=tuple(
            Driver(entry["cuda"], entry["driver"], known[entry["source"]])
            for entry in cuda["drivers"]
        ),
    )
