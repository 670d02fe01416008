"""PyTorch's suites of checks (builder/frameworks/suites.py)."""

from __future__ import annotations

from typing import Final

from builder.frameworks import suites
from builder.frameworks.torch.checks import loader, outputs
from builder.prove import receipts

SUITES: Final = {
    receipts.TRAINER: suites.trainer("torch", loader.CHECK, outputs.CHECK),
    receipts.PROGRAM: suites.program("torch", loader.CHECK, ("torch",)),
}
"""By `suite` of image.yaml."""
