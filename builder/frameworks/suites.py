"""The suites of checks that an image goes through, and which one an image needs.

Which suite it is follows from the image's own labels, which are part of its digest, and never from
the receipt: whoever writes a receipt cannot choose the weaker suite. An image without the label
LABEL has our trainer, or a program that keeps to the same contract. The factory writes the label
into images of any other program (builder/jobs/package.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from builder import frameworks
from builder.config.image_yaml import ImageSpec
from builder.core.errors import CheckFailed
from builder.prove import receipts
from builder.prove.checks import (
    contents,
    device_code,
    environment,
    imports,
    machine,
    permissions,
    size,
    starts,
    stopping,
    training,
)
from builder.prove.suite import Check, Suite

LABEL: Final = "training-image-factory.suite"
"""The label of an image that names its suite; those with the trainer's have none."""


def trainer(name: str, loader: Check, outputs: Check) -> Suite:
    """Return the suite of an image whose program trains, checkpoints and resumes
    (builder/contract.py).

    name: the framework's. loader: asks whether it finds its libraries. outputs: asks whether what
    it wrote can be used.
    """
    return Suite(
        _named(name, receipts.TRAINER),
        (
            size.CHECK,
            device_code.CHECK,
            environment.CHECK,
            machine.CHECK,
            loader,
            contents.CHECK,
            permissions.CHECK,
            training.CHECK,
            outputs,
            stopping.CHECK,
        ),
    )


def program(name: str, loader: Check, modules: Sequence[str]) -> Suite:
    """Return the suite of an image with any other program. Its options are unknown, so nothing can
    be trained. modules: those that `loader` loads."""
    return Suite(
        _named(name, receipts.PROGRAM),
        (
            device_code.CHECK,
            environment.CHECK,
            machine.CHECK,
            loader,
            contents.CHECK,
            permissions.CHECK,
            imports.check(modules),
            starts.CHECK,
        ),
    )


def _named(framework: str, suite: str) -> str:
    return suite if framework == frameworks.DEFAULT else f"{framework}-{suite}"


def of_spec(spec: ImageSpec) -> Suite:
    """Return the suite that the image of a target needs."""
    return frameworks.of(spec.framework).suites()[spec.suite]


def of_image(labels: Mapping[str, str]) -> Suite:
    """Return the suite that an image with these labels needs.

    Raises CheckFailed for a label that names no suite, or no framework.
    """
    name = labels.get(LABEL, receipts.TRAINER)
    try:
        return frameworks.of_image(labels).suites()[name]
    except KeyError as error:
        label, what = LABEL, "suite of checks"
        if not frameworks.is_known(labels.get(frameworks.LABEL, frameworks.DEFAULT)):
            label, what = frameworks.LABEL, "framework"
        raise CheckFailed(
            f"the image's label {label} says {error}, and there is no such {what}",
            "build the image again with this factory, or verify it with the one that made it",
        ) from None
