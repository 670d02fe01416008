"""The ways to run a job that names alternatives: each one a job of its own with one machine, one
region, one strategy. Nothing is asked here; what cannot be sent is found by the place's checks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from builder.core.errors import InputError
from builder.facts import accelerators
from builder.jobs import description, machines
from builder.jobs.description import Accelerators, Alternative, Job
from builder.jobs.machines import OfferedAccelerator, Placement

ANYWHERE = "anywhere"


@dataclass(frozen=True)
class Choice:
    """One way to run a job. on: the place, None for the one that the command names. optional:
    where it cannot be sent, the others are tried."""

    job: Job
    on: str | None = None
    optional: bool = False


def choices(job: Job, targets: Mapping[str, str]) -> tuple[Choice, ...]:
    """The ways to run a job: itself alone where it names no other. targets: the accelerator of each
    target of the project. Raises InputError at the line that cannot be."""
    if job.cheapest is not None:
        return tuple(_cheapest(job, targets))
    others = (_alternative(job, i, one, targets) for i, one in enumerate(job.alternatives))
    return (Choice(job.variant(()) if job.alternatives else job), *others)


def _alternative(job: Job, index: int, one: Alternative, targets: Mapping[str, str]) -> Choice:
    values: dict[str, Any] = {}
    if one.machine:
        values["machine"] = one.machine
    if one.accelerators or one.topology:
        values |= {"accelerators": one.accelerators, "topology": one.topology}
    if one.region:
        values["region"] = one.region
    carried = values.get("accelerators", job.accelerators)
    image = one.image or _image(job.image, carried.type if carried else None, targets)
    strategy = one.strategy or job.scheduling.strategy
    values |= {"image": image, "scheduling": _scheduled(job, strategy)}
    return Choice(job.variant(("alternatives", str(index)), **values), one.on)


def _cheapest(job: Job, targets: Mapping[str, str]) -> Iterator[Choice]:
    assert job.cheapest is not None and job.machine is not None
    strategies = job.cheapest.strategies or (job.scheduling.strategy,)
    for index, one in enumerate(job.cheapest.of):
        try:
            device = machines.device(one.type, job.machine)
            placed = _machine(job.machine, device, one)
        except InputError as error:
            raise _at(job, error, "cheapest", "of", str(index)) from None
        image = _image(job.image, device.name, targets)
        for region in _regions(job, device):
            for strategy in strategies:
                values: dict[str, Any] = {
                    "machine": placed.machine,
                    "accelerators": None if placed.topology else one,
                    "topology": placed.topology,
                    "region": region,
                    "image": image,
                    "scheduling": _scheduled(job, strategy),
                }
                yield Choice(job.variant(("cheapest",), **values), optional=True)


def _scheduled(job: Job, strategy: str) -> description.Scheduling:
    """The job's scheduling with another strategy; max_wait is flex-start's alone."""
    given = job.scheduling
    longest = given.max_wait if strategy == "flex-start" else None
    return given.model_copy(update={"strategy": strategy, "max_wait": longest, "patience": None})


def _machine(wanted: str, device: OfferedAccelerator, asked: Accelerators) -> Placement:
    """The machine that carries so many, nearest to the one that the job names."""
    found = machines.with_count(device, wanted, asked.count)
    if found is None:
        near = machines.nearest(wanted, device, asked.count)
        raise InputError(
            f"no machine carries {asked.count} x {device.name}",
            f"write {near.count} x {device.name}",
        )
    return found


def _regions(job: Job, device: OfferedAccelerator) -> tuple[str, ...]:
    """The regions that the job may run in and that have the accelerator."""
    assert job.cheapest is not None
    asked = job.cheapest.regions or ((job.region,) if job.region else ())
    if not asked:
        raise _at(
            job, InputError("says no regions", "add regions: europe, or regions: anywhere"),
            "cheapest", "regions",
        )  # fmt: skip
    known, found = machines.offer().regions, dict[str, None]()
    for one in asked:
        inside = [r for r in known if one in (r, ANYWHERE) or r.startswith(f"{one}-")]
        if not inside:
            raise _at(job, _no_region(one, known), "cheapest", "regions")
        found |= dict.fromkeys(inside)
    return tuple(region for region in found if region in device.regions)


def _no_region(one: str, known: tuple[str, ...]) -> InputError:
    parts = sorted({region.split("-")[0] for region in known})
    near = difflib.get_close_matches(one, [*parts, ANYWHERE, *known], n=1)
    return InputError(
        f"{one!r} is no region with training machines, nor a part of the world",
        (f"write {near[0]}; " if near else "") + f"known: {', '.join(parts)}, {ANYWHERE}",
    )


def _image(image: str, accelerator: str | None, targets: Mapping[str, str]) -> str:
    """The job's image; where it is made for another accelerator, the target for this one."""
    made_for = targets.get(image)
    if made_for is None or accelerator is None:
        return image
    try:
        wanted = accelerators.find(accelerator).name
    except InputError:  # the place's checks say so
        return image
    fitting = [name for name, made in sorted(targets.items()) if made == wanted]
    return image if made_for == wanted or not fitting else fitting[0]


def _at(job: Job, error: InputError, *field: str) -> InputError:
    return InputError(f"{description.where(job, *field)}: {error.message}", error.fix)
