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
    many it may carry. topologies: machine type -> topology -> chips. pods: regions
    where a TPU may have a multiple of `pod_multiple` cores.
    """

    name: str
    kind: Literal["gpu", "tpu"]
    type: str | None
    machines: Mapping[str, tuple[int, ...]]
    topologies: Mapping[str, Mapping[str, int]]
    regions: tuple[str, ...]
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


def _devices_called(name: str) -> tuple[OfferedAccelerator, ...]:
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
    called = _devices_called(name)
    if not called:
        known = [device.name for device in offer().devices.values() if not device.refused]
        key = re.sub(r"^NVIDIA[-_](TESLA[-_])?", "", name.upper())
        near = difflib.get_close_matches(key, known, n=1)
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {near[0]}; " if near else "") + f"known: {', '.join(known)}",
        )
    fitting = [item for item in called if machine in item.machines or machine in item.topologies]
    return (fitting or called)[0]


# --- machine x accelerator x count ----------------------------------------------------------------


def place(
    machine: str, accelerator: str | None = None, count: int = 0, topology: str | None = None
) -> Placement:
    """Return the machine and accelerators asked for. Raises InputError with the nearest on offer.

    topology: of a TPU, in place of accelerator and count.
    """
    on_it = [offered for offered in combinations() if offered.machine == machine]
    if topology is not None:
        request = f"{machine} with topology {topology}"
        shapes = [offered for offered in combinations() if offered.topology]
        for offered in on_it:
            if offered.topology == topology:
                return offered
        near = on_it[0] if on_it else _closest(machine, shapes)
    else:
        wanted = device(accelerator, machine) if accelerator else None
        placement = Placement(machine, wanted, count)
        request = str(placement)
        if wanted is not None and wanted.refused:
            instead = nearest(machine, offer().devices[str(wanted.instead)], count)
            raise InputError(f"{wanted.name} {wanted.refused}", f"write {instead.written}")
        pods = wanted is not None and machine in wanted.machines and wanted.pod_multiple
        if placement in on_it or (pods and count and count % pods == 0):
            return placement
        near = on_it[0] if on_it and wanted is None else nearest(machine, wanted, count)
    raise InputError(f"training has no {request}", f"write {near.written}")


def nearest(machine: str, wanted: OfferedAccelerator | None, count: int) -> Placement:
    """Return the nearest placement of an accelerator, or of none: on the same machine type, else by
    number and by the type's name."""
    fitting = [offered for offered in combinations() if offered.device is wanted]
    fitting = [offered for offered in fitting if offered.machine == machine] or fitting
    steps = [abs(math.log2((offered.count or 1) / (count or 1))) for offered in fitting]
    pairs = zip(fitting, steps, strict=True)
    return _closest(machine, [offered for offered, step in pairs if step == min(steps)])


def _closest(machine: str, placements: list[Placement]) -> Placement:
    """Return the placement whose machine type has the most similar name, then size."""

    def likeness(other: str) -> tuple[float, float]:
        (family, size), (other_family, other_size) = _parts(machine), _parts(other)
        alike = difflib.SequenceMatcher(None, family, other_family).ratio()
        return alike, -abs(math.log2(size / other_size))

    return max(placements, key=lambda placement: likeness(placement.machine))


def _parts(machine: str) -> tuple[str, int]:
    family, _, size = machine.rpartition("-")
    return family or machine, int(re.sub(r"\D", "", size) or 1) or 1


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
    (closest,) = difflib.get_close_matches(region, regions, n=1, cutoff=0.0)
    raise InputError(
        f"{region} has no {what} for training",
        f"write region: {closest}; training has {what} in {', '.join(regions)}",
    )
