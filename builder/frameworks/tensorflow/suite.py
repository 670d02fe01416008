"""TensorFlow's suites of checks (builder/frameworks/suites.py)."""

from __future__ import annotations

from typing import Final

from builder.frameworks import suites
from builder.frameworks.tensorflow.checks import loader, outputs
from builder.prove import receipts

TRAINER: Final = suites.trainer("tensorflow", loader.CHECK, outputs.CHECK)
PROGRAM: Final = suites.program("tensorflow", loader.CHECK, ("tensorflow", "keras"))

SUITES: Final = {receipts.TRAINER: TRAINER, receipts.PROGRAM: PROGRAM}
"""By `suite` of image.yaml."""
