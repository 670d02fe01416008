"""For tests: an image of the engine that goes through the checks of a suite."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import CheckFailed
from builder.engine import Engine
from builder.pipeline import make
from builder.prove import receipts, smoke
from builder.prove.image import Subject
from builder.prove.receipts import Receipt
from builder.prove.suite import Suite
from tests import ROOT


def proven(
    engine: Engine,
    image: str,
    target: str,
    folder: Path,
    suite: Suite,
    *,
    locked: str = "",
    base: str = "",
    inputs: str = "",
    **more: Any,
) -> Receipt:
    """The receipt of an image that is asked about as a target's, whether it passes or not.

    locked, base: the targets whose packages and whose base it has; by default, its own. more: what
    `smoke` takes.
    """
    spec, of_base = image_yaml.load(ROOT, target), make.prepare(ROOT, base or target).committed_base
    assert of_base
    packages = lockfile.read(ROOT, locked or target).packages.values()
    subject = Subject(
        image,
        spec,
        compatibility.resolve(spec),
        {package.name: package.version for package in packages},
        smoke.RECORDS,
        inputs=inputs,
        base_layers=frozenset(layer.diff_id for layer in of_base.layers),
    )
    with contextlib.suppress(CheckFailed):
        smoke.smoke(engine, subject, suite, folder, **more)
    receipt = receipts.read(folder / receipts.FILE)
    assert receipt is not None
    return receipt
