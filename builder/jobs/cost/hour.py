"""What an image costs to keep, and the least that an hour on its accelerator costs."""

from __future__ import annotations

from builder.jobs import machines
from builder.jobs.cost.prices import Prices
from builder.jobs.machines import Placement


def costs(accelerator: str, compressed_bytes: int, prices: Prices) -> dict[str, str]:
    """What it costs, by name; what is not known is left out.

    compressed_bytes: of the image in a registry.
    """
    storage = prices.need("registry/storage")
    found = {"a month in a registry": f"${compressed_bytes / 1e9 * storage.usd:.2f}"}
    devices = machines.devices_called(accelerator)
    asked = [
        (price, placement)
        for placement in machines.combinations()
        if placement.device in devices and not placement.pod
        if (price := _hour(placement, prices)) is not None
    ]
    if asked:
        price, placement = min(asked, key=lambda one: one[0])
        found["an hour of training"] = (
            f"${price:.2f} on {placement} ({prices.region}, list prices of {prices.as_of})"
        )
    return found


def _hour(placement: Placement, prices: Prices) -> float | None:
    machine, carries = prices.machine(placement.machine, placement.count)
    if machine is None or placement.device is None:
        return None
    if carries:
        return machine.usd
    one = prices.accelerator(placement.device.name)
    return machine.usd + placement.count * one.usd if one else None
