"""CUDA's libraries, cuDNN and the drivers that they need: cuda.yaml, read once a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from builder.facts import DATA, Source, numbers, read_table, sourced, sources_of

_NVIDIA = """
ml cfg nscq gpucomp ptxjitcompiler fatbinaryloader allocator compiler pkcs11 pkcs11-openssl3 nvvm
opencl encode opticalflow fbc
"""
DRIVER_LIBRARIES = (
    *(f"libnvidia-{name}.so" for name in _NVIDIA.split()),
    "libcudadebugger.so",
    "libnvcuvid.so",
)
"""What the container toolkit mounts beside libcuda (libnvidia-container, src/nvc_info.c)."""


@dataclass(frozen=True)
class Cudnn:
    """The compute capabilities that all of cuDNN's libraries run on, from version `since` on."""

    since: str
    capabilities: Sequence[str]
    source: Source


@dataclass(frozen=True)
class Toolkit:
    """The libraries that NVIDIA released together."""

    cuda: str
    """Such as "12.9"."""
    libraries: Mapping[str, str]
    """A library's short name -> its version."""
    source: Source


@dataclass(frozen=True)
class Shipped:
    """What a publisher who tests on GPUs ships with a release of a framework."""

    framework: str
    release: str
    """Its minor: "2.21"."""
    publisher: str
    cuda: str
    """The toolkit: "12.9"."""
    cudnn: str
    nccl: str
    source: Source


@dataclass(frozen=True)
class Driver:
    """The oldest Linux driver for the toolkits of one major version of CUDA."""

    cuda: str
    driver: str
    source: Source


@dataclass(frozen=True)
class PtxIsa:
    """The CUDA that brought a version of the PTX ISA, and the oldest driver that compiles it."""

    isa: str
    cuda: str
    driver: str
    source: Source


@dataclass(frozen=True)
class OldestDriver:
    """The oldest branch of drivers that runs something ("555"), and the CUDA that it brings
    ("12.5")."""

    driver: str
    cuda: str


@dataclass(frozen=True)
class CudaFacts:
    packages: Mapping[str, str]
    """A library's short name -> the part of its wheel's name."""
    cudnn: tuple[Cudnn, ...]
    toolkits: tuple[Toolkit, ...]
    shipped: tuple[Shipped, ...]
    drivers: tuple[Driver, ...]
    ptx: tuple[PtxIsa, ...]
    """`cudnn`, `toolkits`, `shipped`, `drivers` and `ptx`: oldest first."""


def oldest_driver(
    major: str | None, ptx_isa: str = "", first_cuda: str = ""
) -> OldestDriver | None:
    """Return the oldest driver for libraries of a CUDA ("12"), for PTX ("8.5"), and for a GPU that
    a CUDA knew first ("12.8").

    For a PTX ISA that is newer than the table, the newest row counts. None where neither CUDA nor
    PTX is known.
    """
    known = [OldestDriver(row.driver, row.cuda) for row in cuda().drivers if row.cuda == major]
    if ptx_isa:
        rows = cuda().ptx
        newer = (row for row in rows if numbers(row.isa) >= numbers(ptx_isa))
        row = next(newer, rows[-1])
        known.append(OldestDriver(row.driver, row.cuda))
    if known:
        known += [
            OldestDriver(row.driver, row.cuda) for row in cuda().ptx if row.cuda == first_cuda
        ]
    return max(known, key=lambda oldest: int(oldest.driver), default=None)


def cudnn(version: str) -> Cudnn | None:
    """Return what a cuDNN carries, None for one from before the table."""
    wanted = numbers(version)
    return next((row for row in cuda().cudnn[::-1] if numbers(row.since) <= wanted), None)


def shipped_with(framework: str, release: str, major: str) -> Shipped | None:
    """Return what is shipped with a minor release ("2.21") or, where nobody's row says that, with
    the newest one; of the toolkits of one major version ("12"). None where no row has one."""
    rows = [
        row
        for row in cuda().shipped
        if row.framework == framework and row.cuda.partition(".")[0] == major
    ]
    exactly = (row for row in rows if row.release == release)
    return next(exactly, rows[-1] if rows else None)


def toolkit(version: str) -> Toolkit:
    return next(row for row in cuda().toolkits if row.cuda == version)


@cache
def cuda() -> CudaFacts:
    table = read_table(DATA / "cuda.yaml")
    known = sources_of(table)
    return CudaFacts(
        packages=table["packages"],
        cudnn=tuple(Cudnn(**sourced(row, known)) for row in table["cudnn"]),
        toolkits=tuple(Toolkit(**sourced(row, known)) for row in table["toolkits"]),
        shipped=tuple(Shipped(**sourced(row, known)) for row in table["shipped"]),
        drivers=tuple(Driver(**sourced(row, known)) for row in table["drivers"]),
        ptx=tuple(
            PtxIsa(isa, toolkit, driver, known[table["ptx"]["source"]])
            for isa, toolkit, driver in table["ptx"]["rows"]
        ),
    )
