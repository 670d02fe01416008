"""Measures a program of PyTorch's on a GPU: what its allocator reserved, the time between steps.

Python imports this file first (as sitecustomize) when the image's entry point starts. A step is
what lies between two calls of an optimizer. Request and answer: builder/frameworks/on_gpu.py.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from builder.frameworks import on_gpu


def begin(torch: Any, steps: on_gpu.Steps) -> None:
    """Note when each optimizer has taken a step."""
    before: dict[int, float] = {}

    def stepped(optimizer: Any, *_: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        key, now = id(optimizer), time.perf_counter()
        if key in before:
            steps.note(key, type(optimizer).__name__, now - before[key])
        before[key] = now

    import_module("torch.optim.optimizer").register_optimizer_step_post_hook(stepped)


def measured(torch: Any) -> dict[str, Any] | None:
    """Return what the allocator took, as the check `compile` counts it."""
    cuda = torch.cuda
    if not cuda.is_available():
        return {"devices": 0}
    if not cuda.is_initialized():
        return None
    return {
        "devices": cuda.device_count(),
        "capability": ".".join(map(str, cuda.get_device_capability())),
        "peak": cuda.max_memory_reserved(),
    }


on_gpu.watch(__file__, "torch", begin, measured)
