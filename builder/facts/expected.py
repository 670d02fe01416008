"""What a program on an accelerator may expect, as the text of the variable contract.ACCELERATOR.

A backend of jobs writes it for the machine that it pays for, and an image for the accelerator that
it is made for.
"""

from __future__ import annotations

from builder import contract
from builder.facts import accelerators
from builder.facts.cuda import oldest_driver


def text(
    accelerator: str,
    cuda: str | None,
    count: int | None = None,
    topology: str | None = None,
    driver: str | None = None,
) -> str:
    """Return `V100:2,capability=7.0,cuda=12,driver=525`, or `TPU-v5e:4,topology=4x4`.

    cuda: the version of the image's CUDA, None where it is not known. count: how many are paid for,
    of a TPU its chips on one host; None: one at least. topology: of a TPU. driver: the oldest for
    the image's libraries; None: the oldest for its CUDA. Raises InputError for an accelerator that
    does not exist.
    """
    known = accelerators.find(accelerator)
    if known.kind == "tpu":
        return contract.accelerator(accelerator, count, topology=topology)
    major = cuda.partition(".")[0] if cuda else None
    if driver is None and major:
        driver = oldest_driver(major)
    return contract.accelerator(
        known.name, count, capability=known.compute_capability, cuda=major, driver=driver
    )
