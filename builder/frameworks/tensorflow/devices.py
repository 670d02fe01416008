"""Where TensorFlow lists its devices: copied into images, for the guard
(trainer/guard/framework.py).

The name is TensorFlow's own, and private; tests/image/test_start.py asks a real one for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODULE = "tensorflow.python.eager.context"
FUNCTIONS = ("Context._initialize_physical_devices",)


def seen(_module: Any, arguments: Sequence[Any], _answer: Any) -> dict[str, int]:
    """Return the number of GPUs. TPUs are listed when a program connects to them."""
    kinds = [device.device_type for device in arguments[0]._physical_devices]
    return {"GPU": kinds.count("GPU")}
