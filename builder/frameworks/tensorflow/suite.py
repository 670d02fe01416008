"""The suites of checks that an image goes through, and which one an image needs.

Which suite it is follows from the image's own label LABEL, which is part of its digest, and never
from the receipt: whoever writes a receipt cannot choose the weaker suite. An image without the
label has our trainer, or a program that keeps to the same contract. The factory writes the label
into images of any other program (builder/jobs/package.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from builder.config.image_yaml import ImageSpec
from builder.core.errors import CheckFailed
from builder.frameworks.tensorflow import MODULES
from builder.frameworks.tensorflow.checks import environment, loader, machine, outputs
from builder.prove import receipts
from builder.prove.checks import (
    contents,
    device_code,
    imports,
    permissions,
    size,
    starts,
    stopping,
    training,
)
from builder.prove.suite import Suite

LABEL: Final = "training-image-factory.suite"
"""The label of an image that names its suite; TRAINER's images have none."""

TRAINER: Final = Suite(
    receipts.TRAINER,
    (
        size.CHECK,
        device_code.CHECK,
        environment.CHECK,
        machine.CHECK,
        loader.CHECK,
        contents.CHECK,
        permissions.CHECK,
        training.CHECK,
        outputs.CHECK,
        stopping.CHECK,
    ),
)
"""Of an image whose program trains, checkpoints and resumes (builder/contract.py)."""

PROGRAM: Final = Suite(
    receipts.PROGRAM,
    (
        device_code.CHECK,
        environment.CHECK,
        machine.CHECK,
        loader.CHECK,
        contents.CHECK,
        permissions.CHECK,
        imports.check(MODULES),
        starts.CHECK,
    ),
)
"""Of an image with any other program. Its options are unknown, so nothing can be trained."""

_SUITES: Final = {suite.name: suite for suite in (TRAINER, PROGRAM)}


def of_spec(spec: ImageSpec) -> Suite:
    """Return the suite that the image of a target needs."""
    return _SUITES[spec.suite]


def of_image(labels: Mapping[str, str]) -> Suite:
    """Return the suite that an image with these labels needs.

    Raises CheckFailed for a label that names no suite.
    """
    name = labels.get(LABEL, TRAINER.name)
    if name not in _SUITES:
        raise CheckFailed(
            f"the image's label {LABEL} says {name!r}, and there is no such suite of checks",
            "build the image again with this factory, or verify it with the one that made it",
        )
    return _SUITES[name]
