"""The machines that Google Cloud Build's default pool runs builds on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class WorkerMachine:
    """memory: in GB. minute: the price of one minute in dollars."""

    memory: float
    minute: float


MACHINES: Final[Mapping[str, WorkerMachine]] = {
    "E2_MEDIUM": WorkerMachine(4, 0.003),
    "E2_STANDARD_2": WorkerMachine(8, 0.006),
    "E2_HIGHCPU_8": WorkerMachine(8, 0.016),
    "E2_HIGHCPU_32": WorkerMachine(32, 0.064),
    "N1_HIGHCPU_8": WorkerMachine(7.2, 0.016),
    "N1_HIGHCPU_32": WorkerMachine(28.8, 0.064),
}
"""By the names of the API reference (BuildOptions.machineType). Prices: cloud.google.com/build/
pricing, 2025-08. Memory: the pages of the machine series. Disk beyond 100 GB costs extra."""

DEFAULT_MACHINE: Final = "E2_STANDARD_2"
"""Where neither the file nor the call names one."""

SYSTEM_GB: Final = 1
"""Memory that the worker's system and its engine use."""
