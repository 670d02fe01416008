"""Google's offer: which machine carries which accelerators, how many, and in which regions.

builder/facts/machines.yaml holds the machines of Vertex AI's custom training. What is not on offer
is refused with the nearest thing that is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from builder.core.errors import InputError
from builder.facts import DATA, read_table

_CORES, _HOST_CHIPS = 2, 4
"""Of TPU v2 and v3: cores of a chip, chips of a machine."""


@dataclass(frozen=True, eq=False)
class OfferedAccelerator:
    """One accelerator on offer. Each has one object, so identity is equality.

    type: the API's name, None for one that only a topology names. machines: machine type -> how
    many it may carry. topologies: machine type -> topology -> chips. listed: regions that have it,
    but not for training. pods: regions where a TPU may have a multiple of `pod_multiple` cores.
    """

    name: str
    kind: Literal["gpu", "tpu"]
    type: str | None
    machines: Mapping[str, tuple[int, ...]]
    topologies: Mapping[str, Mapping[str, int]]
    regions: tuple[str, ...]
    listed: tuple[str, ...]
    pod_multiple: int
    pods: tuple[str, ...]
    warning: str | None
    refused: str | None
    instead: str | None


@dataclass(frozen=True)
class Placement:
    """The machine of one replica. count: its accelerators; of a TPU its cores or chips."""

    machine: str
    device: OfferedAccelerator | None = None
    count: int = 0
    topology: str | None = None

    def __str__(self) -> str:
        if self.device is None:
            return f"{self.machine} without an accelerator"
        if self.topology:
            return f"{self.machine} with topology {self.topology}"
        return f"{self.machine} with {self.count} x {self.device.name}"

    @property
    def pod(self) -> bool:
        """Tell whether it is a TPU of several machines."""
        if self.device is None or self.device.kind != "tpu":
            return False
        if self.topology is None:
            return all(self.count not in counts for counts in self.device.machines.values())
        return self.count > self.chips

    @property
    def chips(self) -> int:
        """Return the chips of a TPU on one of its machines. TPU v2 and v3 are counted in cores.

        Source: Google Cloud, TPU v3: a v3-8 has four chips, a chip two cores.
        """
        named = re.search(r"-([0-9]+)t$", self.machine)
        return min(self.count, int(named[1])) if named else min(self.count // _CORES, _HOST_CHIPS)

    @property
    def written(self) -> str:
        """Return the lines of a job's file that ask for this."""
        if self.device is None:
            return f"machine: {self.machine} without accelerators"
        if self.topology:
            return f"machine: {self.machine}, topology: {self.topology}"
        return f"machine: {self.machine}, accelerators: {self.count} x {self.device.name}"


@dataclass(frozen=True)
class Size:
    """What a machine has. memory: in GB."""

    vcpus: int
    memory: float


@dataclass(frozen=True)
class Offer:
    """The whole table. sizes: of single machine types; each_vcpu: GB for each vCPU of a series."""

    cpu: tuple[str, ...]
    regions: tuple[str, ...]
    devices: Mapping[str, OfferedAccelerator]
    hyperdisk_only: tuple[str, ...]
    flex_start: tuple[str, ...]
    flex_start_days: int
    as_of: str
    sizes: Mapping[str, Size]
    each_vcpu: Mapping[str, float]


@cache
def offer() -> Offer:
    """Return builder/facts/machines.yaml, read once for each process."""
    table = read_table(DATA / "machines.yaml")
    return Offer(
        cpu=tuple(machine for series in table["cpu_machines"].values() for machine in series),
        regions=tuple(table["regions"]),
        devices={entry["name"]: _accelerator(entry) for entry in table["accelerators"]},
        hyperdisk_only=tuple(table["disk"]["hyperdisk_only"]),
        flex_start=tuple(table["flex_start"]["accelerators"]),
        flex_start_days=int(table["flex_start"]["timeout_days"]),
        as_of=table["as_of"],
        sizes={name: Size(int(pair[0]), float(pair[1])) for name, pair in table["sizes"].items()},
        each_vcpu={name: float(memory) for name, memory in table["gb_each_vcpu"].items()},
    )


def _accelerator(entry: Mapping[str, Any]) -> OfferedAccelerator:
    machines, shapes = entry.get("machines", {}), entry.get("topologies", {})
    pods = entry.get("pods", {})
    return OfferedAccelerator(
        name=entry["name"],
        kind=entry["kind"],
        machines={machine: tuple(map(int, counts)) for machine, counts in machines.items()},
        topologies={
            machine: {shape: _chips(shape) for shape in shapes[machine]} for machine in shapes
        },
        regions=tuple(entry.get("regions", ())),
        listed=tuple(entry.get("listed", ())),
        pod_multiple=int(pods.get("multiple_of", 0)),
        pods=tuple(pods.get("regions", ())),
        **{name: entry.get(name) for name in ("type", "warning", "refused", "instead")},
    )


def _chips(topology: str) -> int:
    return math.prod(int(side) for side in topology.split("x"))


@cache
def combinations() -> tuple[Placement, ...]:
    """Return every combination on offer; of TPU pods the two smallest sizes."""
    known = offer()
    placements = [Placement(machine) for machine in known.cpu]
    for device in known.devices.values():
        pods = (device.pod_multiple, 2 * device.pod_multiple) if device.pod_multiple else ()
        for machine, counts in device.machines.items():
            placements += [Placement(machine, device, count) for count in (*counts, *pods)]
        for machine, shapes in device.topologies.items():
            placements += [Placement(machine, device, shapes[shape], shape) for shape in shapes]
    return tuple(placements)


def size(machine: str) -> Size | None:
    """Return the vCPUs and the memory of a machine type, None for one that is not on record."""
    known = offer()
    series, _, vcpus = machine.rpartition("-")
    if series in known.each_vcpu and vcpus.isdigit():
        return Size(int(vcpus), int(vcpus) * known.each_vcpu[series])
    return known.sizes.get(machine)


def default_disk(machine: str) -> str:
    """Return the type of boot disk that the service gives a machine where none is asked for."""
    return "hyperdisk-balanced" if machine in offer().hyperdisk_only else "pd-ssd"


# --- names ----------------------------------------------------------------------------------------

_SHORT = {"H100": "H100-80GB", "H100-MEGA": "H100-MEGA-80GB", "H200": "H200-141GB"}


def devices_called(name: str) -> tuple[OfferedAccelerator, ...]:
    """Return the accelerators that a name may mean. `A100` means two, which the machine tells
    apart."""
    known = offer().devices.values()
    key = name.upper().replace("_", "-")
    by_type = [device for device in known if device.type and device.type.replace("_", "-") == key]
    if by_type:
        return tuple(by_type)
    key = re.sub(r"^NVIDIA-(TESLA-)?", "", key)
    if key == "TPU":
        return tuple(device for device in known if device.kind == "tpu" and not device.refused)
    keys = ("A100-40GB", "A100-80GB") if key == "A100" else (_SHORT.get(key, key),)
    return tuple(device for device in known if device.name.upper() in keys)


def device(name: str, machine: str = "") -> OfferedAccelerator:
    """Return the accelerator that a name means on a machine: "V100", "nvidia-tesla-v100", "A100".

    Raises InputError that names the nearest known one.
    """
    called = devices_called(name)
    if not called:
        known = [device.name for device in offer().devices.values() if not device.refused]
        key = re.sub(r"^NVIDIA[-_](TESLA[-_])?", "", name.upper())
        near = difflib.get_close_matches(key, known, n=1)
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {near[0]}; " if near else "") + f"known: {', '.join(known)}",
        )
    fitting = [each for each in called if machine in each.machines or machine in each.topologies]
    return (fitting or called)[0]


# --- machine x accelerator x count ----------------------------------------------------------------


def place(
    machine: str, accelerator: str | None = None, count: int = 0, topology: str | None = None
) -> Placement:
    """Return the machine and accelerators asked for. Raises InputError with the nearest on offer.

    topology: of a TPU, in place of accelerator and count.
    """
    if topology is not None:
        return _with_topology(machine, topology)
    if accelerator is None:
        return _alone(machine)
    wanted = device(accelerator, machine)
    if wanted.refused:
        instead = nearest(machine, offer().devices[str(wanted.instead)], count)
        raise InputError(f"{wanted.name} {wanted.refused}", f"write {instead.written}")
    near = nearest(machine, wanted, count)
    if wanted.topologies:
        raise InputError(
            f"{wanted.name} is asked for by its topology, not by a number of accelerators",
            f"write {near.written}, without accelerators",
        )
    counts, multiple = wanted.machines.get(machine, ()), wanted.pod_multiple
    if count in counts or (counts and multiple and count and count % multiple == 0):
        return Placement(machine, wanted, count)
    if not counts:
        _require_machine(machine, near)
        raise InputError(f"{machine} takes no {wanted.name}", f"write {near.written}")
    more = f", or a multiple of {multiple}" if multiple else ""
    units = " cores" if wanted.kind == "tpu" else ""
    carriers = [each for each in combinations() if (each.device, each.count) == (wanted, count)]
    other = min(carriers, key=lambda each: _distance(machine, each.machine), default=None)
    raise InputError(
        f"{machine} takes {_or(counts)}{more} x {wanted.name}{units}, not {count}",
        f"write accelerators: {near.count} x {wanted.name}"
        + (f", or machine: {other.machine}" if other else ""),
    )


def nearest(machine: str, wanted: OfferedAccelerator, count: int) -> Placement:
    """Return the nearest placement of an accelerator: on the same machine type, else by number and
    type."""
    return min(
        (placement for placement in combinations() if placement.device is wanted),
        key=lambda each: (
            each.machine != machine,
            3 * _steps(each.count, count) + _distance(machine, each.machine),
            each.count,
        ),
    )


def _with_topology(machine: str, topology: str) -> Placement:
    for known in offer().devices.values():
        shapes = known.topologies.get(machine, {})
        if topology in shapes:
            return Placement(machine, known, shapes[topology], topology)
        if shapes:
            raise InputError(
                f"{machine} has no topology {topology} ({', '.join(shapes)})",
                f"write {nearest(machine, known, _chips(topology)).written}",
            )
    _require_machine(machine, nearest("ct5lp-hightpu-4t", device("TPU-v5e"), 4))
    on_it = next(placement for placement in combinations() if placement.machine == machine)
    raise InputError(
        f"{machine} has no topology: only TPUs of v5e and later have one",
        f"write {on_it.written}, without topology",
    )


def _alone(machine: str) -> Placement:
    known = offer()
    if machine in known.cpu:
        return Placement(machine)
    near = min(known.cpu, key=lambda other: _distance(machine, other))
    _require_machine(machine, Placement(near))
    on_it = next(each for each in combinations() if each.machine == machine)
    if on_it.topology:
        raise InputError(f"{machine} needs a topology", f"add topology: {on_it.topology}")
    assert on_it.device is not None, "a machine without an accelerator is in known.cpu"
    raise InputError(
        f"{machine} always carries {_or(on_it.device.machines[machine])} x {on_it.device.name}",
        f"add accelerators: {on_it.count} x {on_it.device.name}",
    )


def _require_machine(machine: str, near: Placement) -> None:
    if all(placement.machine != machine for placement in combinations()):
        raise InputError(f"training has no machine type {machine}", f"write {near.written}")


@cache
def _distance(machine: str, other: str) -> float:
    """Return how much two machine types differ in family, series and size."""
    (family, size), (other_family, other_size) = _parts(machine), _parts(other)
    unlike = 1 - difflib.SequenceMatcher(None, family, other_family).ratio()
    return 4 * unlike + 2 * (machine[:2] != other[:2]) + _steps(size, other_size)


def _parts(machine: str) -> tuple[str, int]:
    family, _, size = machine.rpartition("-")
    return family or machine, int(re.sub(r"\D", "", size) or 1)


def _steps(count: int, other: int) -> float:
    """Return how many doublings lie between two numbers."""
    return abs(math.log2(max(count, 1) / max(other, 1)))


def _or(counts: tuple[int, ...]) -> str:
    *first, last = (str(count) for count in counts)
    return f"{', '.join(first)} or {last}" if first else last


# --- regions --------------------------------------------------------------------------------------


_REGION = re.compile(
    r"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)"
    r"-(?:central|(?:north|south)?(?:east|west)?)[0-9]+"
)


def check_region(placement: Placement, region: str) -> None:
    """Raise InputError, with the nearest region that fits, where there is no such region, or where
    it does not offer this accelerator for training."""
    known, wanted = offer(), placement.device
    if wanted is None and _REGION.fullmatch(region):
        return  # the table has regions of accelerators only; a newer one may be there, too
    if region not in known.regions:
        near = difflib.get_close_matches(region, known.regions, n=1)
        fix = f"write {near[0]}; " if near else ""
        raise InputError(
            f"{region!r} is no region with training machines on record ({known.as_of})",
            f"{fix}known: {', '.join(known.regions)}",
        )
    assert wanted is not None, "every region of the table has such a name"
    pod = bool(wanted.pod_multiple) and placement.pod
    regions = wanted.pods if pod else wanted.regions
    if region in regions:
        return
    what = f"{wanted.name} pods" if pod else wanted.name
    why = (
        f"{region} has {what} for predictions, not for training"
        if region in wanted.listed
        else f"{region} has no {what}"
    )
    ordered = sorted(regions, key=lambda other: (-_alike(other, region), other))
    raise InputError(
        why, f"write region: {ordered[0]}; training has {what} in {', '.join(regions)}"
    )


def _alike(region: str, other: str) -> int:
    """Return how near two regions are by name: 2 in the same part of a continent, 1 on the same
    one, 0."""
    return (region.split("-")[0] == other.split("-")[0]) + (region[:-1] == other[:-1])
