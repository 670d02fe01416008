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
from builder.facts.table import DATA, Source, read_table, sources_of

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
    source: Source
    machines: Mapping[str, tuple[int, ...]]
    topologies: Mapping[str, Mapping[str, int]]
    regions: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    pod_multiple: int = 0
    pods: tuple[str, ...] = ()
    warning: str | None = None
    refused: str | None = None
    instead: str | None = None


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
    sources = sources_of(table)
    devices = [_accelerator(entry, sources) for entry in table["accelerators"]]
    return Offer(
        cpu=tuple(machine for group in table["cpu_machines"].values() for machine in group),
        regions=tuple(table["regions"]),
        devices={device.name: device for device in devices},
        hyperdisk_only=tuple(table["disk"]["hyperdisk_only"]),
        flex_start=tuple(table["flex_start"]["accelerators"]),
        flex_start_days=int(table["flex_start"]["timeout_days"]),
        as_of=table["as_of"],
        sizes={
            name: Size(int(vcpus), float(memory))
            for name, (vcpus, memory) in table["sizes"].items()
        },
        each_vcpu={name: float(memory) for name, memory in table["gb_each_vcpu"].items()},
    )


def _accelerator(entry: Mapping[str, Any], sources: Mapping[str, Source]) -> OfferedAccelerator:
    return OfferedAccelerator(
        name=entry["name"],
        kind=entry["kind"],
        type=entry.get("type"),
        source=sources[entry["source"]],
        machines={
            machine: tuple(int(count) for count in counts)
            for machine, counts in entry.get("machines", {}).items()
        },
        topologies={
            machine: {shape["topology"]: int(shape["chips"]) for shape in shapes}
            for machine, shapes in entry.get("topologies", {}).items()
        },
        regions=tuple(entry.get("regions", ())),
        listed=tuple(entry.get("listed", ())),
        pod_multiple=int(entry.get("pods", {}).get("multiple_of", 0)),
        pods=tuple(entry.get("pods", {}).get("regions", ())),
        warning=entry.get("warning"),
        refused=entry.get("refused"),
        instead=entry.get("instead"),
    )


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
    known = offer().devices
    key = name.upper().replace("_", "-")
    for device in known.values():
        if device.type and key == device.type.replace("_", "-"):
            return (device,)
    key = re.sub(r"^NVIDIA-(TESLA-)?", "", key)
    if key == "A100":
        return (known["A100-40GB"], known["A100-80GB"])
    if key == "TPU":
        return tuple(one for one in known.values() if one.kind == "tpu" and not one.refused)
    key = _SHORT.get(key, key)
    return tuple(device for device in known.values() if device.name.upper() == key)


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
    fitting = [one for one in called if machine in one.machines or machine in one.topologies]
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
        raise InputError(
            f"{wanted.name} {wanted.refused}",
            f"write accelerators: {count} x {wanted.instead} ({instead})",
        )
    near = nearest(machine, wanted, count)
    if wanted.topologies:
        raise InputError(
            f"{wanted.name} is asked for by its topology, not by a number of accelerators",
            f"write {near.written}, without accelerators",
        )
    multiple = wanted.pod_multiple
    pod = multiple and count and count % multiple == 0 and machine in wanted.machines
    if pod or count in wanted.machines.get(machine, ()):
        return Placement(machine, wanted, count)
    if machine not in {placement.machine for placement in combinations()}:
        raise _no_machine(machine, near)
    if machine not in wanted.machines:
        raise InputError(f"{machine} takes no {wanted.name}", f"write {near.written}")
    more = f", or a multiple of {multiple}" if multiple else ""
    units = " cores" if wanted.kind == "tpu" else ""
    carriers = [one for one in combinations() if (one.device, one.count) == (wanted, count)]
    other = min(carriers, key=lambda one: _distance(machine, one.machine), default=None)
    raise InputError(
        f"{machine} takes {_or(wanted.machines[machine])}{more} x {wanted.name}{units}, "
        f"not {count}",
        f"write accelerators: {near.count} x {wanted.name}"
        + (f", or machine: {other.machine}" if other else ""),
    )


def nearest(machine: str, wanted: OfferedAccelerator, count: int) -> Placement:
    """Return the nearest placement of an accelerator: on the same machine type, else by number and
    type."""
    return min(
        (placement for placement in combinations() if placement.device is wanted),
        key=lambda one: (
            one.machine != machine,
            3 * _steps(one.count, count) + _distance(machine, one.machine),
            one.count,
        ),
    )


def _with_topology(machine: str, topology: str) -> Placement:
    for known in offer().devices.values():
        shapes = known.topologies.get(machine)
        if shapes and topology in shapes:
            return Placement(machine, known, shapes[topology], topology)
        if shapes:
            chips = math.prod(int(side) for side in topology.split("x"))
            raise InputError(
                f"{machine} has no topology {topology} ({', '.join(shapes)})",
                f"write {nearest(machine, known, chips).written}",
            )
    on_it = [placement for placement in combinations() if placement.machine == machine]
    if not on_it:
        raise _no_machine(machine, nearest("ct5lp-hightpu-4t", device("TPU-v5e"), 4))
    raise InputError(
        f"{machine} has no topology: only TPUs of v5e and later have one",
        f"write {on_it[0].written}, without topology",
    )


def _alone(machine: str) -> Placement:
    known = offer()
    if machine in known.cpu:
        return Placement(machine)
    for one in known.devices.values():
        if counts := one.machines.get(machine):
            raise InputError(
                f"{machine} always carries {_or(counts)} x {one.name}",
                f"add accelerators: {counts[0]} x {one.name}",
            )
        if shapes := one.topologies.get(machine):
            raise InputError(f"{machine} needs a topology", f"add topology: {next(iter(shapes))}")
    near = min(known.cpu, key=lambda other: _distance(machine, other))
    raise _no_machine(machine, Placement(near))


def _no_machine(machine: str, near: Placement) -> InputError:
    return InputError(f"training has no machine type {machine}", f"write {near.written}")


@cache
def _distance(machine: str, other: str) -> float:
    """Return how much two machine types differ in family, series and size."""
    (family, size), (other_family, other_size) = _parts(machine), _parts(other)
    unlike = 1 - difflib.SequenceMatcher(None, family, other_family).ratio()
    return 4 * unlike + 2 * (machine[:2] != other[:2]) + _steps(size, other_size)


def _parts(machine: str) -> tuple[str, int]:
    family, _, size = machine.rpartition("-")
    digits = re.sub(r"\D", "", size)
    return family or machine, int(digits) if digits else 1


def _steps(one: int, other: int) -> float:
    """Return how many doublings lie between two numbers."""
    return abs(math.log2(max(one, 1) / max(other, 1)))


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
