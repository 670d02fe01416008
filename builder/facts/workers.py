"""The machines that Google Cloud Build's default pool runs builds on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class WorkerMachine:
    """A machine that Cloud Build offers."""

    memory: float
    """In GB."""


MACHINES: Final[Mapping[str, WorkerMachine]] = {
    "E2_MEDIUM": WorkerMachine(4),
    "E2_STANDARD_2": WorkerMachine(8),
    "E2_HIGHCPU_8": WorkerMachine(8),
    "E2_HIGHCPU_32": WorkerMachine(32),
    "N1_HIGHCPU_8": WorkerMachine(7.2),
    "N1_HIGHCPU_32": WorkerMachine(28.8),
}
"""By the names of the API reference (BuildOptions.machineType). Memory: the pages of the
machine series."""

DEFAULT_MACHINE: Final = "E2_STANDARD_2"
"""Where neither the file nor the call names one."""

SYSTEM_GB: Final = 1
"""Memory that the worker's system and its engine use."""
