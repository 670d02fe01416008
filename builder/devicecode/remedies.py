"""What to take in place of a library that has no kernels for a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.devicecode.library import OTHER_FORMAT, Library
from builder.devicecode.pruning.rule import ComputeCapability


@dataclass(frozen=True)
class Remedy:
    """What runs in place of a library, for the libraries and devices of which that is known.

    `package` is a pattern of the distribution or file name, `oldest` and `newest` the devices'
    compute capabilities (inclusive). `status` is the verdict's word.
    """

    package: str
    status: str
    oldest: ComputeCapability
    newest: ComputeCapability
    instead: str
    source: str


REMEDIES = (
    Remedy(
        r"cudnn",
        "missing",
        ComputeCapability(5, 0),
        ComputeCapability(7, 0),
        "nvidia-cudnn-cu12 9.10.2.21 or older; TensorFlow 2.18 to 2.21 were tested with 9.3.0.75",
        "the wheels: 9.3.0.75 and 9.10.2.21 carry sm_50 to sm_70, 9.11.0.98 and 9.28.0.42 do not",
    ),
    Remedy(
        r"-cu13|\.so\.13|cu13/|^nvidia-(cublas|cusparse|cusolver|cufft|curand|nccl)$",
        "missing",
        ComputeCapability(5, 0),
        ComputeCapability(7, 2),
        "the CUDA 12 build of the same library (its package name ends in -cu12)",
        "the wheels: CUDA 13 carries nothing below sm_75; NVIDIA, CUDA 13.0 release notes",
    ),
    Remedy(
        r"tensorflow",
        "missing",
        ComputeCapability(10, 0),
        ComputeCapability(12, 1),
        "tensorflow 2.21.0, whose PTX compiles for this GPU",
        "the wheels: 2.16.2 to 2.20.0 hold PTX for sm_90a, 2.21.0 for sm_90; ptxas 12.9.86",
    ),
    Remedy(
        r"tensorflow",
        "PTX",
        ComputeCapability(9, 0),
        ComputeCapability(9, 0),
        "tensorflow 2.21.0, which carries sm_90",
        "the wheels: 2.13.1 carries sm_35 to sm_80 and compute_80, 2.21.0 sm_60 to sm_90",
    ),
)


def remedy(library: Library, device: ComputeCapability, status: str) -> str:
    """Return what to take in place of a library that spoils a verdict, "" if nothing is known."""
    if library.doubt == OTHER_FORMAT:
        return "a newer release of this program, which may know the format"
    if status in ("not known", "broken"):
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
