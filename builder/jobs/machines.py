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
from typing import Any, Literal, cast

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.facts.table import DATA, Source

TABLE = "machines.yaml"
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
        """Whether it is a TPU of several machines."""
        if self.device is None or self.device.kind != "tpu":
            return False
        if self.topology is None:
            return self.count not in _single(self.device)
        return self.count > self.chips

    @property
    def chips(self) -> int:
        """The chips of a TPU on one of its machines. TPU v2 and v3 are counted in cores (source:
        Google Cloud, TPU v3: a v3-8 has four chips, a chip two cores)."""
        named = re.search(r"-([0-9]+)t$", self.machine)
        return min(self.count, int(named[1])) if named else min(self.count // _CORES, _HOST_CHIPS)

    @property
    def written(self) -> str:
        """The lines of a job's file that ask for this."""
        if self.device is None:
            return f"machine: {self.machine} without accelerators"
        if self.topology:
            return f"machine: {self.machine}, topology: {self.topology}"
        return f"machine: {self.machine}, accelerators: {self.count} x {self.device.name}"


@dataclass(frozen=True)
class Offer:
    """The whole table."""

    cpu: tuple[str, ...]
    regions: tuple[str, ...]
    devices: Mapping[str, OfferedAccelerator]
    hyperdisk_only: tuple[str, ...]
    flex_start: tuple[str, ...]
    flex_start_days: int
    as_of: str


@cache
def offer() -> Offer:
    """builder/facts/machines.yaml, read once for each process."""
    document = yamlfile.parse((DATA / TABLE).read_text(encoding="utf-8"), TABLE)
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{TABLE}:{problem.line}: {problem.field}: {problem.what}", problem.fix)
    table = cast(dict[str, Any], document.value)
    sources = {
        key: Source(entry["text"], entry["verified"] == "true")
        for key, entry in table["sources"].items()
    }
    devices = {
        entry["name"]: OfferedAccelerator(
            name=entry["name"],
            kind=entry["kind"],
            type=entry.get("type"),
            source=sources[entry["source"]],
            machines={
                machine: tuple(int(one) for one in counts)
                for machine, counts in entry.get("machines", {}).items()
            },
            topologies={
                machine: {one["topology"]: int(one["chips"]) for one in found}
                for machine, found in entry.get("topologies", {}).items()
            },
            regions=tuple(entry.get("regions", ())),
            listed=tuple(entry.get("listed", ())),
            pod_multiple=int(entry.get("pods", {}).get("multiple_of", 0)),
            pods=tuple(entry.get("pods", {}).get("regions", ())),
            warning=entry.get("warning"),
            refused=entry.get("refused"),
            instead=entry.get("instead"),
        )
        for entry in table["accelerators"]
    }
    return Offer(
        cpu=tuple(one for group in table["cpu_machines"].values() for one in group),
        regions=tuple(table["regions"]),
        devices=devices,
        hyperdisk_only=tuple(table["disk"]["hyperdisk_only"]),
        flex_start=tuple(table["flex_start"]["accelerators"]),
        flex_start_days=int(table["flex_start"]["timeout_days"]),
        as_of=table["as_of"],
    )


@cache
def combinations() -> tuple[Placement, ...]:
    """Every combination on offer; of TPU pods the two smallest sizes."""
    known = offer()
    found = [Placement(machine) for machine in known.cpu]
    for device in known.devices.values():
        for machine, counts in device.machines.items():
            pods = [device.pod_multiple, 2 * device.pod_multiple] if device.pod_multiple else []
            found += [Placement(machine, device, count) for count in (*counts, *pods)]
        for machine, topologies in device.topologies.items():
            found += [
                Placement(machine, device, chips, topology)
                for topology, chips in topologies.items()
            ]
    return tuple(found)


def default_disk(machine: str) -> str:
    """The type of boot disk that the service gives a machine where the job asks for none."""
    return "hyperdisk-balanced" if machine in offer().hyperdisk_only else "pd-ssd"


# --- names ----------------------------------------------------------------------------------------

_SHORT = {"H100": "H100-80GB", "H100-MEGA": "H100-MEGA-80GB", "H200": "H200-141GB"}


def devices_called(name: str) -> tuple[OfferedAccelerator, ...]:
    """The accelerators that a name may mean. `A100` means two, which the machine tells apart."""
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
    """The accelerator that `name` means on `machine`: "V100", "nvidia-tesla-v100", "A100-80GB".

    Raises InputError that names the nearest known one.
    """
    found = devices_called(name)
    if not found:
        known = [one.name for one in offer().devices.values() if not one.refused]
        key = re.sub(r"^NVIDIA[-_](TESLA[-_])?", "", name.upper())
        near = difflib.get_close_matches(key, known, n=1)
        raise InputError(
            f"no accelerator is called {name!r}",
            (f"write {near[0]}; " if near else "") + f"known: {', '.join(known)}",
        )
    fitting = [one for one in found if machine in one.machines or machine in one.topologies]
    return (fitting or list(found))[0]


# --- machine x accelerator x count ----------------------------------------------------------------


def place(
    machine: str, accelerator: str | None = None, count: int = 0, topology: str | None = None
) -> Placement:
    """The machine and accelerators asked for. Raises InputError with the nearest ones on offer."""
    if topology is not None:
        return _with_topology(machine, topology)
    if accelerator is None:
        return _alone(machine)
    wanted = device(accelerator, machine)
    if wanted.refused:
        raise InputError(
            f"{wanted.name} {wanted.refused}",
            f"write accelerators: {count} x {wanted.instead} "
            f"({nearest(machine, offer().devices[str(wanted.instead)], count)})",
        )
    if wanted.topologies:
        near = _closest_topology(wanted, machine, count)
        raise InputError(
            f"{wanted.name} is asked for by its topology, not by a number of accelerators",
            f"write {near.written}, without accelerators",
        )
    pod = wanted.pod_multiple and count >= wanted.pod_multiple and count % wanted.pod_multiple == 0
    if count in wanted.machines.get(machine, ()) or (pod and machine in wanted.machines):
        return Placement(machine, wanted, count)
    near = nearest(machine, wanted, count)
    if machine in wanted.machines:
        allowed = _or(wanted.machines[machine])
        more = f", or a multiple of {wanted.pod_multiple}" if wanted.pod_multiple else ""
        units = " cores" if wanted.kind == "tpu" else ""
        other = with_count(wanted, machine, count)
        raise InputError(
            f"{machine} takes {allowed}{more} x {wanted.name}{units}, not {count}",
            f"write accelerators: {near.count} x {wanted.name}"
            + (f", or machine: {other.machine}" if other else ""),
        )
    if machine not in _machines():
        raise _no_machine(machine, near)
    raise InputError(f"{machine} takes no {wanted.name}", f"write {near.written}")


def _with_topology(machine: str, topology: str) -> Placement:
    for one in offer().devices.values():
        if machine in one.topologies:
            if topology in one.topologies[machine]:
                return Placement(machine, one, one.topologies[machine][topology], topology)
            chips = math.prod(int(side) for side in topology.split("x"))
            near = _closest_topology(one, machine, chips)
            raise InputError(
                f"{machine} has no topology {topology} ({', '.join(one.topologies[machine])})",
                f"write {near.written}",
            )
    if machine not in _machines():
        raise _no_machine(machine, Placement("ct5lp-hightpu-4t", device("TPU-v5e"), 4, "2x2"))
    without = next(one for one in combinations() if one.machine == machine)
    raise InputError(
        f"{machine} has no topology: only TPUs of v5e and later have one",
        f"write {without.written}, without topology",
    )


def _alone(machine: str) -> Placement:
    known = offer()
    if machine in known.cpu:
        return Placement(machine)
    for one in known.devices.values():
        if machine in one.machines:
            raise InputError(
                f"{machine} always carries {_or(one.machines[machine])} x {one.name}",
                f"add accelerators: {one.machines[machine][0]} x {one.name}",
            )
        if machine in one.topologies:
            raise InputError(
                f"{machine} needs a topology",
                f"add topology: {next(iter(one.topologies[machine]))}",
            )
    near = min((Placement(one) for one in known.cpu), key=lambda one: _distance(machine, one))
    raise _no_machine(machine, near)


def _no_machine(machine: str, near: Placement) -> InputError:
    return InputError(f"training has no machine type {machine}", f"write {near.written}")


def _machines() -> frozenset[str]:
    return frozenset(one.machine for one in combinations())


def nearest(machine: str, wanted: OfferedAccelerator, count: int) -> Placement:
    """The nearest placement of `wanted`: on the same machine type, else by number and type."""
    found = [one for one in combinations() if one.device == wanted]
    return min(
        found,
        key=lambda one: (
            one.machine != machine,
            3 * _steps(one.count, count) + _distance(machine, one),
            one.count,
        ),
    )


def with_count(wanted: OfferedAccelerator, machine: str, count: int) -> Placement | None:
    """The placement with exactly so many, on the machine nearest to the one asked for."""
    found = [one for one in combinations() if one.device == wanted and one.count == count]
    return min(found, key=lambda one: _distance(machine, one)) if found else None


def _closest_topology(wanted: OfferedAccelerator, machine: str, chips: int) -> Placement:
    found = [one for one in combinations() if one.device == wanted]
    return min(
        found, key=lambda one: (one.machine != machine, _steps(one.count, chips), one.machine)
    )


def _distance(machine: str, other: Placement) -> float:
    """How much two machine types differ in family, series and size."""
    family, size = _parts(machine)
    near_family, near_size = _parts(other.machine)
    unlike = 1 - difflib.SequenceMatcher(None, family, near_family).ratio()
    series = machine[:2] != other.machine[:2]
    return 4 * unlike + 2 * series + _steps(size, near_size)


def _parts(machine: str) -> tuple[str, int]:
    family, _, size = machine.rpartition("-")
    digits = re.sub(r"\D", "", size)
    return family or machine, int(digits) if digits else 1


def _steps(one: int, other: int) -> float:
    """How many doublings lie between two numbers."""
    return abs(math.log2(max(one, 1) / max(other, 1)))


def _or(counts: tuple[int, ...]) -> str:
    *first, last = (str(one) for one in counts)
    return f"{', '.join(first)} or {last}" if first else last


# --- regions --------------------------------------------------------------------------------------


_REGION = re.compile(
    r"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)"
    r"-(?:central|(?:north|south)?(?:east|west)?)[0-9]+"
)


def check_region(placement: Placement, region: str) -> None:
    """Raises InputError, with the nearest region that fits, where there is no such region, or where
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
    ordered = sorted(regions, key=lambda one: (-_alike(one, region), one))
    raise InputError(
        why, f"write region: {ordered[0]}; training has {what} in {', '.join(regions)}"
    )


def _single(device: OfferedAccelerator) -> frozenset[int]:
    return frozenset(count for counts in device.machines.values() for count in counts)


def _alike(one: str, other: str) -> int:
    """How near two regions are by name: 2 in the same part of a continent, 1 on the same one, 0."""
    return (one.split("-")[0] == other.split("-")[0]) + (one[:-1] == other[:-1])
