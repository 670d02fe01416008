"""AI Platform's scale tiers, on machines that Vertex AI has today.

The tiers ended with AI Platform on 2025-01-31. What each was: AI Platform Training, "Specifying
machine types or scale tiers". Two of its machines have no successor of the same size: n1-highcpu-8
(the smallest n1-highcpu of Vertex AI has 16 vCPUs, so n1-standard-8 stands for it) and the K80
(no longer offered, so a T4 stands for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PresetPool:
    """Replicas of one role; `accelerators` of type `accelerator` on each machine."""

    role: Literal["chief", "worker", "ps", "evaluator"]
    count: int
    machine: str
    accelerator: str | None = None
    accelerators: int = 0


@dataclass(frozen=True)
class Preset:
    """What stands for one scale tier; `was`: what the tier itself was."""

    pools: tuple[PresetPool, ...]
    was: str


PRESETS: Mapping[str, Preset] = {
    "BASIC": Preset(
        (PresetPool("chief", 1, "n1-standard-4"),),
        "one n1-standard-4",
    ),
    "STANDARD_1": Preset(
        (
            PresetPool("chief", 1, "n1-standard-8"),
            PresetPool("worker", 4, "n1-standard-8"),
            PresetPool("ps", 3, "n1-standard-4"),
        ),
        "n1-highcpu-8 with 4 workers n1-highcpu-8 and 3 parameter servers n1-standard-4",
    ),
    "PREMIUM_1": Preset(
        (
            PresetPool("chief", 1, "n1-highcpu-16"),
            PresetPool("worker", 19, "n1-highcpu-16"),
            PresetPool("ps", 11, "n1-highmem-8"),
        ),
        "n1-highcpu-16 with 19 workers n1-highcpu-16 and 11 parameter servers n1-highmem-8",
    ),
    "BASIC_GPU": Preset(
        (PresetPool("chief", 1, "n1-standard-8", "T4", 1),),
        "n1-standard-8 with one K80",
    ),
    "BASIC_TPU": Preset(
        (PresetPool("chief", 1, "cloud-tpu", "TPU-v2", 8),),
        "n1-standard-4 with 8 TPU v2 cores",
    ),
}
"""By the tier's name. CUSTOM is no preset: it is what the file itself says."""
