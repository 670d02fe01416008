"""The roles of a distributed job, and the pools of machines that play them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["chief", "worker", "ps", "evaluator"]
ROLES: tuple[Role, ...] = ("chief", "worker", "ps", "evaluator")
"""The roles of TF_CONFIG. A role's position is that of its worker pool on Vertex AI."""


@dataclass(frozen=True)
class Pool:
    """The replicas of one role, all on the same kind of machine.

    role: one of ROLES; another text only for a job that this factory did not describe.
    machine: the machine type, "" where the backend does not choose one.
    accelerators: how many of type `accelerator` each machine carries.
    topology: of a TPU; it takes the place of a number of accelerators.
    """

    role: str
    count: int = 1
    machine: str = ""
    accelerator: str | None = None
    accelerators: int = 0
    topology: str | None = None

    @property
    def position(self) -> int:
        """Return the number of the worker pool on Vertex AI."""
        return ROLES.index(self.role)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Return the names of its replicas: worker-0, worker-1."""
        return tuple(f"{self.role}-{index}" for index in range(self.count))


def replica_names(pools: Iterable[Pool]) -> list[str]:
    """Return the names of all replicas of a job: chief-0, worker-0, worker-1."""
    return [name for pool in pools for name in pool.replicas]


def role_of(position: int) -> str:
    """Return the role of the worker pool at a position of Vertex AI."""
    return ROLES[position] if position < len(ROLES) else f"workerpool{position}"
