"""The machines that Google Cloud Build's default pool runs builds on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MACHINES: Final[Mapping[str, float]] = {
    "E2_MEDIUM": 4,
    "E2_STANDARD_2": 8,
    "E2_HIGHCPU_8": 8,
    "E2_HIGHCPU_32": 32,
    "N1_HIGHCPU_8": 7.2,
    "N1_HIGHCPU_32": 28.8,
}
"""Memory in GB, by the names of the API reference (BuildOptions.machineType); from the pages of the
machine series."""

DEFAULT_MACHINE: Final = "E2_STANDARD_2"
"""Where neither the file nor the call names one."""

SYSTEM_GB: Final = 1
"""Memory that the worker's system and its engine use."""
