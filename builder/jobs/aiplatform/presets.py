"""AI Platform's scale tiers, on machines that Vertex AI has today.

The tiers ended with AI Platform on 2025-01-31. Source: AI Platform Training, "Specifying machine
types or scale tiers". Two machines have no successor of the same size: n1-highcpu-8 became
n1-standard-8 (the smallest n1-highcpu of Vertex AI has 16 vCPUs), and the K80 became a T4.

The sizes of the tiers and machines are confirmed by AI Platform's own price list: five
complex_model_s and three standard are the 4.0571 units of STANDARD_1, twenty complex_model_m and
eleven large_model the 33.7829 of PREMIUM_1 (data/prices.yaml; a test adds them up).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.jobs.pools import Pool


@dataclass(frozen=True)
class Preset:
    """The pools that replace a scale tier. was: the tier's own machines, in words; "" where they
    are the same today."""

    pools: tuple[Pool, ...]
    was: str


PRESETS: Mapping[str, Preset] = {
    "BASIC": Preset(
        (Pool("chief", 1, "n1-standard-4"),),
        "",
    ),
    "STANDARD_1": Preset(
        (
            Pool("chief", 1, "n1-standard-8"),
            Pool("worker", 4, "n1-standard-8"),
            Pool("ps", 3, "n1-standard-4"),
        ),
        "n1-highcpu-8 with 4 workers n1-highcpu-8 and 3 parameter servers n1-standard-4",
    ),
    "PREMIUM_1": Preset(
        (
            Pool("chief", 1, "n1-highcpu-16"),
            Pool("worker", 19, "n1-highcpu-16"),
            Pool("ps", 11, "n1-highmem-8"),
        ),
        "",
    ),
    "BASIC_GPU": Preset(
        (Pool("chief", 1, "n1-standard-8", "T4", 1),),
        "n1-standard-8 with one K80",
    ),
    "BASIC_TPU": Preset(
        (Pool("chief", 1, "cloud-tpu", "TPU-v2", 8),),
        "n1-standard-4 with 8 TPU v2 cores",
    ),
}
"""By the tier's name. CUSTOM is no preset: there the file itself names the machines."""

LEGACY_MACHINES: Mapping[str, tuple[str, str | None, int]] = {
    "standard": ("n1-standard-4", None, 0),
    "large_model": ("n1-highmem-8", None, 0),
    "complex_model_s": ("n1-highcpu-8", None, 0),
    "complex_model_m": ("n1-highcpu-16", None, 0),
    "complex_model_l": ("n1-highcpu-32", None, 0),
    "standard_gpu": ("n1-standard-8", "K80", 1),
    "complex_model_m_gpu": ("n1-standard-16", "K80", 4),
    "complex_model_l_gpu": ("n1-standard-32", "K80", 8),
    "standard_p100": ("n1-standard-8", "P100", 1),
    "complex_model_m_p100": ("n1-standard-16", "P100", 4),
    "standard_v100": ("n1-standard-8", "V100", 1),
    "large_model_v100": ("n1-highmem-8", "V100", 1),
    "complex_model_m_v100": ("n1-standard-16", "V100", 4),
    "complex_model_l_v100": ("n1-standard-32", "V100", 8),
    "cloud_tpu": ("cloud-tpu", "TPU-v2", 8),
}
"""AI Platform's own machine names -> the machine of Compute Engine, and the accelerator that was
part of it. Source: AI Platform Training, "Compare machine types"."""

SUCCESSORS: Mapping[str, str] = {"n1-highcpu-8": "n1-standard-8"}
"""Machines that training no longer offers -> the nearest one of their number of vCPUs."""
