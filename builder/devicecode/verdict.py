"""Whether libraries have kernels for a GPU: a verdict on each library, and one on all of them.

This needs no GPU: the driver's rule (pruning/rule.py) is applied to the headers of the device code.
A library is judged section by section, because each section is a table of its own, from which the
driver or the library itself chooses:

* `.nv_fatbin` and data sections: the driver chooses in each container. Many containers are for
  newer devices only, so one container without code for a device proves nothing. A section in which
  no container has any proves that the library does not run.
* `.cask_resource`, `.ldata`, `.data`: the library chooses a container by tables of its own. Such a
  section decides only if the library has no other (cuFFT).
* `__nv_relfatbin`: inputs of device linking, which run only after they are linked. It never
  decides.

Two things are no fault. A data section in which each container holds one cubin, beside a native
`.nv_fatbin`, is a table of the program's own, which loads what fits (PyTorch's CuTe kernels). And a
library that no program loads on the device is "not used": another variant is, or nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from builder.devicecode.dynamic import AARCH64
from builder.devicecode.library import Group, Library
from builder.devicecode.pruning.fatbin import COMPILED, ELF, LINK_INPUT, LTO_IR, PTX
from builder.devicecode.pruning.rule import ComputeCapability, choose, compute_capability, runs
from builder.devicecode.ptx import Directives, newest
from builder.devicecode.remedies import remedy
from builder.facts import accelerators, cuda, frameworks
from builder.facts.cuda import OldestDriver
from builder.facts.frameworks import OptionalLibrary

PRIVATE_SECTIONS = (".cask_resource", ".ldata", ".data")

SECONDS_PER_MODULE = 0.010
SECONDS_PER_PTX_BYTE = 1 / 550_000
"""What compiling PTX costs on one core: 10 ms a module and 0.55 MB of PTX a second, measured with
ptxas 12.5.82 for sm_90 on PTX of TensorFlow 2.21.0 and 2.13.1 (docs/benchmarks.md)."""

TOLERATED_SECONDS = 60.0
"""Up to this much PTX beside native code does not make a library "PTX": kernels are compiled one by
one when they are first used, and each is a few milliseconds (TensorFlow 2.21 on an H100)."""

_TOOLKIT = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)")
"""Libraries whose names end in the major version of CUDA."""

_DIRECTIVES = 160
"""Up to so many bytes of PTX are comments and directives without a kernel, which no driver has to
compile: 121 in cuDNN 9.26 (PTX 9.4), 133 and 147 in cuBLASLt."""

_HELPERS = 200
"""Fewer than one container in so many is no library's kernels."""


class Support(IntEnum):
    """How a library runs on a device, best first."""

    NO_DEVICE_CODE = 0
    NOT_USED = 1
    NATIVE = 2
    OLDER_MINOR = 3
    PTX = 4
    MISSING = 5
    NOT_KNOWN = 6
    BROKEN = 7

    def __str__(self) -> str:
        return self.name if self is Support.PTX else self.name.lower().replace("_", " ")


class Containers(NamedTuple):
    """What a device finds in the containers of a section, or of a library."""

    native: int = 0
    older: int = 0
    ptx: int = 0
    nothing: int = 0
    """`native`, `older`, `ptx` and `nothing`: how many containers it finds such code in."""
    newer: int = 0
    """How many are for newer devices only."""
    ptx_bytes: int = 0
    """What the device's machine would have to compile, decompressed."""
    ptx_version: str = ""
    """The newest PTX ISA among that ("8.5"), "" if there is none."""

    @classmethod
    def total(cls, each: Iterable[Containers]) -> Containers:
        columns: list[Any] = [*zip(cls(), *each, strict=True)]
        return cls._make([*map(sum, columns[:-1]), newest(columns[-1])])

    @property
    def served(self) -> int:
        """How many hold code for the device."""
        return self.native + self.older + self.ptx

    @property
    def ptx_seconds(self) -> float:
        """What compiling the PTX takes on one core."""
        return self.ptx * SECONDS_PER_MODULE + self.ptx_bytes * SECONDS_PER_PTX_BYTE


@dataclass(frozen=True)
class LibraryVerdict:
    """One library on one device."""

    library: Library
    status: Support
    containers: Containers = field(default=Containers())
    """Of all its sections that are judged."""
    uncompilable: tuple[Directives, ...] = ()
    """The PTX that the driver would choose and cannot compile for the device."""
    section: str = ""
    """The section that decided the status."""
    reason: str = ""
    """Why a library is not used or not known, where its file is whole."""

    def __str__(self) -> str:
        if self.status == Support.BROKEN:
            return f"broken: {self.library.broken}"
        text, found = str(self.status), self.containers
        if self.status in (Support.NOT_KNOWN, Support.NOT_USED):
            return f"{text}: {self.reason or self.library.doubt}"
        if self.status == Support.MISSING and self.uncompilable:
            text += f": {self.section} holds {', '.join(map(str, self.uncompilable))}"
            return f"{text}, which no driver compiles for this GPU"
        if self.status == Support.MISSING and found.served:
            every = found.served + found.nothing
            return f"{text}: only {found.served} of its {every:,} containers hold code for it"
        if self.status == Support.MISSING:
            carried = carries(self.library, self.section)
            return f"{text}: {self.section} carries {', '.join(carried) if carried else 'nothing'}"
        if found.ptx_bytes:
            text += (
                f", {found.ptx:,} modules compiled from PTX when first used "
                f"({found.ptx_bytes / 1e6:.1f} MB, up to {_minutes(found.ptx_seconds)})"
            )
        return text


@dataclass(frozen=True)
class Verdict:
    """All libraries on one device."""

    device: ComputeCapability
    findings: tuple[LibraryVerdict, ...]

    @property
    def status(self) -> Support:
        return max((finding.status for finding in self.findings), default=Support.NO_DEVICE_CODE)

    @property
    def runs(self) -> bool:
        """Whether there is device code, and the device runs every library's, if only from PTX."""
        return Support.NATIVE <= self.status <= Support.PTX

    @property
    def ptx_seconds(self) -> float:
        return sum(finding.containers.ptx_seconds for finding in self.findings)

    @property
    def ptx_version(self) -> str:
        """The newest PTX ISA that the device's driver has to compile, "" if there is none."""
        return newest(finding.containers.ptx_version for finding in self.findings)

    @property
    def driver(self) -> OldestDriver | None:
        """The oldest driver for it; None where nothing says which CUDA it has.

        It is the highest of what CUDA's libraries, the PTX that the device has to use, and the
        device itself ask for.
        """
        majors = _toolkits(finding.library for finding in self.findings)
        major = str(max(majors)) if majors else None
        first = accelerators.first_cuda(str(self.device))
        return cuda.oldest_driver(major, self.ptx_version, first)

    @property
    def spoilers(self) -> tuple[LibraryVerdict, ...]:
        """The libraries that make the verdict PTX, missing or broken, largest first."""
        worst = [
            finding
            for finding in self.findings
            if finding.status == self.status and self.status >= Support.PTX
        ]
        return tuple(sorted(worst, key=lambda finding: -finding.library.size))

    @property
    def spoiler(self) -> LibraryVerdict | None:
        """The largest of the spoilers; None if the device runs every library natively."""
        return next(iter(self.spoilers), None)

    @property
    def _without_cuda(self) -> str:
        """The framework that has no device code, " (torch 2.8.0: arm64, built without CUDA)"."""
        names = {name for each in frameworks.every() for name in each.distributions}
        for own in (each.library for each in self.findings if not self.status):
            if own.package in names:
                on_arm = own.dynamic is not None and own.dynamic.machine == AARCH64
                return f" ({own.origin}: {'arm64, ' if on_arm else ''}built without CUDA)"
        return ""

    @property
    def instead(self) -> str:
        """What to take in place of the spoiling library, "" if nothing is known."""
        if not self.spoiler or self.spoiler.reason:
            return ""
        return remedy(self.spoiler.library, self.device, str(self.status))

    def __str__(self) -> str:
        if not self.spoiler:
            return f"{self.device}: {self.status}{self._without_cuda}"
        others = len(self.spoilers) - 1
        more = f" and {others} more" if others else ""
        return (
            f"{self.device}: {self.status}, because of {self.spoiler.library.name}{more} "
            f"({self.spoiler.library.origin}): {self.spoiler}"
        )


@dataclass(frozen=True)
class Audit:
    """The libraries that were read, to be judged for any device."""

    libraries: tuple[Library, ...]

    def verdict(self, device: ComputeCapability | str) -> Verdict:
        """Return the verdict for a device, given as "7.0" or as a value."""
        if isinstance(device, str):
            device = compute_capability(device)
        findings = [judge(library, device) for library in self.libraries]
        return Verdict(device, _variants(findings, _toolkits(self.libraries)))


def _toolkits(libraries: Iterable[Library]) -> set[int]:
    names = (_TOOLKIT.match(library.name) for library in libraries)
    return {int(name[1]) for name in names if name}


_VARIANT = re.compile(r"(?P<start>.*cuda)(?P<major>\d\d)(?P<minor>\d)(?P<end>\.so)")
"""A library that is built once for each CUDA: bitsandbytes/libbitsandbytes_cuda128.so."""


def _variants(findings: list[LibraryVerdict], majors: set[int]) -> tuple[LibraryVerdict, ...]:
    """Return the findings, with variants of a library judged as a set.

    A program opens the one variant for the CUDA that is there. If one that it may open runs, the
    others that do not are not used. majors: the versions of CUDA that are there, if that is known.
    """
    sets: dict[tuple[str, str], list[tuple[LibraryVerdict, int]]] = {}
    for finding in findings:
        if match := _VARIANT.fullmatch(finding.library.path):
            variants = sets.setdefault((match["start"], match["end"]), [])
            variants.append((finding, int(match["major"])))
    unused: dict[str, LibraryVerdict] = {}
    for variants in sets.values():
        opened = [finding for finding, major in variants if major in majors]
        best = min(opened or [finding for finding, _ in variants], key=lambda each: each.status)
        reason = f"one of {len(variants)} variants, of which {best.library.name} runs"
        for finding, _ in variants:
            if best.status <= Support.PTX and finding.status == Support.MISSING:
                unused[finding.library.path] = replace(
                    finding, status=Support.NOT_USED, reason=reason
                )
    return tuple(unused.get(finding.library.path, finding) for finding in findings)


def judge(library: Library, device: ComputeCapability) -> LibraryVerdict:
    if library.broken:
        return LibraryVerdict(library, Support.BROKEN)
    if library.doubt:
        spared = next(_optional(library), None)
        status = Support.NOT_USED if spared else Support.NOT_KNOWN
        return LibraryVerdict(library, status, reason=spared.why if spared else "")
    sections: dict[str, list[Group]] = {}
    for group in library.groups:
        if group.section != LINK_INPUT and group.section not in library.stubs:
            sections.setdefault(group.section, []).append(group)
    if not sections:
        return LibraryVerdict(library, Support.NO_DEVICE_CODE)
    tables = [_judge_section(library, groups, device) for groups in sections.values()]
    deciding = [table for table in tables if table.section not in PRIVATE_SECTIONS] or tables
    native_somewhere = any(table.status <= Support.OLDER_MINOR for table in deciding)
    if any(table.section == COMPILED and table.status <= Support.OLDER_MINOR for table in deciding):
        deciding = [
            table
            for table in deciding
            if table.status != Support.MISSING or not _loaded_by_program(sections[table.section])
        ]
    counted = [
        table
        for table in deciding
        if not native_somewhere
        or table.status != Support.PTX
        or table.containers.ptx_seconds > TOLERATED_SECONDS
    ]
    worst = max(counted, key=lambda table: table.status)
    status, reason = _used(library, worst, device)
    if status == Support.NOT_USED:
        return LibraryVerdict(library, status, section=worst.section, reason=reason)
    total = Containers.total(table.containers for table in tables)
    return replace(worst, status=status, containers=total, reason=reason)


def _used(
    library: Library, worst: LibraryVerdict, device: ComputeCapability
) -> tuple[Support, str]:
    """Return the status of a library by its worst section, and why it is not used or not known."""
    if worst.status not in (Support.PTX, Support.MISSING):
        return worst.status, ""
    for optional in _optional(library):
        if not optional.since or device < compute_capability(optional.since):
            return Support.NOT_USED, optional.why
    if worst.status == Support.PTX:
        return worst.status, ""
    kinds = {t.kind for g in library.groups if g.section == worst.section for t in g.targets}
    if unknown := kinds - {ELF, PTX, LTO_IR}:
        listed = ", ".join(f"{kind:#x}" for kind in sorted(unknown))
        return (
            Support.NOT_KNOWN,
            f"{worst.section} holds code of a kind that is not known ({listed})",
        )
    return Support.MISSING, ""


def _optional(library: Library) -> Iterator[OptionalLibrary]:
    return (each for each in frameworks.optional() if library.name.startswith(each.name))


_choose = cache(choose)
"""The driver's choice: many containers hold code for the same targets."""


def _loaded_by_program(groups: list[Group]) -> bool:
    """Tell whether each container holds a single cubin, as no nvcc writes them for the driver."""
    return all([target.kind for target in group.targets] == [ELF] for group in groups)


def _judge_section(
    library: Library, groups: list[Group], device: ComputeCapability
) -> LibraryVerdict:
    holds: list[Containers] = []
    unneeded: list[Containers] = []  # PTX that is compiled only where no container has a cubin
    uncompilable: set[Directives] = set()
    for group in groups:
        number = group.containers
        # Containers for newer devices only may be all of a library's kernels, and the rest a helper
        # beside them: 759 of the 761 of cuSPARSELt 0.8 start at sm_80, and two have compute_52
        oldest = min((target.architecture for target in group.targets), default=0)
        if oldest > device.architecture:
            holds.append(Containers(newer=number))
        picked = _choose(group.targets, device)
        text = group.ptx[group.targets.index(picked)] if picked and group.ptx else None
        if text and not runs(text.target, device):
            uncompilable.add(text)
            picked = None
        if picked is None:
            holds.append(Containers(nothing=number if group.targets else 0))
        elif picked.kind == ELF:
            native = picked.architecture == device.architecture
            holds.append(Containers(native=number) if native else Containers(older=number))
        else:
            size = group.code[group.targets.index(picked)]
            used = Containers(ptx=number, ptx_bytes=size, ptx_version=text.version if text else "")
            linked = any(other.kind == LTO_IR for other in group.targets)
            if len(group.targets) == 1 or linked or size <= _DIRECTIVES * number:
                # a container of its own for each target, code that the library links itself when
                # it runs, or a text without a kernel
                unneeded.append(used)
            else:
                holds.append(used)
    found, every = Containers.total(holds), sum(group.containers for group in groups)
    cubins = found.native + found.older
    if 2 * found.newer > every and cubins * _HELPERS < every:
        status = Support.MISSING
    elif cubins:
        status = Support.NATIVE if found.native >= found.older else Support.OLDER_MINOR
    elif (found.ptx or unneeded) and not uncompilable:
        status, found = Support.PTX, Containers.total([found, *unneeded])
    else:
        status = Support.MISSING
    return LibraryVerdict(library, status, found, tuple(sorted(uncompilable)), groups[0].section)


def holding(library: Library, device: ComputeCapability) -> int:
    """Return how many containers hold code that a device takes. Pruning for it keeps them all."""
    return sum(
        group.containers
        for group in library.groups
        if group.section != LINK_INPUT and _choose(group.targets, device)
    )


def carries(library: Library, section: str = "") -> tuple[str, ...]:
    """Return the targets that a library, or one section, holds code for: "sm_70", "compute_90"."""
    targets = {
        target
        for group in library.groups
        for target in group.targets
        if target.kind in (ELF, PTX) and group.section == (section or group.section)
    }
    return tuple(
        str(target)
        for target in sorted(targets, key=lambda t: (t.kind == PTX, t.architecture, t.suffix))
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
