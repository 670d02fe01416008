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
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from builder.devicecode.library import Group, Library
from builder.devicecode.pruning.fatbin import ELF, LINK_INPUT, LTO_IR, PTX, Target
from builder.devicecode.pruning.rule import ComputeCapability, choose, compute_capability, runs
from builder.devicecode.ptx import Directives, newest
from builder.facts import cuda
from builder.facts.cuda import OldestDriver

PRIVATE_SECTIONS = (".cask_resource", ".ldata", ".data")

SECONDS_PER_MODULE = 0.010
SECONDS_PER_PTX_BYTE = 1 / 550_000
"""What compiling PTX costs on one core: 10 ms a module and 0.55 MB of PTX a second, measured with
ptxas 12.5.82 for sm_90 on PTX of TensorFlow 2.21.0 and 2.13.1 (docs/device-code-measured.md)."""

TOLERATED_SECONDS = 60.0
"""Up to this much PTX beside native code does not make a library "PTX": kernels are compiled one by
one when they are first used, and each is a few milliseconds (TensorFlow 2.21 on an H100)."""

_TOOLKIT = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)")
"""Libraries whose names end in the major version of CUDA."""

_HELPERS = 200
"""Fewer than one container in so many is no library's kernels."""


class Support(IntEnum):
    """How a library runs on a device, best first."""

    NO_DEVICE_CODE = 0
    NATIVE = 1
    OLDER_MINOR = 2
    PTX = 3
    MISSING = 4
    UNKNOWN = 5
    BROKEN = 6

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    Support.NO_DEVICE_CODE: "no device code",
    Support.NATIVE: "native",
    Support.OLDER_MINOR: "older minor",
    Support.PTX: "PTX",
    Support.MISSING: "missing",
    Support.UNKNOWN: "not known",
    Support.BROKEN: "broken",
}


@dataclass(frozen=True)
class LibraryVerdict:
    """One library on one device.

    native, older, ptx, nothing: how many containers the driver finds such code in. ptx_bytes
    (decompressed), ptx_seconds (on one core): what the device's machine would have to compile.
    ptx_version: the newest PTX ISA among that ("8.5"), "" if there is none. uncompilable: the PTX
    that the driver would choose and cannot compile for the device. section: the section that
    decided the status.
    """

    library: Library
    status: Support
    native: int = 0
    older: int = 0
    ptx: int = 0
    nothing: int = 0
    ptx_bytes: int = 0
    ptx_seconds: float = 0.0
    ptx_version: str = ""
    uncompilable: tuple[Directives, ...] = ()
    section: str = ""

    def __str__(self) -> str:
        if self.status == Support.BROKEN:
            return f"broken: {self.library.broken}"
        text = str(self.status)
        if self.status == Support.UNKNOWN:
            return f"{text}: {self.library.doubt}"
        served = self.native + self.older + self.ptx
        if self.status == Support.MISSING and self.uncompilable:
            text += f": {self.section} holds {', '.join(map(str, self.uncompilable))}"
            return f"{text}, which no driver compiles for this GPU"
        if self.status == Support.MISSING and served:
            every = served + self.nothing
            return f"{text}: only {served} of its {every:,} containers hold code for it"
        if self.status == Support.MISSING:
            carried = carries(self.library, self.section)
            return f"{text}: {self.section} carries {', '.join(carried) if carried else 'nothing'}"
        if self.ptx_bytes:
            text += (
                f", {self.ptx:,} modules compiled from PTX when first used "
                f"({self.ptx_bytes / 1e6:.1f} MB, up to {_minutes(self.ptx_seconds)})"
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
        return sum(finding.ptx_seconds for finding in self.findings)

    @property
    def ptx_version(self) -> str:
        """The newest PTX ISA that the device's driver has to compile, "" if there is none."""
        return newest(finding.ptx_version for finding in self.findings)

    @property
    def driver(self) -> OldestDriver | None:
        """The oldest driver for it; None where nothing says which CUDA it has.

        It is the highest of what CUDA's libraries and the PTX ask for that the device has to use.
        """
        names = (_TOOLKIT.match(finding.library.name) for finding in self.findings)
        majors = [name[1] for name in names if name]
        return cuda.oldest_driver(max(majors, key=int, default=None), self.ptx_version)

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
    def instead(self) -> str:
        """What to take in place of the spoiling library, "" if nothing is known."""
        return remedy(self.spoiler.library, self.device, self.status) if self.spoiler else ""

    def __str__(self) -> str:
        if not self.spoiler:
            return f"{self.device}: {self.status}"
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
        return Verdict(device, tuple(judge(library, device) for library in self.libraries))


def judge(library: Library, device: ComputeCapability) -> LibraryVerdict:
    """Return how one library runs on one device."""
    if library.broken:
        return LibraryVerdict(library, Support.BROKEN)
    if library.doubt:
        return LibraryVerdict(library, Support.UNKNOWN)
    sections: dict[str, list[Group]] = {}
    for group in library.groups:
        if group.section != LINK_INPUT and group.section not in library.stub_sections:
            sections.setdefault(group.section, []).append(group)
    if not sections:
        return LibraryVerdict(library, Support.NO_DEVICE_CODE)
    tables = [_judge_section(library, groups, device) for groups in sections.values()]
    deciding = [
        table for name, table in zip(sections, tables, strict=True) if name not in PRIVATE_SECTIONS
    ] or tables
    native_somewhere = any(table.status <= Support.OLDER_MINOR for table in deciding)
    worst = max(
        (
            table
            for table in deciding
            if not (
                native_somewhere
                and table.status == Support.PTX
                and table.ptx_seconds <= TOLERATED_SECONDS
            )
        ),
        key=lambda table: table.status,
    )
    return LibraryVerdict(
        library,
        worst.status,
        sum(table.native for table in tables),
        sum(table.older for table in tables),
        sum(table.ptx for table in tables),
        sum(table.nothing for table in tables),
        sum(table.ptx_bytes for table in tables),
        sum(table.ptx_seconds for table in tables),
        newest(table.ptx_version for table in tables),
        worst.uncompilable,
        worst.section,
    )


def _judge_section(
    library: Library, groups: list[Group], device: ComputeCapability
) -> LibraryVerdict:
    counts = dict.fromkeys(Support, 0)
    together, alone = _Ptx(), _Ptx()  # beside code for other targets; in a container of their own
    uncompilable: set[Directives] = set()
    for group in groups:
        picked = choose(group.targets, device)
        text = group.ptx[group.targets.index(picked)] if picked and group.ptx else None
        if text and not runs(text.target, device):
            uncompilable.add(text)
            picked = None
        counts[_status(picked, device)] += group.containers
        if picked is None or picked.kind != PTX:
            continue
        size = group.code[group.targets.index(picked)]
        used = _Ptx(group.containers, size, text.version if text else "")
        if len(group.targets) == 1 or any(other.kind == LTO_IR for other in group.targets):
            # a container of its own for each target, or code that the library links itself when it
            # runs: compiled only if there is no cubin elsewhere
            alone = alone.and_(used)
        else:
            together = together.and_(used)
    native, older = counts[Support.NATIVE], counts[Support.OLDER_MINOR]
    if _for_newer(groups, device, native + older):
        status = Support.MISSING
    elif native or older:
        status = Support.NATIVE if native >= older else Support.OLDER_MINOR
    elif counts[Support.PTX] and not uncompilable:
        status = Support.PTX
        together = together.and_(alone)
    else:
        status = Support.MISSING
    return LibraryVerdict(
        library,
        status,
        native,
        older,
        together.modules,
        counts[Support.MISSING],
        together.size,
        together.seconds,
        together.version,
        tuple(sorted(uncompilable)),
        groups[0].section,
    )


@dataclass(frozen=True)
class _Ptx:
    """PTX that a device has to use: modules, bytes (decompressed), the newest ISA."""

    modules: int = 0
    size: int = 0
    version: str = ""

    def and_(self, other: _Ptx) -> _Ptx:
        version = newest((self.version, other.version))
        return _Ptx(self.modules + other.modules, self.size + other.size, version)

    @property
    def seconds(self) -> float:
        return self.modules * SECONDS_PER_MODULE + self.size * SECONDS_PER_PTX_BYTE


def _for_newer(groups: list[Group], device: ComputeCapability, cubins: int) -> bool:
    """Tell whether the kernels are for newer devices only, and the rest is a helper beside them.

    cuSPARSELt 0.8: 759 of its 761 containers start at sm_80; two helpers have compute_52, so that a
    V100 would load the library and find none of its kernels. cubins: containers that run natively.
    """
    every = sum(group.containers for group in groups)
    newer = sum(
        group.containers
        for group in groups
        if min((t.architecture for t in group.targets), default=0) > device.architecture
    )
    return 2 * newer > every and cubins * _HELPERS < every


def _status(picked: Target | None, device: ComputeCapability) -> Support:
    if picked is None:
        return Support.MISSING
    if picked.kind != ELF:
        return Support.PTX
    return Support.NATIVE if picked.architecture == device.architecture else Support.OLDER_MINOR


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


@dataclass(frozen=True)
class Remedy:
    """What runs in place of a library, for the libraries and devices of which that is known.

    `package` is a pattern of the distribution or file name, `oldest` and `newest` the devices'
    compute capabilities (inclusive).
    """

    package: str
    status: Support
    oldest: ComputeCapability
    newest: ComputeCapability
    instead: str
    source: str


REMEDIES = (
    Remedy(
        r"cudnn",
        Support.MISSING,
        ComputeCapability(5, 0),
        ComputeCapability(7, 0),
        "nvidia-cudnn-cu12 9.10.2.21 or older; TensorFlow 2.18 to 2.21 were tested with 9.3.0.75",
        "the wheels: 9.3.0.75 and 9.10.2.21 carry sm_50 to sm_70, 9.11.0.98 and 9.28.0.42 do not",
    ),
    Remedy(
        r"-cu13|\.so\.13|cu13/|^nvidia-(cublas|cusparse|cusolver|cufft|curand|nccl)$",
        Support.MISSING,
        ComputeCapability(5, 0),
        ComputeCapability(7, 2),
        "the CUDA 12 build of the same library (its package name ends in -cu12)",
        "the wheels: CUDA 13 carries nothing below sm_75; NVIDIA, CUDA 13.0 release notes",
    ),
    Remedy(
        r"tensorflow",
        Support.MISSING,
        ComputeCapability(10, 0),
        ComputeCapability(12, 1),
        "tensorflow 2.21.0, whose PTX compiles for this GPU",
        "the wheels: 2.18.0 to 2.20.0 hold PTX for sm_90a, 2.21.0 for sm_90; ptxas 12.9.86",
    ),
    Remedy(
        r"tensorflow",
        Support.PTX,
        ComputeCapability(9, 0),
        ComputeCapability(9, 0),
        "tensorflow 2.21.0, which carries sm_90",
        "the wheels: 2.13.1 carries sm_35 to sm_80 and compute_80, 2.21.0 sm_60 to sm_90",
    ),
)


def remedy(library: Library, device: ComputeCapability, status: Support) -> str:
    """Return what to take in place of a library that spoils a verdict, "" if nothing is known."""
    if status >= Support.UNKNOWN:
        return "the same version, downloaded again"
    if library.pruned:
        return f"the same version, not pruned or pruned for {device}"
    for known in REMEDIES:
        named = re.search(known.package, library.package) if library.package else None
        if (
            known.status == status
            and known.oldest <= device <= known.newest
            and (named or re.search(known.package, library.path))
        ):
            return known.instead
    return ""


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
