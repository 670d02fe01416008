"""Where JAX starts its backends: copied into images, for the guard (trainer/guard/framework.py).

JAX leaves a backend out that does not start, says one line and takes the CPU. A program that names
its backends (JAX_PLATFORMS) has an error of JAX's, or wants the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODULE = "jax._src.xla_bridge"
FUNCTIONS = ("backends",)
KINDS = {"cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}


def seen(module: Any, _arguments: Sequence[Any], answer: Any) -> dict[str, int]:
    """Return the number of GPUs and of TPUs, none where the program has chosen its backends."""
    if module.config.jax_platforms.value:
        return {}
    counts = {"GPU": 0, "TPU": 0}
    for name, client in answer.items():
        if name in KINDS:
            counts[KINDS[name]] += client.local_device_count()
    return counts
