"""On which GPUs do CUDA libraries run? `builder audit` of the training image factory, by itself."""

from __future__ import annotations

import sys
from pathlib import Path

__version__ = "0.1.0"


def main() -> None:
    """Run the program. The parts of the factory that it needs lie in this package."""
    sys.path.insert(0, str(Path(__file__).parent / "factory"))
    from builder.cli import audit

    audit.main(__version__)
