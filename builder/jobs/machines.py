"""The machines of a job: the roles and pools that ask for them, and what Google offers: which
machine carries which accelerators, how many, and in which regions.

builder/facts/machines.yaml holds the machines of Vertex AI's custom training. What is not on offer
is refused with the nearest thing that is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from builder import contract
from builder.core.errors import InputError
from builder.facts import DATA, read_table
from builder.facts.cuda import OldestDriver
from builder.image.start import expectation

Role = Literal["chief", "worker", "ps", "evaluator"]
ROLES: tuple[Role, ...] = ("chief", "worker", "ps", "evaluator")
"""The roles of TF_CONFIG. A role's position is that of its worker pool on Vertex AI."""


@dataclass(frozen=True)
class Pool:
    """The replicas of one role, all on the same kind of machine."""

    role: str
    """One of ROLES; another text only for a job that this factory did not describe."""
    count: int = 1
    machine: str = ""
    """The machine type, "" where the backend does not choose one."""
    accelerator: str | None = None
    accelerators: int = 0
    """How many of type `accelerator` each machine carries."""
    topology: str | None = None
    """Of a TPU; it takes the place of a number of accelerators."""

    @property
    def position(self) -> int:
        """Return the number of the worker pool on Vertex AI."""
        return ROLES.index(self.role)

    @property
    def has_gpus(self) -> bool:
        return "NVIDIA" in (self.accelerator or "")

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(f"{self.role}-{index}" for index in range(self.count))


def replica_names(pools: Iterable[Pool]) -> list[str]:
    return [name for pool in pools for name in pool.replicas]


def role_of(position: int) -> str:
    """Return the role of the worker pool at a position of Vertex AI."""
    return ROLES[position] if position < len(ROLES) else f"workerpool{position}"


# --- what is on offer -----------------------------------------------------------------------------

_CORES, _HOST_CHIPS = 2, 4
"""Of TPU v2 and v3: cores of a chip, chips of a machine."""


@dataclass(frozen=True, eq=False)
class OfferedAccelerator:
    """One accelerator on offer. Each has one object, so identity is equality."""

    name: str
    kind: Literal["gpu", "tpu"]
    type: str | None = None
    """The API's name, None for one that only a topology names."""
    machines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Machine type -> how many it may carry."""
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Machine type -> how the chips may be laid out."""
    regions: tuple[str, ...] = ()
    warning: str | None = None
    refused: str | None = None
    instead: str | None = None


@dataclass(frozen=True)
class Placement:
    machine: str
    device: OfferedAccelerator | None = None
    count: int = 0
    """Its accelerators; of a TPU its cores or chips."""
    topology: str | None = None

    def __str__(self) -> str:
        if self.topology:
            return f"{self.machine} with topology {self.topology}"
        if self.device is None:
            return f"{self.machine} without an accelerator"
        return f"{self.machine} with {self.count} x {self.device.name}"

    @property
    def on_tpu(self) -> bool:
        return self.device is not None and self.device.kind == "tpu"

    @property
    def hosts(self) -> int:
        """Return how many machines one replica has: several for a larger slice of a TPU."""
        return self.count // self.chips if self.topology and self.count > self.chips else 1

    @property
    def chips(self) -> int:
        """Return the chips of a TPU on one of its machines. TPU v2 and v3 are counted in cores.

        Source: Google Cloud, TPU v3: a v3-8 has four chips, a chip two cores.
        """
        named = re.search(r"-([0-9]+)t$", self.machine)
        return min(self.count, int(named[1])) if named else min(self.count // _CORES, _HOST_CHIPS)

    def promise(self, driver: OldestDriver | None) -> dict[str, str]:
        """Return the variable with what the machine carries, which a program compares with what is
        there before it trains; without an accelerator it computes on the CPU.

        driver: the oldest for the image's libraries, None where it is not known.
        """
        if self.device is None:
            return {contract.ACCELERATOR: contract.CPU}
        count = self.chips if self.on_tpu else self.count
        value = expectation(self.device.name, driver, count, self.topology)
        return {contract.ACCELERATOR: value}

    @property
    def written(self) -> str:
        """Return the lines of a job's file that ask for this."""
        if self.device is None:
            return f"machine: {self.machine} without accelerators"
        if self.topology:
            return f"machine: {self.machine}, topology: {self.topology}"
        return f"machine: {self.machine}, accelerators: {self.count} x {self.device.name}"


@cache
def _table() -> dict[str, Any]:
    return read_table(DATA / "machines.yaml")


@cache
def devices() -> Mapping[str, OfferedAccelerator]:
    entries = TypeAdapter(tuple[OfferedAccelerator, ...]).validate_python(_table()["accelerators"])
    return {entry.name: entry for entry in entries}


@cache
def combinations() -> tuple[Placement, ...]:
    placements = [
        Placement(name) for series in _table()["cpu_machines"].values() for name in series
    ]
    for device in devices().values():
        for machine, counts in device.machines.items():
            placements += [Placement(machine, device, count) for count in counts]
        for machine, shapes in device.topologies.items():
            for shape in shapes:
                chips = math.prod(map(int, shape.split("x")))
                placements.append(Placement(machine, device, chips, shape))
    return tuple(placements)


def size(machine: str) -> tuple[int, float] | None:
    """Return the vCPUs and the GB of memory of a machine type, None where that is not on record."""
    series, _, vcpus = machine.rpartition("-")
    if (each := _table()["gb_each_vcpu"].get(series)) and vcpus.isdigit():
        return int(vcpus), int(vcpus) * float(each)
    pair = _table()["sizes"].get(machine)
    return (int(pair[0]), float(pair[1])) if pair else None


# --- names ----------------------------------------------------------------------------------------

_SHORT = {"H100": "H100-80GB", "H100-MEGA": "H100-MEGA-80GB", "H200": "H200-141GB"}
_NVIDIA = re.compile(r"^NVIDIA-(TESLA-)?")


def _devices_called(name: str) -> tuple[OfferedAccelerator, ...]:
    """Return what a name may mean: `A100` means two, which the machine tells apart."""
    known = devices().values()
    key = name.upper().replace("_", "-")
    by_type = tuple(each for each in known if (each.type or "").replace("_", "-") == key)
    if by_type:
        return by_type
    key = _NVIDIA.sub("", key)
    if key == "TPU":
        return tuple(device for device in known if device.kind == "tpu" and not device.refused)
    keys = ("A100-40GB", "A100-80GB") if key == "A100" else (_SHORT.get(key, key),)
    return tuple(device for device in known if device.name.upper() in keys)


def device(name: str, machine: str = "") -> OfferedAccelerator:
    """Return the accelerator that a name means on a machine: "V100", "nvidia-tesla-v100", "A100".

    Raises InputError that names the nearest known one.
    """
    called = _devices_called(name)
    if not called:
        known = [device.name for device in devices().values() if not device.refused]
        near = difflib.get_close_matches(_NVIDIA.sub("", name.upper()), known, n=1)
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {near[0]}; " if near else "") + f"known: {', '.join(known)}",
        )
    fitting = [item for item in called if machine in item.machines or machine in item.topologies]
    return (fitting or called)[0]


# --- machine x accelerator x count x region -------------------------------------------------------


def place(
    machine: str, accelerator: str | None = None, count: int = 0, topology: str | None = None
) -> Placement:
    """Return the machine and accelerators asked for. Raises InputError with the nearest on offer.

    topology: of a TPU, in place of accelerator and count.
    """
    wanted = device(accelerator, machine) if accelerator else None
    for offered in combinations():
        counted = (offered.device, offered.count) == (wanted, count)
        if (offered.machine, offered.topology) == (machine, topology) and (topology or counted):
            return offered
    if wanted is not None and wanted.refused:
        near = nearest(machine, devices()[str(wanted.instead)], count)
        raise InputError(f"{wanted.name} {wanted.refused}", f"write {near.written}")
    near, asked = nearest(machine, wanted, count), Placement(machine, wanted, count, topology)
    raise InputError(f"training has no {asked}", f"write {near.written}")


def nearest(machine: str, wanted: OfferedAccelerator | None, count: int) -> Placement:
    """Return the placement on offer with this accelerator and the nearest number of them, whose
    machine is the most similar in size, then in name; without an accelerator the same machine with
    any. count: 0 for any number. The accelerators are most of the price, so their number comes
    before the machine."""
    series, vcpus = _parts(machine)

    def distance(offered: Placement) -> tuple[object, ...]:
        other = offered.device is not wanted and not (wanted is None and offered.machine == machine)
        family, offered_vcpus = _parts(offered.machine)
        unlike = -difflib.SequenceMatcher(None, series, family).ratio()
        counts = (abs(offered.count - count), -offered.count) if wanted and count else ()
        return other, *counts, unlike, abs(offered_vcpus - vcpus), offered.count

    return min(combinations(), key=distance)


def _parts(machine: str) -> tuple[str, int]:
    """Return the series of a machine type and its vCPUs, or what its name counts."""
    family, _, number = machine.rpartition("-")
    known = size(machine)
    return family, known[0] if known else int(re.sub(r"\D", "", number) or 1)


def check_region(placement: Placement, region: str) -> None:
    """Raise InputError, with the nearest region, where a region does not offer the accelerator."""
    wanted = placement.device
    if wanted is not None and region not in wanted.regions:
        (closest,) = difflib.get_close_matches(region, wanted.regions, n=1, cutoff=0.0)
        raise InputError(
            f"{region} has no {wanted.name} for training",
            f"write region: {closest}; training has {wanted.name} in {', '.join(wanted.regions)}",
        )
