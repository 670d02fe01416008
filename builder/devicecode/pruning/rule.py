"""Which entry of a container the driver runs.

The rule, in the order in which the driver applies it:

0. Compatibility. A cubin runs on devices of its own major compute capability with the same or a
   higher minor; PTX is compiled for any device of its own or a higher compute capability.
   Source: NVIDIA, CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility". The
   same pages: neither direction holds between a Tegra chip and a desktop one; code for `sm_90a`
   runs on 9.0 only (architecture-specific), `sm_100f` on its family (10.0, 10.3).
1. Kind. A compatible cubin beats PTX, however old its minor. Source: NVIDIA, Ampere Compatibility
   Guide: "if a cubin compatible with that GPU is present in the binary, the cubin is used as-is".
   CUDA_FORCE_PTX_JIT=1 turns this around; nothing here sets it.
2. The nearest architecture.
3., 4. Flag bit 24 and the order in the file break ties between entries for the same target. They do
   not change whether something runs, so they are not modelled.

2 to 4: github.com/bechirBOUALI/cuda-fatbin-precedence, SELECTION-RULE.md, measured by its author on
one driver (597.06) and found in the code of a data centre driver. There too: the choice is final, a
chosen entry that is broken fails although another would have run; and a container in which nothing
is compatible, or which holds no entry at all, gives CUDA_ERROR_NO_BINARY_FOR_GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .errors import InputError
from .fatbin import ELF, PTX, Target

TEGRA = frozenset({32, 53, 62, 72, 87, 101})
"""Architectures of Tegra chips: K1, X1, X2, Xavier, Orin, Thor."""


class ComputeCapability(NamedTuple):
    """A device's compute capability: major 8, minor 9 for an L4."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def architecture(self) -> int:
        """As entries write it: 89 for 8.9, 120 for 12.0."""
        return self.major * 10 + self.minor


def compute_capability(text: str) -> ComputeCapability:
    """The value of a text such as "7.0". Raises InputError."""
    match = re.fullmatch(r"([1-9]\d?)\.(\d)", text.strip())
    if not match:
        raise InputError(
            f"{text!r} is not a compute capability",
            'write major.minor, for example "7.0" for a V100',
        )
    return ComputeCapability(int(match[1]), int(match[2]))


def runs(target: Target, device: ComputeCapability) -> bool:
    """Level 0: whether the device can run code for this target at all.

    Only cubins and PTX are known to run on their own; every other kind counts as not runnable.
    """
    if target.kind not in (ELF, PTX):
        return False
    if target.suffix == "a":
        return target.architecture == device.architecture
    same_major = target.architecture // 10 == device.major
    if target.kind == PTX:
        return target.architecture <= device.architecture and (same_major or target.suffix != "f")
    if target.architecture == device.architecture:
        return True
    tegra = target.architecture in TEGRA or device.architecture in TEGRA
    return same_major and target.architecture < device.architecture and not tegra


def choose(targets: Sequence[Target], device: ComputeCapability) -> Target | None:
    """The target whose entry the driver takes, or None where the container has nothing to run."""
    candidates = [target for target in targets if runs(target, device)]
    return max(
        candidates,
        key=lambda target: (target.kind == ELF, target.architecture, target.suffix == ""),
        default=None,
    )
