"""What to take in place of a library that has no kernels for a GPU."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from builder.devicecode.library import OTHER_FORMAT, Library
from builder.devicecode.pruning.rule import ComputeCapability
from builder.facts import frameworks


class Remedy(NamedTuple):
    """What runs in place of a library that has no kernels for devices from `oldest` to `newest`."""

    names: str
    """A pattern of its distribution or its path."""
    oldest: ComputeCapability
    newest: ComputeCapability
    instead: str


REMEDIES: Final = (
    # The wheels: 9.3.0.75 and 9.10.2.21 carry sm_50 to sm_70, 9.11.0.98 and 9.28.0.42 do not
    Remedy(
        r"cudnn",
        ComputeCapability(5, 0),
        ComputeCapability(7, 0),
        "nvidia-cudnn-cu12 9.10.2.21 or older",
    ),
    # The wheels carry nothing below sm_75; NVIDIA, CUDA 13.0 release notes
    Remedy(
        r"-cu13|\.so\.13|cu13/|^nvidia-(cublas|cusparse|cusolver|cufft|curand|nccl)$",
        ComputeCapability(5, 0),
        ComputeCapability(7, 2),
        "the CUDA 12 build of the same library (its package name ends in -cu12)",
    ),
)


def remedy(library: Library, device: ComputeCapability, status: str) -> str:
    """Return what to take in place of a library that spoils a verdict, "" if nothing is known.

    status: the verdict's word.
    """
    if library.doubt == OTHER_FORMAT:
        return "a newer release of this program, which may know the format"
    if status in ("not known", "broken"):
        return "the same version, downloaded again"
    if library.pruned:
        return f"the same version, not pruned or pruned for {device}"
    for known in REMEDIES if status == "missing" else ():
        names = filter(None, (library.package, library.path))
        if known.oldest <= device <= known.newest and any(
            re.search(known.names, name) for name in names
        ):
            return known.instead
    return _release(library, str(device))


def _release(library: Library, capability: str) -> str:
    """Return another release of the library's framework, by what was read of its wheels: the newest
    with machine code for a GPU, else with PTX that compiles for it; "" if there is none."""
    from builder.devicecode import gpu_support  # it asks for verdicts, which name remedies

    for framework in frameworks.every():
        in_folder = not library.package and library.path.startswith(f"{framework.name}/")
        if library.package not in framework.distributions and not in_folder:
            continue
        rows = gpu_support.of(framework.title)[::-1]
        runs = [(row, row.support(capability)) for row in rows]
        for word, how in _HOW.items():
            for row, support in runs:
                if support == word and row.version != library.version:
                    return f"{library.package or framework.name} {row.version}, {how}"
    return ""


_HOW = {
    "native": "which has machine code for this GPU",
    "older minor": "which has machine code for this GPU",
    "PTX": "whose PTX compiles for this GPU",
}
"""How a release runs, by the verdict's word."""
