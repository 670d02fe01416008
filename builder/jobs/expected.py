"""What a place promises to the program in a container, as the variable contract.ACCELERATOR.

The program compares it with what is there before it starts to train, and refuses to compute on the
CPU what is paid for as a GPU (docs/trainer.md, "No accelerator, no training").
"""

from __future__ import annotations

from builder import contract
from builder.facts import accelerators
from builder.facts.cuda import cuda as facts
from builder.jobs.machines import Placement


def on_a_machine(placement: Placement, cuda: str | None) -> dict[str, str]:
    """The variable for a machine that is paid for; {} for one without an accelerator.

    cuda: the version of the image's CUDA, None where it is not known.
    """
    device = placement.device
    if device is None:
        return {}
    if device.kind == "tpu":  # the machine type decides how many device files there are
        return {contract.ACCELERATOR: contract.accelerator(device.name)}
    major = cuda.partition(".")[0] if cuda else None
    driver = next((row.driver for row in facts().drivers if row.cuda == major), None)
    known = accelerators.find(device.name)
    value = contract.accelerator(
        known.name,
        placement.count,
        capability=known.compute_capability,
        cuda=major,
        driver=driver,
    )
    return {contract.ACCELERATOR: value}


def on_this_machine(wanted: int, given: int) -> dict[str, str]:
    """The variable for a replica that wants some GPUs and is given this machine's, of any kind."""
    if not wanted:
        return {}
    value = contract.accelerator(contract.ANY_GPU, given) if given else contract.CPU
    return {contract.ACCELERATOR: value}
