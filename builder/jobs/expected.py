"""What a backend promises to the program in a container, as the variable contract.ACCELERATOR.

The program compares it with what is there before it starts to train, and refuses to compute on the
CPU what is paid for as a GPU (docs/trainer.md).
"""

from __future__ import annotations

from builder import contract
from builder.facts.accelerators import expectation
from builder.facts.cuda import OldestDriver
from builder.jobs.machines import Placement


def on_a_machine(placement: Placement, driver: OldestDriver | None) -> dict[str, str]:
    """Return the variable for a machine that is paid for; one without an accelerator computes on
    the CPU, whatever its image expects.

    driver: the oldest for the image's libraries, None where it is not known.
    """
    device = placement.device
    if device is None:
        return {contract.ACCELERATOR: contract.CPU}
    count = placement.count if device.kind == "gpu" else placement.chips
    return {contract.ACCELERATOR: expectation(device.name, driver, count, placement.topology)}


def on_this_machine(wanted: int, given: int) -> dict[str, str]:
    """Return the variable for a replica that wants some GPUs and gets this machine's, of any
    kind."""
    value = contract.accelerator(contract.ANY_GPU, given) if wanted and given else contract.CPU
    return {contract.ACCELERATOR: value}
